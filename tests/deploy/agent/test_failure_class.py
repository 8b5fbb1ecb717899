"""Faults of the device, the network and the store: each is told as such, and none as one of the version."""

import asyncio
import contextlib
import dataclasses
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.responses import Response

from tests.sim.agent_device import FILES, TASK, Device, publish, spoil, start
from tests.sim.cloud_files import CloudFiles, sha256_of
from tests.sim.power_cut import FaultyDisk
from walle.deploy.agent.failure_class import TRIES_BEFORE_REPORT, class_of
from walle.deploy.agent.fetch import FetchError, HttpFetcher, WrongLengthError
from walle.deploy.agent.installed import TaskState
from walle.deploy.gate.gate import Gate, Verdict
from walle.deploy.gate.monitor import Monitor
from walle.deploy.gate.step import Step
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.folder_store import FolderStore
from walle.engine_ext.vm.loop_calls import HostLost
from walle.protocol import Directive, FailureClass, Outcome, OutcomeBatch, OutcomeKind, ProtocolError

REJECTED = OutcomeKind.REJECTED
LONGEST_PAUSE_S = 300.0  # longest pause after a pull that failed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "full"), FailureClass.DEVICE),
        (OSError(errno.ENAMETOOLONG, "a name in the version"), FailureClass.VERSION),
        (MemoryError(), FailureClass.DEVICE),
        (HostLost("t", "killed"), FailureClass.DEVICE),
        (FetchError("u", "no route"), FailureClass.NETWORK),
        (FetchError("u", "404", status=404), FailureClass.CLOUD),
        (FetchError("u", "503", status=503), FailureClass.CLOUD),
        (FetchError("u", "the network wants a login", status=511), FailureClass.NETWORK),
        (WrongLengthError("u", "longer"), FailureClass.CLOUD),
        (RuntimeError("the task raises"), FailureClass.VERSION),
    ],
)
def test_an_error_has_the_class_of_what_is_at_fault(error: Exception, expected: FailureClass) -> None:
    assert class_of(error) is expected


def test_a_class_crosses_the_wire_and_an_older_device_blames_the_version() -> None:
    outcome = Outcome(task=TASK, version="v1", release="r", kind=REJECTED, failure_class=FailureClass.CLOUD)
    plain = json.loads(json.dumps(OutcomeBatch("d", "b", (outcome,)).to_json()))
    assert OutcomeBatch.from_json(plain).outcomes == (outcome,)
    plain["outcomes"][0]["failure_class"] = "weather"
    with pytest.raises(ProtocolError, match=r"outcomes\[0\].failure_class"):
        OutcomeBatch.from_json(plain)
    del plain["outcomes"][0]["failure_class"]
    assert OutcomeBatch.from_json(plain).outcomes[0].failure_class is FailureClass.VERSION


def _verdict(outcomes: list[Outcome], directive: Directive) -> Verdict:
    """Return the verdict where 30 devices of a fleet of 30 report these outcomes."""
    step = Step(release=directive.release, task=TASK, version="v1", stage="all", gate=Gate(), steps=1, share_to=1.0)
    monitor = Monitor(step)
    for number in range(30):
        monitor.take(f"d{number}", outcomes, {}, float(number))
    return monitor.verdict


def _reported(device: Device, directive: Directive) -> list[tuple[str, str]]:
    """Return kind and class of what the device reports, once it is seen that the gate does not blame the version."""
    outcomes = device.outcomes()
    if any(one.failure_class is not FailureClass.VERSION for one in outcomes):
        assert _verdict(outcomes, directive) is Verdict.PAUSE
    return [(one.kind.value, one.failure_class.value) for one in outcomes]


@pytest.mark.asyncio
async def test_a_full_disk_is_reported_as_a_device_fault_also_after_a_restart(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    with pytest.MonkeyPatch.context() as patch:
        FaultyDisk(patch, tmp_path / "grave", 6, full=True)
        await device.refuse(directive)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device.agent._installed, "free_bytes", lambda: 0)
        assert "No space left" in str(await device.refuse(directive))
    assert _reported(device, directive) == [("rejected", "device")]
    assert _reported(await start(device.folder, cloud), directive) == [("rejected", "device")]
    await device.do(directive)
    assert device.take_outcomes() == ["installed v1"]


def test_a_state_with_a_class_has_the_fields_of_an_outcome_that_older_programs_take() -> None:
    state = TaskState(task=TASK).fall_back("x")
    outcome = Outcome(task=TASK, version="v1", release="r", kind=REJECTED, failure_class=FailureClass.DEVICE)
    state = dataclasses.replace(state, outcome=outcome)
    body = json.loads(state.to_bytes())["state"]
    assert set(body["outcome"]) == {"task", "version", "release", "kind", "ok", "failed", "error", "place", "log"}
    assert TaskState.from_bytes(state.to_bytes()) == state


