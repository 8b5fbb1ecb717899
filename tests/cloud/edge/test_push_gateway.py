"""Several gateways: each of them has a pause or a rollback at once, and serves on when it is cut off."""

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.sim.device_session import session_headers
from tests.sim.release_world import RELEASE_SIGNER, table_of
from tests.sim.shop_cloud import LIMIT_S, shop_cloud, until
from walle.access.access import ANY_SCENARIO, Role
from walle.base.clock import ManualClock
from walle.base.device_identity import Revocations
from walle.client.cloud_client import CloudClient
from walle.cloud.api.sightings import MAX_SIGHTINGS
from walle.cloud.edge.push_gateway import PushGatewayConfig, push_gateway
from walle.cloud.edge.sighting_report import REPORT_AGAIN_S, SightingReport
from walle.cloud.edge.table_follower import LATE_S, TableFeedError, TableFollower
from walle.cloud.http.https import CertificateFiles
from walle.deploy.policies.attribute_schema import parse_schema
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.table_feed import TableFeed, feed_router
from walle.deploy.releases.table import ReleaseTable
from walle.protocol import (
    DEVICE_HEADER,
    PROFILE_HEADER,
    TASKS_HEADER,
    Profile,
    PushAnswer,
    ShortProfile,
    directives_from_header,
)


