"""Pulls of an agent in content codings over HTTP: few bytes, links that drop, and forms that are wrong."""

import array
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.responses import Response

from tests.sim.agent_device import TASK, Device, assert_tidy
from tests.sim.cloud_files import CloudFiles, sha256_of
from walle.deploy.agent.fetch import FetchError, HttpFetcher
from walle.deploy.agent.installed import InstalledTasks
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.coded_files import CodedFiles
from walle.deploy.shared_files.folder_store import FolderStore
from walle.protocol import Directive, Envelope, Manifest

OLD = random.Random(1).randbytes(400_000)
NEW = OLD[:200_000] + random.Random(2).randbytes(40_000) + OLD[200_000:]
CODE = b"code of a version" * 300


class Site:
    """A CDN with coded files in front of a `CloudFiles`. `asked` lists [range, coding, bytes sent] of the model."""

    def __init__(self, folder: Path, model: bytes = NEW) -> None:
        self._sha256 = sha256_of(model)
        self.cloud = CloudFiles()
        self.store = FolderStore(folder / "files")
        self.coded_folder = folder / "coded"
        self.coded = CodedFiles(self.coded_folder, self.store)
        self.asked: list[list[Any]] = []
        self.cut_after: list[int] = []  # bytes of the model's next answers, after which the link drops
        self._manifests: list[Manifest] = []

    def publish(self, version: str, model: bytes) -> Directive:
        directive = self.cloud.publish(TASK, version, {"main.pyc": CODE + version.encode(), "model": model})
        for data in self.cloud.blobs.values():
            self.store.put(data)
        manifest = Manifest.from_bytes(Envelope.from_bytes(self.cloud.blobs[directive.manifest]).payload)
        self.coded.make(manifest.files, [one.files for one in self._manifests])
        self._manifests.append(manifest)
        return directive

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/trust/"):
            await Response(self.cloud.trust[scope["path"].removeprefix("/trust/")])(scope, receive, send)
            return None
        inner = cdn_app(self.store, self.coded)
        if not scope["path"].endswith(self._sha256):
            return await inner(scope, receive, send)
        headers = dict(scope["headers"])
        note = [headers.get(b"range", b"").decode(), "", 0]
        self.asked.append(note)
        stop = self.cut_after.pop(0) if self.cut_after else None

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                note[1] = dict(message["headers"]).get(b"content-encoding", b"").decode()
            elif stop is not None and message.get("body"):
                await send({**message, "body": message["body"][:stop], "more_body": True})
                note[2] += stop
                raise ConnectionResetError
            note[2] += len(message.get("body", b""))
            await send(message)

        with contextlib.suppress(ConnectionResetError):
            await inner(scope, receive, noted)
        return None


@contextlib.asynccontextmanager
async def _device(site: Site, folder: Path, difference_room: int = 10**8) -> AsyncIterator[Device]:
    config = uvicorn.Config(site.app, port=0, log_level="critical", lifespan="off", ws="none", interface="asgi3")
    server, sockets = uvicorn.Server(config), [config.bind_socket()]
    serving = asyncio.create_task(server.serve(sockets))
    try:
        base_url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
            device = Device(folder, site.cloud, fetcher=HttpFetcher(client), difference_room=difference_room)
            await device.agent.start()
            yield device
    finally:
        server.should_exit = True
        await serving


