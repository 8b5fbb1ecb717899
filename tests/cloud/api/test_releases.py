import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
import pytest_asyncio
import uvicorn
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from tests.sim.release_world import ReleaseWorld
from walle.access.access import Access, Role
from walle.access.errors import AccessError
from walle.base.clock import SystemClock
from walle.cloud.api.outcomes import device_router
from walle.cloud.api.releases import error_status, install_error_handlers, release_router, watch_router
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.middleware import WallePush
from walle.deploy.releases.journal import Journal
from walle.errors import ConfigError, EngineError
from walle.protocol import (
    DEVICE_HEADER,
    PROFILE_HEADER,
    TASKS_HEADER,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    Profile,
    directives_from_header,
)

AS_DEVICE = {DEVICE_HEADER: "d1"}
BODY: dict[str, Any] = {"scenario": "shop", "task": "ipv", "version": "v1", "beta": ["d1"]}
BODY["gate"] = {"trial_runs": 10_000}


def _sender(session: bytes | None) -> str:
    """Take the session for the id of the device itself."""
    if session is None:
        raise AccessError(401, "no session")
    return session.decode()


class Gateway:
    """The app as a cloud puts it together, on real services."""

    def __init__(self, world: ReleaseWorld) -> None:
        access = Access()
        self.token = access.issue("anna", {"shop": Role.RELEASER})
        self.low_token = access.issue("bert", {"shop": Role.READER})
        self.metrics_token = access.issue("cleo", {"*": Role.METRICS})
        self.world = world
        app = FastAPI()
        app.include_router(release_router(world.service, world.monitor, access))
        app.include_router(device_router(world.monitor, _sender))
        app.include_router(watch_router(world.service, world.monitor, world.answerer, access))
        install_error_handlers(app)
        self.fastapi = app
        self.app = WallePush(app, world.answerer, _sender)
        transport = httpx.ASGITransport(self.app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://cloud")
        self.as_anna = {"Authorization": f"Bearer {self.token}"}

    async def post(self, path: str, body: Any = None, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        return await self.client.post(path, json=body, headers=headers)

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path, headers=self.as_anna)

    async def report(self, release_id: str, ok: int, failed: int, batch_id: str) -> httpx.Response:
        installed = Outcome(task="shop/ipv", version="v1", release=release_id, kind=OutcomeKind.INSTALLED)
        outcome = Outcome(task="shop/ipv", version="v1", release=release_id, kind=OutcomeKind.RUN, ok=ok, failed=failed)
        response = await self.client.post(
            "/v1/outcomes", json=OutcomeBatch("d1", batch_id, (installed, outcome)).to_json(), headers=AS_DEVICE
        )
        await self.world.service.settled()
        return response

    async def check_in(self, device_id: str, **tasks: str) -> httpx.Response:
        profile = Profile(device_id, "10", {}, {f"shop/{task}": version for task, version in tasks.items()})
        return await self.client.post(
            "/v1/checkin", headers={PROFILE_HEADER: profile.to_header(), DEVICE_HEADER: device_id}
        )


@pytest_asyncio.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with Journal.in_file(tmp_path / "journal.sqlite") as journal:
        world = ReleaseWorld(tmp_path, SystemClock(), journal)
        gateway = Gateway(world)
        async with world.service, gateway.client:
            yield gateway


async def _in_beta(gateway: Gateway) -> str:
    release_id = str((await gateway.post("/v1/releases", BODY)).json()["id"])
    await gateway.world.reached(release_id, "beta")
    return release_id


@pytest.mark.asyncio
async def test_a_release_over_http(gateway: Gateway) -> None:
    created = await gateway.post("/v1/releases", {**BODY, "policy": {"app_version": ">=10"}})
    assert created.status_code == 201
    release = created.json()
    assert (release["id"], release["state"], release["request"]["policy"]) == (
        "ipv-v1-1",
        "simulating",
        {"app_version": ">=10"},
    )
    path = f"/v1/releases/{release['id']}"
    await gateway.world.reached(release["id"], "beta")
    (directive,) = directives_from_header((await gateway.check_in("d1")).headers[TASKS_HEADER])
    assert directive.version == "v1"
    assert TASKS_HEADER not in (await gateway.check_in("d2")).headers
    assert (await gateway.post(f"{path}/pause")).json()["state"] == "paused"
    assert (await gateway.post(f"{path}/resume")).json()["state"] == "beta"
    await gateway.world.service.settled()
    assert (await gateway.report(release["id"], 1000, 0, "b1")).status_code == 204
    shown = (await gateway.get(path)).json()
    assert (shown["state"], shown["stage"], shown["totals"]["ok"]) == ("gray", "gray 0.25", 1000)
    assert [one["event"] for one in shown["history"]] == [
        "Create",
        "SimulationPassed",
        "Pause",
        "Resume",
        "GateAccepted",
    ]
    over = await gateway.post(f"{path}/rollback", {"reason": "too slow"})
    assert (over.json()["state"], over.json()["reason"]) == ("rolled_back", "by anna: too slow")
    await gateway.world.service.settled()
    (directive,) = directives_from_header((await gateway.check_in("d1", ipv="v1")).headers[TASKS_HEADER])
    assert directive.version == ""
    assert [one["id"] for one in (await gateway.get("/v1/releases")).json()] == ["ipv-v1-1"]


@pytest.mark.asyncio
async def test_a_release_that_is_made_without_a_start_waits_for_it(gateway: Gateway) -> None:
    made = (await gateway.post("/v1/releases", {**BODY, "start": False})).json()
    path = f"/v1/releases/{made['id']}"
    assert made["state"] == "created"
    assert gateway.world.simulated == []
    assert (await gateway.post(f"{path}/start")).json()["state"] == "simulating"
    await gateway.world.reached(made["id"], "beta")
    assert [one["event"] for one in (await gateway.get(path)).json()["history"]][:2] == ["Create", "Start"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "status", "kind", "said"),
    [
        ({**BODY, "version": "v9"}, 422, "RepoError", "v9"),
        ({**BODY, "version": "latest"}, 422, "ReleaseRequestError", "release.version"),
        ({**BODY, "policy": {"app_version": "new"}}, 422, "PolicyError", "policy.app_version"),
        ({**BODY, "gate": {"p_bad": 2}}, 422, "GateError", "gate.p_bad: 2 is not a number above 0 and below 1"),
        (
            {**BODY, "gate": {"hold": 2}},
            422,
            "GateError",
            "gate.hold: is not an option of the gate; did you mean hold_s?",
        ),
        ({**BODY, "gate": {"hold_s": "2"}}, 422, "GateError", "gate.hold_s: '2' is not a number of seconds from 0"),
        ({**BODY, "gate": 2}, 422, "RequestError", "body.gate"),
        ({**BODY, "steps": [0.5]}, 422, "ReleaseRequestError", "release.steps"),
        ({**BODY, "steps": "all"}, 422, "RequestError", "body.steps"),
        ({**BODY, "polcy": {}}, 422, "RequestError", "body.polcy"),
        ({"scenario": "shop"}, 422, "RequestError", "body.task"),
    ],
)
async def test_a_wrong_release_is_refused(
    gateway: Gateway, body: dict[str, Any], status: int, kind: str, said: str
) -> None:
    response = await gateway.post("/v1/releases", body)
    assert (response.status_code, response.json()["type"]) == (status, kind)
    assert said in response.json()["error"]
    assert (await gateway.get("/v1/releases")).json() == []