@contextlib.asynccontextmanager
async def _processes(
    url: str, token: str, folder: Path, count: int, options: tuple[str, ...] = ()
) -> AsyncIterator[list[str]]:
    """Run gateways in processes of their own; give their addresses."""
    file = folder / "token"
    file.write_text(token)
    file.chmod(0o600)
    command = ["-c", "from walle.cli import main; main()", "cloud", "gateway"]
    command += ["--url", url, "--token-file", str(file), "--json", *options]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE, env=environment)
        for _ in range(count)
    ]
    try:
        async with asyncio.timeout(LIMIT_S):
            lines = [await process.stdout.readline() for process in processes if process.stdout is not None]
        yield [json.loads(line)["url"] for line in lines]
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        for process in processes:
            assert await process.wait() == 0


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_three_gateways_have_a_pause_and_a_rollback_and_serve_on_without_the_cloud(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as undo:
        cloud_stack = await undo.enter_async_context(contextlib.AsyncExitStack())
        shop = await cloud_stack.enter_async_context(shop_cloud(tmp_path, outlived=True))
        token = shop.cloud.gateway._home.access.add("gateways", {ANY_SCENARIO: Role.READER})
        await shop.push("v1")
        release = await shop.release("v1", beta=["d0"])
        urls = await undo.enter_async_context(_processes(shop.cloud.address.url, token, tmp_path, 3))
        http = await undo.enter_async_context(httpx.AsyncClient(timeout=LIMIT_S))
        headers = session_headers(shop.cloud.home, "d0")

        async def version(url: str, have: str = "") -> str | None:
            """Return the version that a gateway sends to the device; None for nothing."""
            tasks = {"shop/count": have} if have else {}
            profile = Profile("d0", "10.1", {}, tasks).to_header()
            response = await http.post(f"{url}/v1/checkin", headers={**headers, PROFILE_HEADER: profile})
            assert response.status_code == 204, response.text
            found = directives_from_header(response.headers.get(TASKS_HEADER, "[]"))
            return found[0].version if found else None

        async def reach_all(is_there: Callable[[str | None], bool], have: str = "") -> float:
            """Return the seconds until each gateway answers so."""
            begin_s = time.monotonic()
            for url in urls:

                async def has(url: str = url) -> bool:
                    return is_there(await version(url, have))

                await until(has)
            return time.monotonic() - begin_s

        await reach_all(lambda found: found == "v1")
        assert await version(urls[0], "v1") is None
        await shop.releases.pause(release)
        paused_s = await reach_all(lambda found: found is None)
        await shop.releases.rollback(release)
        rolled_back_s = await reach_all(lambda found: found == "", have="v1")
        sys.stderr.write(f"seconds to the last of three gateways: pause {paused_s:.3f}, rollback {rolled_back_s:.3f}\n")
        assert (await http.post(f"{urls[0]}/v1/checkin")).status_code == 401
        assert (await http.get(f"{urls[0]}/v1/releases")).status_code in (401, 404)
        assert (await http.get(f"{urls[0]}/healthz")).json()["ok"]
        await cloud_stack.aclose()

        async def says_so() -> bool:
            return "why" in (await http.get(f"{urls[0]}/healthz")).json()

        await until(says_so)
        assert await version(urls[0], "v1") == ""  # the last table decides


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_a_gateway_reports_its_devices_and_its_metrics_and_keeps_to_its_bytes(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, httpx.AsyncClient(timeout=LIMIT_S) as http:
        access = shop.cloud.gateway._home.access
        token = access.add("gateways", {ANY_SCENARIO: Role.READER})
        (tmp_path / "metrics").write_text("for-prometheus-1234567890")
        await shop.push("v1")
        await shop.release("v1", beta=["d0", "d1"])
        options: tuple[str, ...] = ("--pull-mb-s", "0.000001", "--metrics-token-file", str(tmp_path / "metrics"))
        options += ("--trust-proxy", "127.0.0.0/8")
        async with _processes(shop.cloud.address.url, token, tmp_path, 1, options) as (url,):

            async def answer(device_id: str) -> PushAnswer:
                profile = ShortProfile("10.1", {"colour": "red"}, [""]).to_header()
                headers = {**session_headers(shop.cloud.home, device_id), PROFILE_HEADER: profile}
                response = await http.post(f"{url}/v1/checkin", headers=headers)
                assert response.status_code == 204, response.text
                text = response.headers.get(TASKS_HEADER)
                return PushAnswer.from_header(text) if text else PushAnswer()

            async def has_directive() -> bool:
                return bool((await answer("d0")).directives)

            await until(has_directive)  # a pull may begin while there is anything in the bucket
            other = await answer("d1")
            assert (other.directives, other.wait_s) == ((), 900)  # the version has more than 900 bytes
            assert (await answer("d0")).directives, "what is under way is not charged twice"

            async def knows(device_id: str) -> bool:
                answer = await http.get(
                    f"{shop.cloud.address.url}/v1/devices/{device_id}", headers={"Authorization": f"Bearer {token}"}
                )
                return answer.status_code == 200 and answer.json()["attributes"] == {"colour": "red"}

            for device_id in ("d0", "d1"):
                await until(lambda device_id=device_id: knows(device_id))  # type: ignore[misc]
            assert set(shop.cloud.gateway._answers.answerer.recent(9, Policy())) == {"d0", "d1"}

            assert (await http.get(f"{url}/metrics")).status_code == 401
            wrong = {"Authorization": "Bearer for-prometheus"}
            assert (await http.get(f"{url}/metrics", headers=wrong)).status_code == 401
            for known in (token, "for-prometheus-1234567890"):
                page = await http.get(f"{url}/metrics", headers={"Authorization": f"Bearer {known}"})
                assert page.status_code == 200
            for line in ('walle_pulls_total{kind="admitted"} 1.0', 'walle_reported_devices_total{kind="reported"} 2.0'):
                assert line in page.text
            for name in ("walle_profiles_total", "walle_table_generation", "walle_http_connections"):
                assert name in page.text
            state = (await http.get(f"{url}/healthz")).json()
            assert (state["ok"], state["pulls"]["admitted"], state["sightings"]["lost"]) == (True, 1, 0)


@pytest.mark.asyncio
async def test_a_gateway_that_reports_devices_proves_each_by_its_session(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, httpx.AsyncClient(base_url=shop.cloud.address.url) as http:
        access = shop.cloud.gateway._home.access
        headers = {"Authorization": f"Bearer {access.add('gateways', {ANY_SCENARIO: Role.READER})}"}
        session = session_headers(shop.cloud.home, "d0")[DEVICE_HEADER]
        profile = Profile("d0", "10.1", {}).to_header()
        seen = [
            (session, profile),
            (session, Profile("d1", "10.1", {}).to_header()),
            (session[:-9] + "AAAAAAAAA", profile),
            (session, ShortProfile("10", {}, [""]).to_header()),
            (session, "{"),
            ("ö", profile),
        ]
        answer = await http.post("/v1/push-sightings", json={"seen": seen}, headers=headers)
        assert answer.json() == {"taken": 1, "refused": 5}
        assert shop.cloud.gateway._answers.answerer.recent(9, Policy()) == ("d0",)
        many = {"seen": [(session, profile)] * 501}
        assert (await http.post("/v1/push-sightings", json=many, headers=headers)).status_code in (413, 422)
        one = {"Authorization": f"Bearer {access.add('one', {'shop': Role.RELEASER})}"}
        for other in ({}, one):
            response = await http.post("/v1/push-sightings", json={"seen": []}, headers=other)
            assert response.status_code in (401, 403)


@pytest.mark.asyncio
async def test_devices_that_cannot_be_reported_are_counted_and_others_not_reported_twice() -> None:
    clock, answerer = ManualClock(), Answerer(table_of(1, ipv="v1"))
    posts: list[list[list[str]]] = []
    status = 200

    def take(request: httpx.Request) -> httpx.Response:
        posts.append(json.loads(request.content)["seen"])
        return httpx.Response(status, json={"taken": len(posts[-1]), "refused": 0})

    async with CloudClient("http://other", "t", transport=httpx.MockTransport(take)) as cloud:
        report = SightingReport(cloud, answerer, clock)
        identify = report.noting(lambda session: (session or b"").decode())

        async def check_in(devices: range, app_version: str = "10") -> None:
            for number in devices:
                profile = Profile(f"d{number}", app_version, {}).to_header().encode()
                answerer.headers(profile, identify(f"d{number}".encode()))
            await report.report()

        await check_in(range(3))
        await check_in(range(4))
        assert [[session for session, _ in post] for post in posts] == [["d0", "d1", "d2"], ["d3"]]
        await check_in(range(1), "11")
        await clock.advance(REPORT_AGAIN_S)
        await check_in(range(1), "11")
        assert len(posts) == 4
        await check_in(range(10, 10 + MAX_SIGHTINGS + 7))
        assert (len(posts[-1]), report.lost) == (MAX_SIGHTINGS, 7)
        status = 503
        await check_in(range(2, 6), "12")
        assert report.lost == 7 + 4
        assert "503" in str(report.health()["why"])
        answerer.headers(Profile("x", "1", {}).to_header().encode(), "x")  # the session was not noted
        await report.report()
        assert report.reported == 3 + 1 + 1 + 1 + MAX_SIGHTINGS
        status = 200
        del posts[:]
        await check_in(range(2, 6), "12")
        assert [[session for session, _ in post] for post in posts] == [["d2", "d3", "d4", "d5"]]


class _Feed:
    """A feed behind HTTP, which may be cut off."""

    def __init__(self, answerer: Answerer) -> None:
        self.feed = TableFeed(answerer, lambda: {"m": 7_000})
        self.feed.open(RELEASE_SIGNER.public_key, Revocations(3, {"d1": 2}))
        self.status = 200

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if not self.status:
            raise httpx.ConnectError("cut off")
        assert request.headers["Authorization"] == "Bearer t"
        if self.status != 200:
            return httpx.Response(self.status, json={"error": "no"})
        data = await self.feed.after(request.url.params["number"], float(request.url.params["wait_s"]))
        return httpx.Response(204) if data is None else httpx.Response(200, content=data)


@pytest.mark.asyncio
async def test_a_gateway_that_is_cut_off_serves_its_table_and_says_so() -> None:
    clock, other, answerer = ManualClock(), Answerer(), Answerer()
    server = _Feed(other)
    server.feed.swap(table_of(1, ipv="v1"))
    async with CloudClient("http://other", "t", transport=httpx.MockTransport(server)) as cloud:
        follower = TableFollower(cloud, answerer, clock)
        assert not follower.health()["ok"]
        await follower.ask(0.0)
        assert answerer.table.rows == other.table.rows
        assert (follower.health()["ok"], follower.revocations.version) == (True, 3)
        (directive,) = (one.entries[0].directive for one in answerer.table.rows.values())
        sizes = [follower.size_of(dataclasses.replace(directive, manifest=one)) for one in ("m", "n")]
        assert sizes == [7_000, directive.size_bytes]
        await follower.ask(0.0)  # nothing is new
        asking = asyncio.create_task(follower.ask(20.0))
        await asyncio.sleep(0.01)
        server.feed.swap(table_of(2, ipv="v2"))
        await asking
        assert answerer.table.generation == 2
        for server.status, why in ((0, "does not answer: cut off"), (403, "403 no")):
            with pytest.raises(TableFeedError, match=why):
                await follower.ask(0.0)
        following = asyncio.create_task(follower.follow())
        await clock.advance(LATE_S + 1)
        state = follower.health()
        assert (state["ok"], state["generation"]) == (False, 2)
        assert "403 no" in state["why"]
        server.status = 200
        server.feed.swap(table_of(3, ipv="v1"))
        await clock.advance(2.0)
        await until(lambda: answerer.table.generation == 3)
        assert follower.health()["ok"]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_follower_says_that_the_other_gateway_is_closing() -> None:
    feed, app = TableFeed(Answerer()), FastAPI()
    app.include_router(feed_router(feed, lambda _: None))
    feed.close()
    async with CloudClient("http://other", "t", transport=httpx.ASGITransport(app)) as cloud:
        follower = TableFollower(cloud, Answerer(), ManualClock())
        with pytest.raises(TableFeedError, match="503 this gateway is closing; try again"):
            await follower.ask(0.0)


@pytest.mark.asyncio
async def test_tasks_by_uploaded_attributes_are_left_to_the_cloud() -> None:
    """Without the tables a device seems to be of no group: its version would be taken from it, and given back."""
    gold = Policy(rule="uploaded.group == 'gold'").typed(parse_schema('[uploaded]\ngroup = "string"\n', "a"))
    (row,) = table_of(1, ipv="v2").rows.values()
    of_group = dataclasses.replace(row, entries=(dataclasses.replace(row.entries[0], policy=gold),))
    other, answerer = Answerer(), Answerer()
    server = _Feed(other)
    server.feed.swap(ReleaseTable(1, [of_group, *table_of(1, cv="v1").rows.values()]))
    async with CloudClient("http://other", "t", transport=httpx.MockTransport(server)) as cloud:
        follower = TableFollower(cloud, answerer, ManualClock())
        await follower.ask(0.0)
    assert follower.health()["tasks_left_out"] == 1
    profile = Profile("d0", "10.1", {}, {"shop/ipv": "v2", "shop/cv": "v1"}).to_header().encode()
    assert answerer.headers(profile, "d0") == ()


@pytest.mark.asyncio
async def test_the_table_of_a_restored_cloud_is_taken_whatever_its_generation() -> None:
    answerer = Answerer()
    clouds = [_Feed(Answerer()), _Feed(Answerer())]
    clouds[0].feed.swap(table_of(9, ipv="v2"))
    clouds[1].feed.swap(table_of(2, ipv="v1"))

    async def ask(request: httpx.Request) -> httpx.Response:
        return await clouds[0](request)

    async with CloudClient("http://other", "t", transport=httpx.MockTransport(ask)) as cloud:
        follower = TableFollower(cloud, answerer, ManualClock())
        await follower.ask(0.0)
        del clouds[0]
        await follower.ask(0.0)
    profile = Profile("d0", "10.1", {}, {"shop/ipv": "v1"}).to_header().encode()
    assert (answerer.table.generation, answerer.headers(profile, "d0")) == (2, ())


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{",
        b'{"table":{}}',
        b'{"table":7,"session_key":"x","number":1}',
        b'{"table":{"generation":2,"rows":[],"timestamp":""},"session_key":"%s","revoked":{"version":1,"lowest":[]}}'
        % (b"00" * 32),
    ],
)
async def test_a_table_that_cannot_be_read_changes_nothing(content: bytes) -> None:
    answerer = Answerer(table_of(1, ipv="v1"))
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    async with CloudClient("http://other", "t", transport=transport) as cloud:
        with pytest.raises(TableFeedError, match="cannot be read"):
            await TableFollower(cloud, answerer, ManualClock()).ask(0.0)
    assert answerer.table.generation == 1


@pytest.mark.asyncio
async def test_its_certificate_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[CertificateFiles] = []

    def renew(files: CertificateFiles) -> bool:
        looks.append(files)
        return True

    monkeypatch.setattr(CertificateFiles, "renew", renew)
    clock = ManualClock()
    async with shop_cloud(tmp_path) as shop:
        token = shop.cloud.gateway._home.access.add("gateways", {ANY_SCENARIO: Role.READER})
        pem = shop.cloud.home.authority().server_path
        async with push_gateway(
            PushGatewayConfig(url=shop.cloud.address.url, token=token, tls_cert=pem, tls_key=pem), clock=clock
        ):
            await clock.advance(31.0)
            await until(lambda: len(looks) == 1)


@pytest.mark.asyncio
async def test_a_gateway_without_a_cloud_does_not_start() -> None:
    with pytest.raises(TableFeedError, match="does not answer"):
        async with push_gateway(PushGatewayConfig(url="http://127.0.0.1:1", token="t")):
            pass