@pytest.mark.asyncio
async def test_a_new_version_of_a_model_travels_as_a_difference(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with _device(site, tmp_path / "agent") as device:
        await device.do(site.publish("v1", OLD))
        await device.do(site.publish("v2", NEW))
        ((asked, coding, sent_bytes),) = site.asked
        assert (asked, coding) == ("", "dcz")
        assert 40_000 < sent_bytes < 41_000
        assert device.running[TASK]["model"] == NEW
        assert_tidy(device.folder, 2)


@pytest.mark.asyncio
async def test_nudged_weights_travel_as_an_exclusive_or_to_a_device_with_little_memory_too(tmp_path: Path) -> None:
    rng = random.Random(4)
    old = array.array("f", (rng.gauss(0, 1) for _ in range(len(NEW) // 4)))
    new = array.array("f", (weight * (1 + 1e-4 * rng.gauss(0, 1)) for weight in old)).tobytes()
    site = Site(tmp_path, model=new)
    async with _device(site, tmp_path / "agent", difference_room=0) as device:
        await device.do(site.publish("v1", old.tobytes()))
        directive = site.publish("v2", new)
        site.cut_after = [10_000]
        assert isinstance(await device.refuse(directive), FetchError)
        await device.wait_for_retry()
        await device.do(directive)
        assert [(asked, coding) for asked, coding, _ in site.asked] == [
            ("", "walle-xor"),
            ("bytes=10000-", "walle-xor"),
        ]
        assert sum(sent_bytes for _, _, sent_bytes in site.asked) < 0.6 * len(new)
        assert device.running[TASK]["model"] == new
        assert_tidy(device.folder, 2)


@pytest.mark.asyncio
async def test_a_difference_continues_after_a_dropped_link_and_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with _device(site, tmp_path / "agent") as device:
        await device.do(site.publish("v1", OLD))
        directive = site.publish("v2", NEW)
        site.cut_after = [10_000, 10_000]
        assert isinstance(await device.refuse(directive), FetchError)
        await device.wait_for_retry()
        assert isinstance(await device.refuse(directive), FetchError)
    async with _device(site, tmp_path / "agent") as device:
        await device.do(directive)
        assert device.running[TASK]["model"] == NEW
        assert_tidy(device.folder, 2)
    assert [asked for asked, _, _ in site.asked] == ["", "bytes=10000-", "bytes=20000-"]
    assert sum(sent_bytes for _, _, sent_bytes in site.asked) < 41_000


@pytest.mark.asyncio
async def test_a_partial_difference_does_not_keep_the_file_from_a_nearly_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    async with _device(site, tmp_path / "agent") as device:
        await device.do(site.publish("v1", OLD))
        directive = site.publish("v2", NEW)
        room = len(NEW) + 15_000

        def free_bytes(installed: InstalledTasks) -> int:
            staged = installed.folder.glob("*/staging/**/*")
            return room - sum(path.stat().st_size for path in staged if path.is_file())

        monkeypatch.setattr(InstalledTasks, "free_bytes", free_bytes)
        site.cut_after = [30_000]
        assert isinstance(await device.refuse(directive), FetchError)
        await device.wait_for_retry()
        await device.do(directive)
        assert device.running[TASK]["model"] == NEW
        assert_tidy(device.folder, 2)


def _flip(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


@pytest.mark.asyncio
@pytest.mark.parametrize("spoil", [_flip, lambda data: data[:-100], lambda _: b"", lambda data: data + b"\0" * 10**6])
async def test_a_wrong_difference_costs_a_whole_pull_and_nothing_else(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    site = Site(tmp_path)
    async with _device(site, tmp_path / "agent") as device:
        await device.do(site.publish("v1", OLD))
        directive = site.publish("v2", NEW)
        (form,) = site.coded_folder.rglob("*.dcz")
        form.chmod(0o644)
        form.write_bytes(spoil(form.read_bytes()))
        await device.do(directive)
        assert [coding for _, coding, _ in site.asked] == ["dcz", ""]
        assert device.running[TASK]["model"] == NEW
        assert_tidy(device.folder, 2)


@pytest.mark.asyncio
async def test_a_difference_to_a_file_that_was_damaged_on_the_device_costs_a_whole_pull(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with _device(site, tmp_path / "agent") as device:
        await device.do(site.publish("v1", OLD))
        (model,) = (tmp_path / "agent").rglob("files/model")
        model.chmod(0o644)
        model.write_bytes(_flip(OLD))
        await device.do(site.publish("v2", NEW))
        assert [coding for _, coding, _ in site.asked] == ["dcz", ""]
        assert device.running[TASK]["model"] == NEW


@pytest.mark.asyncio
async def test_a_device_with_little_memory_asks_for_no_difference(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with _device(site, tmp_path / "agent", difference_room=len(OLD) + len(NEW) - 1) as device:
        await device.do(site.publish("v1", OLD))
        await device.do(site.publish("v2", NEW))
        assert [coding for _, coding, _ in site.asked] == [""]
        assert device.running[TASK]["model"] == NEW