@pytest.mark.asyncio
async def test_conflicts_and_unknown_releases(gateway: Gateway) -> None:
    release_id = await _in_beta(gateway)
    busy = await gateway.post("/v1/releases", {**BODY, "version": "v2"})
    assert (busy.status_code, busy.json()["type"]) == (409, "TaskBusyError")
    refused = await gateway.post(f"/v1/releases/{release_id}/start")
    assert (refused.status_code, refused.json()["type"]) == (409, "TransitionError")
    assert "cannot be started; it can be paused or rolled back" in refused.json()["error"]
    assert refused.json()["error"].endswith("older version than this cloud, upgrade the program")
    for path in ("", "/stream"):
        unknown = await gateway.get(f"/v1/releases/nope{path}")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "UnknownReleaseError")
    assert (await gateway.post("/v1/releases/nope/rollback")).status_code == 404


@pytest.mark.asyncio
async def test_old_versions_are_retired_by_releasers(gateway: Gateway) -> None:
    release_id = await _in_beta(gateway)
    for body in ({"scenario": "shop"}, {"scenario": "shop", "task": "ipv", "keep_versions": 2, "dry_run": True}):
        answer = await gateway.post("/v1/releases/retire", body)
        assert (answer.status_code, answer.json()) == (200, [])  # a release that is under way stays
    assert (await gateway.get(f"/v1/releases/{release_id}")).json()["state"] == "beta"
    few = await gateway.post("/v1/releases/retire", {"scenario": "shop", "keep_versions": 1})
    assert (few.status_code, "body.keep_versions" in few.json()["error"]) == (422, True)
    low = await gateway.post("/v1/releases/retire", {"scenario": "shop"}, gateway.low_token)
    assert (low.status_code, low.json()["error"]) == (403, "bert does not have the role releaser in scenario 'shop'")


