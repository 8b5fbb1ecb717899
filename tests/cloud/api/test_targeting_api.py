"""Explanation and preview over HTTP, on real services and a registry of devices."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from tests.sim.release_world import ReleaseWorld
from walle.access.access import Access, Role
from walle.base.clock import ManualClock
from walle.cloud.api.releases import install_error_handlers, release_router
from walle.cloud.api.targeting import WEEK_S, Targeting, targeting_router
from walle.deploy.fleet.registry import DeviceRegistry
from walle.deploy.monitor.service import MonitorService
from walle.deploy.policies import rule_budget
from walle.deploy.releases import conflicts
from walle.deploy.releases.journal import Journal
from walle.protocol import Attribute, Profile


class Cloud:
    def __init__(self, world: ReleaseWorld, clock: ManualClock, registry: DeviceRegistry) -> None:
        self.world = world
        self.clock = clock
        access = Access()
        self.tokens = {
            "anna": access.issue("anna", {"shop": Role.RELEASER}),
            "bert": access.issue("bert", {"*": Role.READER}),
            "cleo": access.issue("cleo", {"bank": Role.READER}),
            "dora": access.issue("dora", {"*": Role.METRICS}),
        }
        self.devices = MonitorService(world.journal, clock, devices=registry)
        app = FastAPI()
        app.include_router(release_router(world.service, world.monitor, access))
        targeting = Targeting(world.service, self.devices, lambda: world.answerer.table, clock=clock)
        app.include_router(targeting_router(targeting, access))
        install_error_handlers(app)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cloud")

    async def ask(self, method: str, path: str, body: Any = None, who: str = "anna") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        answer = await self.client.request(method, path, json=body, headers=headers)
        return answer.status_code, answer.json()

    async def preview(self, who: str = "anna", **body: Any) -> tuple[int, Any]:
        return await self.ask("POST", "/v1/preview", {"scenario": "shop", **body}, who)

    async def see(self, device_id: str, app_version: str = "10.1", **attributes: Attribute) -> None:
        profile = Profile(device_id, app_version, attributes, {"shop/ipv": "v1"} if device_id == "d0" else {})
        await self.devices.note_profiles({device_id: profile.to_header().encode()})

    async def full(self, version: str, **policy: Any) -> str:
        """Release a version through all its states."""
        request = {"scenario": "shop", "task": "ipv", "version": version, "beta": 0, "steps": [1.0], "policy": policy}
        request["gate"] = {"trial_runs": 10_000}  # one device decides
        status, release = await self.ask("POST", "/v1/releases", request)
        assert status == 201, release
        await self.world.reached(release["id"], "gray 1.0")
        await self.world.report(release["id"], 2000, 0)
        assert (await self.world.service.get(release["id"])).stage == "full"
        return str(release["id"])


@pytest_asyncio.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    clock = ManualClock()
    async with (
        Journal.in_file(tmp_path / "j.sqlite") as journal,
        DeviceRegistry.in_file(tmp_path / "d.db", clock, max_devices=20, flush_s=1e9) as known,
    ):
        cloud = Cloud(ReleaseWorld(tmp_path, clock, journal), clock, known)
        async with cloud.world.service, cloud.client:
            yield cloud


@pytest.mark.asyncio
async def test_a_costly_rule_is_refused_and_a_token_that_asks_without_end_is_slowed(cloud: Cloud) -> None:
    await cloud.see("d1", os="android")
    status, answer = await cloud.preview(rule="app_version.matches('(.{100}){10}')", who="bert")
    assert (status, answer["type"]) == (422, "RuleError")
    assert "instructions" in answer["error"]
    asked = 0
    while (status := (await cloud.preview(rule="os == 'android'", who="bert"))[0]) == 200:
        asked += 1
        assert asked < 1_000
    assert status == 429
    assert (await cloud.preview(rule="os == 'android'", who="anna"))[0] == 200
    await cloud.clock.advance(30)
    assert (await cloud.preview(rule="os == 'android'", who="bert"))[0] == 200


@pytest.mark.asyncio
async def test_a_preview_counts_devices_of_the_last_week_and_the_releases_that_it_meets(cloud: Cloud) -> None:
    await cloud.see("old", os="android", memory_mb=8192)
    await cloud.clock.advance(WEEK_S + 1)
    for number in range(10):
        await cloud.see(f"d{number}", os=("android", "ios")[number % 2], memory_mb=1024 * number)
    await cloud.see("silent")
    everyone = await cloud.full("v1")
    group = await cloud.full("v2", rule="os == 'ios'")
    status, found = await cloud.preview(rule="os == 'android' && memory_mb >= 4096")
    assert status == 200
    assert (found["seen"], found["reached"], found["is_full"], found["is_partial"]) == (11, 3, False, False)
    assert found["terms"] == [
        {"term": 'os == "android"', "reached": 5},
        {"term": "memory_mb >= 4096", "reached": 6},
    ]
    assert found["policy"]["columns"] == {"memory_mb": "int", "os": "string"}
    (met,) = found["meets"]  # no device is of both groups
    assert (met["release"], met["devices"], met["stage"], met["goes_first"]) == (everyone, 3, "full", True)
    _, found = await cloud.preview(app_version=">=10")
    assert [(one["release"], one["devices"], one["goes_first"]) for one in found["meets"]] == [
        (group, 5, False),
        (everyone, 11, True),
    ]
    assert (await cloud.preview(task="other", app_version=">=10"))[1]["meets"] == []
    assert (await cloud.preview(seen_within_s=2 * WEEK_S))[1]["seen"] == 12
    for number in range(30):
        await cloud.see(f"more-{number}")
    _, found = await cloud.preview()
    assert (found["seen"], found["is_full"]) == (20, True)


@pytest.mark.asyncio
async def test_a_rule_that_is_refused_is_refused_with_its_place_before_a_release_is_made(cloud: Cloud) -> None:
    status, answer = await cloud.preview(rule="os == 'a' && ram > 3")
    assert (status, answer["type"]) == (422, "RuleError")
    assert "column 14: 'ram' is not a declared attribute; declared are: app_version, memory_mb, os" in answer["error"]
    body = {"scenario": "shop", "task": "ipv", "version": "v1", "policy": {"rule": "os == 3"}}
    status, answer = await cloud.ask("POST", "/v1/releases", body)
    assert (status, answer["type"]) == (422, "RuleError")
    assert (await cloud.ask("GET", "/v1/releases"))[1] == []


@pytest.mark.asyncio
async def test_a_release_keeps_the_types_that_were_declared_when_it_was_made(cloud: Cloud) -> None:
    release_id = await cloud.full("v1", rule="memory_mb >= 4096")
    cloud.world.schema = {}
    assert (await cloud.preview(rule="memory_mb >= 4096"))[0] == 422
    (row,) = cloud.world.answerer.table.rows.values()
    assert row.entries[0].directive.release == release_id
    answers = [cloud.world.answerer.table.answer(Profile("d", "1", {"memory_mb": mb})) for mb in (1024, 4096)]
    assert [len(answer) for answer in answers] == [0, 1]


@pytest.mark.asyncio
async def test_a_device_is_explained_by_its_latest_profile(cloud: Cloud) -> None:
    await cloud.full("v1")
    await cloud.full("v2", rule="os == 'ios'")
    await cloud.see("d0", os="android")
    status, found = await cloud.ask("GET", "/v1/explain/d0")
    assert (status, found["device_id"], found["app_version"]) == (200, "d0", "10.1")
    (task,) = found["tasks"]
    assert (task["task"], task["has"], task["gets"]) == ("shop/ipv", "v1", "v1")
    assert [(one["release"], one["applies"]) for one in task["releases"]] == [("ipv-v2-2", False), ("ipv-v1-1", True)]
    assert task["releases"][0]["terms"] == [{"term": 'os == "ios"', "holds": False, "device": 'os is "android"'}]
    await cloud.see("d0", os="ios")
    (task,) = (await cloud.ask("GET", "/v1/explain/d0", who="bert"))[1]["tasks"]
    assert (task["has"], task["gets"]) == ("v1", "v2")
    assert (await cloud.ask("GET", "/v1/explain/d0?task=shop/other"))[1]["tasks"] == []


@pytest.mark.asyncio
async def test_a_person_without_the_role_reader_learns_nothing_of_a_scenario(cloud: Cloud) -> None:
    await cloud.full("v1")
    await cloud.see("d0")
    await cloud.see("d1")
    assert (await cloud.preview("cleo"))[0] == 403
    assert (await cloud.ask("GET", "/v1/explain/d0", who="dora"))[0] == 403
    unknown = await cloud.ask("GET", "/v1/explain/d1", who="cleo")
    assert unknown[0] == 404
    assert (await cloud.ask("GET", "/v1/explain/d0", who="cleo"))[0] == 404
    assert (await cloud.ask("GET", "/v1/explain/d1"))[0] == 404  # the device has no task of the scenario
    assert (await cloud.ask("GET", "/v1/explain/d1", who="bert"))[0] == 200


@pytest.mark.asyncio
async def test_releases_for_other_devices_are_under_way_at_once_and_for_the_same_ones_not(cloud: Cloud) -> None:
    def body(version: str, **policy: Any) -> dict[str, Any]:
        return {"scenario": "shop", "task": "ipv", "version": version, "policy": policy, "start": False}

    assert (await cloud.ask("POST", "/v1/releases", body("v1")))[0] == 201
    assert (await cloud.ask("POST", "/v1/releases", body("v2", rule="os == 'ios'")))[0] == 201
    assert (await cloud.ask("POST", "/v1/releases", body("v3", devices=["d3", "d1", "d3"])))[0] == 201
    for again in (body("v3"), body("v3", rule=" os == 'ios' "), body("v2", devices=["d1", "d3"])):
        status, answer = await cloud.ask("POST", "/v1/releases", again)
        assert (status, answer["type"]) == (409, "TaskBusyError")
    for number in range(13):
        assert (await cloud.ask("POST", "/v1/releases", body("v1", app_version=f">={number}")))[0] == 201
    status, answer = await cloud.ask("POST", "/v1/releases", body("v1", app_version=">=99"))
    assert (status, "has 16 releases under way, the most at once" in answer["error"]) == (409, True)


@pytest.mark.asyncio
async def test_a_task_has_versions_for_a_bounded_number_of_groups(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "MAX_GROUPS_OF_TASK", 2)
    first = await cloud.full("v1", devices=["d1"])
    await cloud.full("v1", devices=["d2"])
    body = {"scenario": "shop", "task": "ipv", "version": "v2", "beta": 0, "start": False}
    body["policy"] = {"devices": ["d3"]}
    status, answer = await cloud.ask("POST", "/v1/releases", body)
    assert (status, answer["type"]) == (409, "TooManyGroupsError")
    assert (await cloud.ask("POST", "/v1/releases", {**body, "policy": {"devices": ["d2"]}}))[
        0
    ] == 201  # a newer version
    await cloud.ask("POST", f"/v1/releases/{first}/rollback")
    assert (await cloud.ask("POST", "/v1/releases", body))[0] == 201


@pytest.mark.asyncio
async def test_devices_of_a_group_are_no_beta_devices_of_a_release_for_all(cloud: Cloud) -> None:
    """They keep the version of their group, so that the gate would wait for their reports without end."""
    await cloud.full("v1")
    group = await cloud.full("v2", rule="os == 'ios'")
    for number, os in enumerate(["ios", "android", "ios", "android"]):
        profile = Profile(f"d{number}", "10", {"os": os})
        cloud.world.answerer.headers(profile.to_header().encode(), profile.device_id)
    body = {"scenario": "shop", "task": "ipv", "version": "v3", "beta": 2}
    _, release = await cloud.ask("POST", "/v1/releases", body)
    async for reached in cloud.world.service.watch(release["id"]):
        if reached.beta_devices:
            break
    assert reached.beta_devices == ("d3", "d1")
    assert (await cloud.world.service.get(group)).stage == "full"


@pytest.mark.asyncio
async def test_a_beta_that_waits_for_devices_says_so(cloud: Cloud) -> None:
    body = {"scenario": "shop", "task": "ipv", "version": "v3", "beta": 2}
    _, release = await cloud.ask("POST", "/v1/releases", body)
    await cloud.world.reached(release["id"], "beta")
    _, shown = await cloud.ask("GET", f"/v1/releases/{release['id']}")
    assert shown["reason"].startswith(
        "waiting for 2 more beta devices to check in (0 of 2 found), each one that this release is for"
    )


@pytest.mark.asyncio
async def test_the_patterns_of_a_scenarios_releases_have_a_budget_together(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(letters: str, version: str = "v2") -> dict[str, Any]:
        policy = {"rule": f"os.matches('(a|b)*a(a|b){{20}}{letters}')"}
        return {"scenario": "shop", "task": "ipv", "version": version, "beta": 0, "policy": policy, "start": False}

    monkeypatch.setattr(rule_budget, "MAX_INSTRUCTIONS", 500)
    first = await cloud.full("v1", rule=body("c")["policy"]["rule"])
    status, answer = await cloud.ask("POST", "/v1/releases", body("d"))
    assert status == 201
    status, answer = await cloud.ask("POST", "/v1/releases", body("e"))
    assert (status, answer["type"]) == (409, "PatternBudgetError")
    assert "500 in all is the limit. Remove or roll back some" in answer["error"]
    plain = {**body("e"), "policy": {"rule": "os == 'plan9'"}}
    assert (await cloud.ask("POST", "/v1/releases", plain))[0] == 201  # no patterns
    status, second = await cloud.ask("POST", "/v1/releases", body("c"))
    assert status == 201  # for the same devices as the first: equal rules count once
    for release in (first, second["id"]):
        await cloud.ask("POST", f"/v1/releases/{release}/rollback")
    assert (await cloud.ask("POST", "/v1/releases", body("e")))[0] == 201
