"""The gateway within its cloud: what it serves, why it does not start, and that it ends."""

import asyncio
import contextlib
import os
import re
import socket
import sqlite3
import ssl
import sys
import types
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import LIMIT_S, User, no_task_left, shop_cloud, until
from walle.base.clock import ManualClock
from walle.cloud import Cloud, CloudConfig, CloudHome, GatewayNode
from walle.deploy.policies.attribute_schema import attributes_of
from walle.deploy.policies.uploaded_attributes import UploadedAttributes
from walle.errors import ConfigError
from walle.pipeline.ingest.service import TunnelService
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.protocol import PROFILE_HEADER, TASKS_HEADER, Profile, directives_from_header


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"hello {request.query_params['name']}")


def _broken() -> Starlette:
    raise RuntimeError("no database")


@pytest.fixture
def business(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the business's."""
    module = types.ModuleType("business_app")
    vars(module).update(
        make=lambda: Starlette(routes=[Route("/hello", _hello)]), broken=_broken, none=lambda: None, no=5
    )
    monkeypatch.setitem(sys.modules, "business_app", module)


@pytest.mark.asyncio
async def test_an_answer_on_a_connection_that_is_kept_waits_for_no_acknowledgement(tmp_path: Path) -> None:
    """Head and body are two writes: with Nagle's algorithm the second waits up to 40 ms for the peer's kernel."""
    async with shop_cloud(tmp_path) as shop:
        await shop.http.get("/healthz")
        port = shop.http.base_url.port
        assert port is not None
        options = sent_at_once(port)
        assert options
        assert all(options)


def sent_at_once(port: int) -> list[int]:
    """Return TCP_NODELAY of each connection of this process that was accepted at the port."""
    found = list[int]()
    for entry in filter(Path.is_socket, Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as end:
            if end.family == socket.AF_INET and end.getsockname()[1] == port and end.getpeername():
                found.append(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return found


@pytest.mark.asyncio
@pytest.mark.usefixtures("business")
async def test_a_business_app_that_exists_already_gets_the_push_answer(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path, business_app="business_app:make") as shop:
        await shop.push("v1")
        await shop.release("v1", beta=["d0"])
        profile = Profile("d0", "10.1", {}, {}).to_header()
        headers = {PROFILE_HEADER: profile, **session_headers(shop.cloud.home, "d0")}
        async with asyncio.timeout(LIMIT_S):
            while True:
                response = await shop.http.get("/hello", params={"name": "d0"}, headers=headers)
                assert (response.status_code, response.text) == (200, "hello d0")
                if TASKS_HEADER in response.headers:
                    break
                await asyncio.sleep(0.005)
        (directive,) = directives_from_header(response.headers[TASKS_HEADER])
        assert (directive.task, directive.version) == ("shop/count", "v1")
        assert (await shop.http.get("/healthz")).json()["ok"]  # walle's own routes stay
        assert TASKS_HEADER not in (await shop.http.get("/hello", params={"name": "x"})).headers


@pytest.mark.asyncio
@pytest.mark.usefixtures("business")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:make", "module no_such_module is neither in"),
        ("business_app:nothing", "no attribute 'nothing'"),
        ("business_app", "cannot be made"),
        (":make", "cannot be made"),
        ("business_app:no", "not callable"),
        ("business_app:broken", "RuntimeError: no database"),
        ("business_app:none", "is not an ASGI app: the factory returned a NoneType"),
    ],
)
async def test_a_business_app_that_cannot_be_made_is_named_and_nothing_is_left(
    tmp_path: Path, spec: str, message: str
) -> None:
    with no_task_left(), pytest.raises(ConfigError, match=message) as failed:
        async with Cloud(CloudConfig(folder=tmp_path, business_app=spec)):
            raise AssertionError
    assert repr(spec) in str(failed.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("which", ["http_port", "tunnel_port"])
async def test_a_port_that_is_taken_is_named_and_nothing_is_left(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = CloudConfig(folder=tmp_path, **{which: port})
        with no_task_left(), pytest.raises(OSError, match=f"{port}.*in use|in use.*{port}"):
            async with Cloud(config):
                raise AssertionError
    async with Cloud(config) as cloud:  # the folder and the other port are free again
        assert str(port) in f"{cloud.address.url} {cloud.address.tunnel_port}"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "step",
    [
        "check_git",
        "GatewayCallers.start",
        "gateway_app",
        "GatewayUploads.opened",
        "GatewayTunnel.serving",
        "GatewayAnswers.read_uploaded",
        "GatewayWatches",
        "in_background",
        "guarded",
        "http_front",
        "watch_router",
        "check_routes",
        "serving_http",
        "public_url",
    ],
)
async def test_a_step_of_the_start_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(step)

    ports: dict[str, Any] = {"http_port": _free_port(), "tunnel_port": _free_port()}
    config = CloudConfig(folder=tmp_path, **ports)
    with monkeypatch.context() as patch, no_task_left():
        patch.setattr(f"walle.cloud.nodes.gateway.{step}", fail)
        with pytest.raises(RuntimeError, match=step):
            async with Cloud(config):
                raise AssertionError
    for port in ports.values():
        with socket.create_server(("127.0.0.1", port), reuse_port=False):
            pass


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def _certificate_shown(port: int) -> bytes | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown


@pytest.mark.asyncio
async def test_a_gateway_that_runs_for_months_shows_a_certificate_that_is_valid(tmp_path: Path) -> None:
    clock = ManualClock()
    cloud = Cloud(CloudConfig(folder=tmp_path))
    cloud.gateway = GatewayNode(cloud.config, clock=clock)
    with no_task_left():
        async with cloud:
            first = await _certificate_shown(cloud.address.tunnel_port)
            await clock.advance(61 * 86_400)

            async def is_renewed() -> bool:
                await clock.advance(86_400)
                return await _certificate_shown(cloud.address.tunnel_port) != first

            await until(is_renewed)


@pytest.mark.asyncio
async def test_a_cloud_that_is_cancelled_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with Cloud(CloudConfig(folder=tmp_path, scenarios=("shop",))):
            await asyncio.sleep(3600)

    async with asyncio.timeout(LIMIT_S):
        for turns in (1, 5, 10, 20, 40, 80):
            with no_task_left():
                running = asyncio.create_task(run())
                for _ in range(turns):
                    await asyncio.sleep(0.001)
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
    async with Cloud(CloudConfig(folder=tmp_path)) as cloud:
        assert cloud.home.repos.scenarios() == ["shop"]


@pytest.mark.asyncio
async def test_an_open_event_stream_does_not_keep_the_cloud_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walle.cloud.http.server._FAREWELL_S", 0.2)
    opened = asyncio.Event()

    async def watch(url: str, release_id: str) -> None:
        async with (
            httpx.AsyncClient(base_url=url) as http,
            http.stream("GET", f"/v1/releases/{release_id}/stream") as lines,
        ):
            async for _ in lines.aiter_lines():
                opened.set()

    async with shop_cloud(tmp_path, outlived=True) as shop:
        await shop.push("v1")
        release_id = await shop.release("v1", beta=["nobody"])
        watching = asyncio.create_task(watch(shop.cloud.address.url, release_id))
        await asyncio.wait_for(opened.wait(), LIMIT_S)
        began_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began_s < 10
    with contextlib.suppress(httpx.HTTPError):
        await watching


@pytest.mark.night
@pytest.mark.asyncio
async def test_uploads_that_the_disk_does_not_take_do_not_keep_the_cloud_from_closing_and_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    async with shop_cloud(tmp_path, outlived=True) as shop:
        ports: dict[str, Any] = {
            "http_port": int(shop.cloud.address.url.rpartition(":")[2]),
            "tunnel_port": shop.cloud.address.tunnel_port,
        }
        device = await shop.device(tmp_path / "d0").start()
        await shop.push("v1")
        await shop.release("v1", beta=["d0"])
        user = User(device)
        await user.until(lambda: bool(device.tasks))
        await device.settled()
        received = await shop.received()
        with monkeypatch.context() as patch:
            patch.setattr("walle.pipeline.ingest.sqlite.store.SqliteUploadStore._accept", full)
            patch.setattr("walle.cloud.http.server._FAREWELL_S", 0.2)
            patch.setattr("walle.pipeline.ingest.service._FAREWELL_S", 0.2)
            await user.visit()
            tunnel = shop.cloud.gateway._tunnel.service
            assert isinstance(tunnel, TunnelService)
            await until(lambda: tunnel.server.counts.uploads > received)
            async with asyncio.timeout(LIMIT_S):
                await shop.cloud.gateway.close()
        assert (await device.summary()).unsent == 1
    async with shop_cloud(tmp_path, outlived=True, **ports) as shop, asyncio.timeout(LIMIT_S):
        await device.settled()
        assert await shop.received() == received + 1
        await device.close()


@pytest.mark.asyncio
async def test_uploads_that_can_never_be_stored_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("walle.pipeline.ingest.service._FAREWELL_S", 0.2)  # for what is never stored, at the end
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:

        async def broken(*_: object) -> None:
            raise IngestError(tmp_path, "is damaged")

        monkeypatch.setattr(shop.cloud.gateway._uploads.store, "accept", broken)
        await device.tunnel.send("topic", 1)
        await until(lambda: "uploads are not stored" in caplog.text)
        assert "is damaged" in caplog.text
        health = await shop.http.get("/healthz")
        assert (health.status_code, health.json()["ok"]) == (503, False)
        assert "is damaged" in health.json()["tunnel"]["error"]


def test_a_home_is_made_once_with_complete_secrets_that_only_its_owner_reads(tmp_path: Path) -> None:
    home = CloudHome(tmp_path)
    home.prepare(("shop",))
    admin = home.admin_token
    again = CloudHome(tmp_path)
    again.prepare(("shop", "news"))
    assert again.admin_token == admin
    assert again.repos.scenarios() == ["news", "shop"]
    identity = again.access.identify(admin)
    assert identity is not None
    assert (tmp_path / "admin.token").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".*"))