@pytest.mark.asyncio
@pytest.mark.parametrize("action", ["", "start", "pause", "resume", "rollback"])
async def test_only_those_who_may_release_do(gateway: Gateway, action: str) -> None:
    release_id = await _in_beta(gateway)
    before = (await gateway.get("/v1/releases")).json()
    path = f"/v1/releases/{release_id}/{action}" if action else "/v1/releases"
    nobody = await gateway.client.post(path, json=None if action else BODY)
    assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, "Bearer")
    assert (await gateway.post(path, None if action else BODY, token="wrong")).status_code == 401
    low = await gateway.post(path, None if action else BODY, gateway.low_token)
    assert (low.status_code, low.json()["error"]) == (403, "bert does not have the role releaser in scenario 'shop'")
    assert (await gateway.get("/v1/releases")).json() == before


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"[", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "batch.outcomes: is missing"),
        (b'{"device_id": "d", "batch_id": "b", "outcomes": [{"kind": "exploded"}]}', "batch.outcomes[0].kind"),
        (b" " * ((1 << 20) + 1), "is larger than"),
    ],
)
async def test_a_broken_report_is_refused(gateway: Gateway, body: bytes, said: str) -> None:
    response = await gateway.client.post("/v1/outcomes", content=body, headers=AS_DEVICE)
    assert (response.status_code, response.json()["type"]) == (422, "ProtocolError")
    assert said in response.json()["error"]


@pytest.mark.asyncio
async def test_a_heartbeat_needs_a_session_and_a_profile(gateway: Gateway) -> None:
    profile = Profile("d1", "10").to_header()
    assert (await gateway.client.post("/v1/checkin", headers={PROFILE_HEADER: profile})).status_code == 401
    response = await gateway.client.post("/v1/checkin", headers=AS_DEVICE)
    assert response.status_code == 422
    assert PROFILE_HEADER in response.json()["error"]
    response = await gateway.client.post("/v1/checkin", headers={PROFILE_HEADER: "{", **AS_DEVICE})
    assert response.status_code == 204
    assert "not JSON" in response.headers["x-walle-error"]