@pytest.mark.asyncio
async def test_a_file_that_is_corrupted_on_the_device_is_the_devices(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    directive = publish(cloud, "v1")
    await device.do(directive)
    spoil(next(device.folder.glob("*/versions/*/files/main.pyc")))
    device = await start(device.folder, cloud)
    assert _reported(device, directive) == [("reverted", "device")]


@pytest.mark.asyncio
async def test_a_clock_that_is_ahead_is_reported_and_a_forged_directive_is_not(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = Device(tmp_path / "agent", cloud)
    await device.agent.start()
    directive = publish(cloud, "v1")
    forged = dataclasses.replace(directive, release="another")
    now_s = device.clock.time()
    stamp = cloud.timestamp(now_s, expires_s=int(now_s + 3600))
    await device.clock.advance(10 * 86_400.0)
    for _ in range(3):
        assert await device.agent.handle([forged], stamp)
    assert device.outcomes() == []
    for _ in range(3):
        assert await device.agent.handle([directive], stamp)
    assert _reported(device, directive) == [("rejected", "device")]


class Store:
    """A real store of files behind a real server, with faults of both."""

    def __init__(self, folder: Path, cloud: CloudFiles) -> None:
        self.folder = folder
        self.files = FolderStore(folder)
        self.cloud = cloud
        self.status = 0  # answered in place of every file
        self.drops = False
        self._inner = cdn_app(self.files)

    def fill(self) -> None:
        for data in self.cloud.blobs.values():
            self.files.put(data)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path.startswith("/trust/"):
            await Response(self.cloud.trust[path.removeprefix("/trust/")])(scope, receive, send)
        elif self.status:
            await Response(status_code=self.status)(scope, receive, send)
        elif self.drops:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": False})
        else:
            await self._inner(scope, receive, send)

    @contextlib.asynccontextmanager
    async def device(self, folder: Path) -> AsyncIterator[Device]:
        config = uvicorn.Config(self, port=0, log_level="critical", lifespan="off", ws="none")
        server, sockets = uvicorn.Server(config), [config.bind_socket()]
        serving = asyncio.create_task(server.serve(sockets))
        try:
            base_url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
            async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
                device = Device(folder, self.cloud, fetcher=HttpFetcher(client))
                async with device.agent:
                    yield device
        finally:
            server.should_exit = True
            await serving


def _place(store: Store, data: bytes) -> Path:
    sha256 = sha256_of(data)
    return store.folder / sha256[:2] / sha256


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["missing", "flipped bit", "cut", "503"])
async def test_a_fault_of_the_store_is_reported_as_a_cloud_fault_until_it_is_repaired(
    tmp_path: Path, fault: str
) -> None:
    cloud = CloudFiles()
    directive = publish(cloud, "v1")
    store = Store(tmp_path / "cdn", cloud)
    store.fill()
    data = FILES["v1"]["main.pyc"]
    path = _place(store, data)
    match fault:
        case "missing":
            path.unlink()
        case "flipped bit":
            path.chmod(0o600)
            spoil(path)
        case "cut":
            path.chmod(0o600)
            path.write_bytes(data[:-1])
        case _:
            store.status = 503
    async with store.device(tmp_path / "agent") as device:
        for _ in range(2 * TRIES_BEFORE_REPORT):
            await device.refuse(directive)
            await device.clock.advance(LONGEST_PAUSE_S)
        assert _reported(device, directive) == [("rejected", "cloud")]
        assert TASK not in device.agent.tasks
        store.status = 0
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        await device.do(directive)
        assert device.take_outcomes() == ["installed v1"]


@pytest.mark.asyncio
async def test_a_link_that_drops_at_each_try_is_reported_once_as_a_network_fault(tmp_path: Path) -> None:
    cloud = CloudFiles()
    directive = publish(cloud, "v1")
    store = Store(tmp_path / "cdn", cloud)
    store.fill()
    store.drops = True
    async with store.device(tmp_path / "agent") as device:
        for _ in range(TRIES_BEFORE_REPORT - 1):
            await device.refuse(directive)
            await device.clock.advance(LONGEST_PAUSE_S)
        assert device.outcomes() == []
        for _ in range(5):
            await device.refuse(directive)
            await device.clock.advance(LONGEST_PAUSE_S)
        assert _reported(device, directive) == [("rejected", "network")]
        store.drops = False
        await device.do(directive)
        assert sha256_of(device.running[TASK]["main.pyc"]) == sha256_of(FILES["v1"]["main.pyc"])


@pytest.mark.asyncio
async def test_a_version_whose_check_fails_is_blamed_itself(tmp_path: Path) -> None:
    cloud = CloudFiles()
    device = await start(tmp_path / "agent", cloud)
    device.fail_check = "it does not load"
    directive = publish(cloud, "v1")
    await device.refuse(directive)
    outcomes = device.outcomes()
    assert [one.failure_class for one in outcomes] == [FailureClass.VERSION]
    assert _verdict(outcomes, directive) is Verdict.REJECT