def test_a_home_whose_making_was_cut_short_is_made_again(tmp_path: Path) -> None:
    CloudHome(tmp_path).prepare()
    (tmp_path / "access.toml").unlink()  # written after admin.token
    home = CloudHome(tmp_path)
    home.prepare()
    assert home.access.identify(home.admin_token) is not None


@pytest.mark.asyncio
async def test_the_page_of_the_api_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        page = (await shop.http.get("/docs")).text
        addresses = re.findall(r"(?:src|href)=\"([^\"]+)\"", page)
        assert len(addresses) == 3  # script, style sheet, icon
        for address in addresses:
            answer = await shop.http.get(address)
            assert address.startswith("/")
            assert (answer.status_code, len(answer.content) > 1000) == (200, True), address
        assert "/openapi.json" in page


@pytest.mark.asyncio
async def test_the_first_answer_knows_what_was_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each start of a cloud takes the versions of groups from devices that check in at once."""
    async with shop_cloud(tmp_path) as shop:
        (shop.cloud.home.folder / "attributes.toml").write_text('[uploaded]\nis_member = "bool"\n')
        row = b'{"device_id": "d0", "is_member": true}'
        assert (await shop.http.put("/v1/attributes/device_id", content=row)).status_code == 200

    async def never(*_: object) -> None:  # a disk that is slow
        await asyncio.Event().wait()

    monkeypatch.setattr(UploadedAttributes, "follow", never)
    async with shop_cloud(tmp_path) as shop:
        joined = shop.cloud.gateway._answers.answerer._uploaded.join(Profile("d0", "10.1"))
        assert attributes_of(joined)[1] == {"uploaded.is_member": True}