@pytest.mark.asyncio
async def test_health_without_a_token_calls_no_service() -> None:
    """Anyone may ask it, as often as they like: with Ray the release service is another process."""
    releases = mock.AsyncMock()
    app = FastAPI()
    app.include_router(watch_router(releases, mock.AsyncMock(), Answerer(), Access()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cloud") as client:
        assert (await client.get("/healthz")).json() == {"ok": True}
    assert releases.mock_calls == []


@pytest.mark.asyncio
async def test_health_metrics_and_description(gateway: Gateway) -> None:
    release_id = await _in_beta(gateway)
    for _ in range(3):
        await gateway.check_in("d1")
    await gateway.report(release_id, 10, 2, "b1")
    assert (await gateway.get("/healthz")).json() == {"ok": True}
    assert (await gateway.get("/metrics")).status_code == 403
    as_cleo = {"Authorization": f"Bearer {gateway.metrics_token}"}
    health = (await gateway.client.get("/healthz", headers=as_cleo)).json()
    assert health["ok"]
    assert health["releases"] == 1
    text = (await gateway.client.get("/metrics", headers=as_cleo)).text
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["walle_profiles_total", "fresh"] == 1
    assert samples["walle_profiles_total", "repeated"] == 2
    assert samples["walle_releases", "beta"] == 1
    assert samples["walle_release_executions_total", "failed", release_id, "shop/ipv"] == 2
    paths = (await gateway.client.get("/openapi.json")).json()["paths"]
    assert {"/v1/releases", "/v1/releases/{release_id}/rollback", "/v1/outcomes", "/v1/checkin"} <= set(paths)


@contextlib.asynccontextmanager
async def _served(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none", lifespan="off"))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn offers nothing to wait for
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@pytest.mark.asyncio
async def test_a_release_can_be_watched_to_its_end(gateway: Gateway) -> None:
    release_id = await _in_beta(gateway)
    stages, executions = [], []
    async with (
        _served(gateway.app) as url,
        httpx.AsyncClient(base_url=url, headers=gateway.as_anna) as client,
        client.stream("GET", f"/v1/releases/{release_id}/stream", timeout=20) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            shown = json.loads(line.removeprefix("data:"))
            stages.append(shown["stage"])
            executions.append(shown["totals"]["ok"])
            if len(stages) == 1:
                await gateway.report(release_id, 7, 0, "b1")  # new totals, no transition
            elif shown["totals"]["ok"] == 7 and shown["stage"] == "beta":
                await gateway.report(release_id, 1000, 0, "b2")
            elif shown["stage"] == "gray 0.25":
                await gateway.post(f"/v1/releases/{release_id}/rollback")
    assert (stages[0], stages[-1]) == ("beta", "rolled_back")
    assert "gray 0.25" in stages
    assert executions[-1] == 1007


@pytest.mark.asyncio
async def test_a_watched_release_shows_how_many_devices_its_beta_has_found(gateway: Gateway) -> None:
    release_id = str((await gateway.post("/v1/releases", {**BODY, "beta": 2})).json()["id"])
    await gateway.world.reached(release_id, "beta")
    reasons = []
    async with (
        _served(gateway.app) as url,
        httpx.AsyncClient(base_url=url, headers=gateway.as_anna) as client,
        client.stream("GET", f"/v1/releases/{release_id}/stream", timeout=20) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                shown = json.loads(line.removeprefix("data:"))
                reasons.append(shown["reason"])
                assert "beta_found" not in shown
                if shown["request"]["beta"] == 2 and shown["beta_devices"]:
                    break
                await gateway.check_in(f"d{len(reasons)}")
    assert [reason[reason.find("(") : reason.find(")")] for reason in reasons] == ["(0 of 2 found", "(1 of 2 found", ""]
    listed = (await gateway.get("/v1/releases")).json()
    assert [one["reason"] for one in listed] == [""]


def test_errors_have_fitting_statuses() -> None:
    assert error_status(ConfigError("x")) == 422
    assert error_status(EngineError("x")) == 500
    assert error_status(AccessError(403, "x")) == 403


@pytest.mark.asyncio
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer other"}, {"Authorization": "Basic of-a-device"}])
async def test_reports_are_devices_own(gateway: Gateway, headers: dict[str, str]) -> None:
    body = OutcomeBatch("d1", "b1", ()).to_json()
    refused = await gateway.client.post("/v1/outcomes", json=body, headers=headers)
    assert (refused.status_code, refused.json()["type"]) == (401, "AccessError")
    other = await gateway.client.post("/v1/outcomes", json=body, headers={DEVICE_HEADER: "d2"})
    assert other.status_code == 403
    assert "'d1'" in other.json()["error"]
    assert (await gateway.client.post("/v1/outcomes", json=body, headers=AS_DEVICE)).status_code == 204


@pytest.mark.asyncio
async def test_the_evidence_of_the_gate_is_shown(gateway: Gateway) -> None:
    release_id = await _in_beta(gateway)
    await gateway.report(release_id, 7, 0, "b1")
    shown = (await gateway.get(f"/v1/releases/{release_id}/evidence")).json()
    assert shown["new"] == {"devices": 1, "broken": 0, "runs": 7, "failed": 0.0, "waiting": 1, "hindered": 0}
    assert [test["test"] for test in shown["rejects"]] == ["failed runs", "broken devices"]
    assert all(test["value"] < test["boundary"] for test in [*shown["rejects"], *shown["accepts"]])
    await gateway.post(f"/v1/releases/{release_id}/rollback")
    await gateway.world.service.settled()
    after = (await gateway.get(f"/v1/releases/{release_id}/evidence")).json()
    assert (after["stage"], after["new"]) == (shown["stage"], shown["new"])  # evidence stays for those who ask why
    assert (await gateway.get("/v1/releases/none/evidence")).status_code == 404
    assert (await gateway.client.get(f"/v1/releases/{release_id}/evidence")).status_code == 401


@pytest.mark.asyncio
async def test_a_release_has_guards_and_a_wrong_one_is_refused_by_name(gateway: Gateway) -> None:
    gate = {"guards": ["latency_ms<1.2x", "confidence > 0.6"], "device_silence_s": 3600}
    created = (await gateway.post("/v1/releases", {**BODY, "gate": gate})).json()
    assert created["request"]["gate"]["guards"] == ["latency_ms < 1.2x", "confidence > 0.6"]
    wrong = await gateway.post("/v1/releases", {**BODY, "version": "v2", "gate": {"guards": ["latency_ms < 1x"]}})
    assert 400 <= wrong.status_code < 500
    assert "guard 'latency_ms < 1x': 1x is not above 1x: an equal version would be outside of it" in wrong.text
