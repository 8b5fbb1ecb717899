"""Pulls of the agent that are interrupted, meet one another, or go over HTTP."""

import asyncio
import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.responses import Response

from tests.sim.agent_device import (
    FILES,
    MODEL,
    TASK,
    Device,
    WatchedClock,
    assert_tidy,
    names_in,
    publish,
    start,
)
from tests.sim.cloud_files import NEVER_S, CloudFiles, sha256_of
from tests.sim.power_cut import FaultyDisk
from walle.deploy.agent.agent_errors import PullDelayedError, SupersededError
from walle.deploy.agent.fetch import FetchError, HttpFetcher
from walle.deploy.agent.installed import InstalledTasks
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.folder_store import FolderStore
from walle.protocol import FailureClass, OutcomeKind


@pytest.mark.asyncio
async def test_a_dropped_link_does_not_reject_and_the_next_try_resumes_even_after_a_restart(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    model = sha256_of(MODEL)
    cloud.drops[model] = 2000
    assert isinstance(await device.refuse(directive), FetchError)
    cloud.drops[model] = 4000
    await device.wait_for_retry()
    assert isinstance(await device.refuse(directive), FetchError)
    assert device.outcomes() == []
    device = await start(device.folder, cloud)
    await device.do(directive)
    assert [offset for sha256, offset in cloud.pulls if sha256 == model] == [0, 2000, 4000]
    assert device.running[TASK] == FILES["v1"]
    assert_tidy(device.folder, 1)


@pytest.mark.asyncio
async def test_a_spoiled_piece_is_pulled_again_from_its_start(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    cloud.drops[sha256_of(MODEL)] = 2000
    await device.refuse(directive)
    (piece,) = device.folder.rglob(sha256_of(MODEL))
    piece.write_bytes(b"\0" * piece.stat().st_size)
    await device.wait_for_retry()
    await device.do(directive)
    assert device.running[TASK] == FILES["v1"]


@pytest.mark.asyncio
async def test_a_half_pulled_version_is_dropped_when_another_is_asked_for_or_after_a_day(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    for version in ("v1", "v2"):
        directive = publish(cloud, version)
        cloud.drops[sha256_of(FILES[version]["main.pyc"])] = 1000
        await device.refuse(directive)
        assert names_in(device.folder, "*/staging/*") == [directive.manifest]
    late = Device(device.folder, cloud)
    late.clock = WatchedClock(NEVER_S)
    late.agent._active._clock = late.clock
    await late.agent.start()
    assert_tidy(device.folder, 0)


@pytest.mark.asyncio
async def test_a_pull_that_failed_waits_for_longer_each_time_and_another_directive_does_not(tmp_path: Path) -> None:
    device = await start(tmp_path / "agent", cloud := CloudFiles())
    await device.do(publish(cloud, "v0"))
    directive, tries = publish(cloud, "v1"), 0
    cloud.offline = True
    for _ in range(1000):  # answers of ten seconds, a hundred a second
        tries += isinstance(await device.refuse(directive), FetchError)
        await device.clock.advance(0.01)
    assert 3 <= tries <= 30
    assert isinstance(await device.refuse(directive), PullDelayedError)
    outcomes = [(one.kind, one.version, one.failure_class) for one in device.outcomes()]
    assert outcomes == [
        (OutcomeKind.INSTALLED, "v0", FailureClass.VERSION),
        (OutcomeKind.REJECTED, "v1", FailureClass.NETWORK),  # once, and not of the version
    ]
    cloud.offline = False
    await device.do(publish(cloud, "v2"))
    assert device.agent.tasks == {TASK: "v2"}


@pytest.mark.asyncio
async def test_a_pull_waits_as_long_as_the_store_asks_for(tmp_path: Path) -> None:
    cloud = CloudFiles()

    def answer(request: httpx.Request) -> httpx.Response:
        metadata = cloud.trust.get(request.url.path.removeprefix("/trust/"))
        if metadata is not None:
            return httpx.Response(200, stream=httpx.ByteStream(metadata))
        return httpx.Response(503, headers={"Retry-After": "120"})

    async with httpx.AsyncClient(base_url="http://cdn", transport=httpx.MockTransport(answer)) as client:
        device = Device(tmp_path / "agent", cloud, fetcher=HttpFetcher(client))
        await device.agent.start()
        directive = publish(cloud, "v1")
        assert isinstance(await device.refuse(directive), FetchError)
        await device.clock.advance(119.0)
        assert isinstance(await device.refuse(directive), PullDelayedError)
        await device.clock.advance(2.0)
        assert isinstance(await device.refuse(directive), FetchError)


@pytest.mark.asyncio
async def test_one_directive_in_two_calls_is_pulled_once(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    cloud.gate.clear()
    first = asyncio.create_task(device.agent.handle([directive], cloud.timestamp()))
    await cloud.waiting.wait()
    assert await device.agent.handle([directive, directive], cloud.timestamp()) == []
    cloud.gate.set()
    assert await first == []
    names = [sha256 for sha256, _ in cloud.pulls]
    assert len(names) == len(set(names)) == 3
    assert device.take_outcomes() == ["installed v1"]


@pytest.mark.asyncio
async def test_a_newer_directive_does_not_wait_for_a_pull_under_way(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    await device.do(first)
    cloud.gate.clear()
    cloud.waiting.clear()
    pulling = asyncio.create_task(device.agent.handle([second], cloud.timestamp()))
    await cloud.waiting.wait()
    await device.do(cloud.sign(first))
    (error,) = await pulling
    assert isinstance(error, SupersededError)
    assert device.agent.tasks == {TASK: "v1"}
    assert_tidy(device.folder, 1)


@pytest.mark.asyncio
async def test_a_failing_version_is_left_though_a_pull_is_under_way(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    await device.do(publish(cloud, "v1"))
    await device.do(publish(cloud, "v2"))
    third = publish(cloud, "v3")
    cloud.gate.clear()
    cloud.waiting.clear()
    pulling = asyncio.create_task(device.agent.handle([third], cloud.timestamp()))
    await cloud.waiting.wait()
    assert await device.agent.revert(TASK, "it raises")
    assert device.agent.tasks == {TASK: "v1"}
    assert isinstance((await pulling)[0], SupersededError)
    cloud.gate.set()
    await device.do(third)
    assert device.agent.tasks == {TASK: "v3"}


@pytest.mark.asyncio
async def test_closing_cancels_a_pull_which_continues_after_the_next_start(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = Device(tmp_path / "agent", cloud)
    first, second = publish(cloud, "v1"), publish(cloud, "v2")
    async with device.agent:
        await device.do(first)
        cloud.gate.clear()
        cloud.waiting.clear()
        pulling = asyncio.create_task(device.agent.handle([second], cloud.timestamp()))
        queued = asyncio.create_task(
            device.agent.handle([cloud.publish("other/task", "v1", FILES["v1"])], cloud.timestamp())
        )
        await cloud.waiting.wait()
        await asyncio.sleep(0)
    errors = [*await pulling, *await queued]
    assert [type(error) for error in errors] == [SupersededError, SupersededError]
    assert [str(error).rpartition(": ")[2] for error in errors] == ["the agent was closed"] * 2
    with pytest.raises(RuntimeError, match="is not started, or is closed"):
        await device.agent.handle([second], cloud.timestamp())
    assert device.outcomes()[-1].version == "v1"
    cloud.gate.set()
    async with device.agent:
        await device.do(second)
        assert device.agent.tasks == {TASK: "v2"}


@pytest.mark.asyncio
async def test_one_slow_task_does_not_hold_up_another(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    cloud.gate.clear()
    pulling = asyncio.create_task(device.agent.handle([publish(cloud, "v1")], cloud.timestamp()))
    await cloud.waiting.wait()
    await device.do(cloud.remove("other/task"))
    cloud.gate.set()
    assert await pulling == []


@pytest.mark.asyncio
async def test_a_pull_cancelled_at_any_step_leaves_no_work_and_a_complete_version(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    loop = asyncio.get_running_loop()
    await device.do(publish(cloud, "v1"))
    await device.do(publish(cloud, "v2"))
    seen = set()
    for step in range(1, 1000):
        before, version = device.agent.tasks[TASK], f"v{step + 2}"
        ended: list[bool] = []

        def cancel(ended: list[bool] = ended) -> None:
            loop.call_soon_threadsafe(lambda: handling.cancel())  # noqa: B023 - called in this turn of the loop
            threading.Event().wait(0.003)  # the disk is slow: whoever does not wait for it is ahead
            ended.append(True)

        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(patch, tmp_path / f"grave{step}", step, instead=cancel)
            handling = asyncio.create_task(
                device.agent.handle([cloud.publish(TASK, version, FILES["v2"])], cloud.timestamp())
            )
            await asyncio.wait([handling])
        if not disk.failed:
            break
        assert handling.cancelled()
        assert ended
        assert device.agent.tasks[TASK] in (before, version)
        seen.add(device.agent.tasks[TASK] == before)
        assert device.log[-1] == f"activate {device.agent.tasks[TASK]}" or device.log[-1].startswith("check")
        if device.agent.tasks[TASK] == version:
            assert device.log[-1] == f"activate {version}"
        active = InstalledTasks(device.folder).read(TASK).active
        assert active is not None
        assert active.version == device.agent.tasks[TASK]
    assert not disk.failed
    assert seen == {True, False}
    assert device.agent.tasks == {TASK: version}
    assert_tidy(device.folder, 2)


@pytest.mark.asyncio
async def test_pulls_are_spread_by_jitter_and_going_back_is_not(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = Device(tmp_path / "agent", cloud, jitter_s=30.0)
    await device.agent.start()
    first = publish(cloud, "v1")
    for directive in (first, publish(cloud, "v2")):
        cloud.pulls.clear()
        device.clock.is_asleep.clear()
        handling = asyncio.create_task(device.agent.handle([directive], cloud.timestamp()))
        await device.clock.is_asleep.wait()
        await device.clock.advance(0.001)
        assert cloud.pulls == []
        await device.clock.advance(30)
        assert await handling == []
    await device.do(cloud.sign(first))
    assert device.agent.tasks == {TASK: "v1"}


@pytest.mark.asyncio
async def test_pulls_from_a_real_cdn_and_resumes_where_the_link_dropped(tmp_path: Path) -> None:
    cloud = CloudFiles()
    store = FolderStore(tmp_path / "cdn")
    files = FILES["v1"] | {"big": random.Random(1).randbytes(3_000_000)}
    directive = cloud.publish(TASK, "v1", files)
    for data in cloud.blobs.values():
        store.put(data)
    asked: list[str] = []
    inner = cdn_app(store)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/trust/"):
            await Response(cloud.trust[scope["path"].removeprefix("/trust/")])(scope, receive, send)
            return
        headers = dict(scope["headers"])
        is_big = scope["path"].endswith(sha256_of(files["big"]))
        sent_bytes = 0

        async def cut(message: Any) -> None:
            nonlocal sent_bytes
            if is_big and len(asked) == 1 and sent_bytes > 1_000_000:
                raise ConnectionResetError  # the server gives the connection up in the middle of the body
            sent_bytes += len(message.get("body", b""))
            await send(message)

        if is_big:
            asked.append(headers.get(b"range", b"").decode())
        with contextlib.suppress(ConnectionResetError):
            await inner(scope, receive, cut)

    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", ws="none")
    server, sockets = uvicorn.Server(config), [config.bind_socket()]
    serving = asyncio.create_task(server.serve(sockets))
    try:
        base_url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
            device = Device(tmp_path / "agent", cloud, fetcher=HttpFetcher(client))
            await device.agent.start()
            assert isinstance(await device.refuse(directive), FetchError)
            assert device.outcomes() == []
            await device.wait_for_retry()
            await device.do(directive)
    finally:
        server.should_exit = True
        await serving
    assert device.running[TASK] == files
    first, second = asked
    assert first == ""
    assert 0 < int(second.removeprefix("bytes=").split("-")[0]) < 3_000_000
    assert_tidy(device.folder, 1)
