"""The VM host: what ends it, what its end costs, and what a host that was taken over can do to its device."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.vm_task import DEEP_SLEEP, write_task
from walle.engine_ext.vm.host import HostStartError, VmHost
from walle.engine_ext.vm.loop_calls import HostCrashed, HostLost
from walle.engine_ext.vm.pool import MAX_STRIKES
from walle.engine_ext.vm.vm import VM
from walle.vm import DeadlineExceeded, TaskQuarantined, VMClosedError, VMPool

HONEST = DEEP_SLEEP + "\ndef add(a, b): return a + b\ndef wait(seconds): sleep(seconds); return seconds\n"

# Bytecode that takes an object from an empty stack's place, which is not one.
CRASHES = """
def run():
    code = run.__code__
    wild = code.replace(co_code=bytes([0x53, 200] * 64), co_stacksize=1)
    type(run)(wild, {})()

def overflow():
    value = ()
    for _ in range(3_000_000):
        value = (value,)
    return hash(value) if False else repr_deep(value)

def repr_deep(value):
    return run()
"""

ESCAPE = """
def classes():
    found, queue = {}, [object]
    while queue:
        for one in type.__subclasses__(queue.pop()):
            if one.__name__ not in found:
                found[one.__name__] = one
                queue.append(one)
    return found

def read(path, mode="r"):
    return classes()["FileIO"](path, mode).read(1000)

def write(path):
    return classes()["FileIO"](path, "w").write(b"x")

def write_memory():
    return classes()["FileIO"]("/proc/self/mem", "r+").tell()
"""


@pytest.fixture
def host() -> Iterator[VmHost]:
    host = VmHost()
    yield host
    host.close()


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def inspect(pid: int) -> tuple[bytes, str, list[str]]:
    """Return the environment, the folder and the descriptors of a process."""
    process = Path(f"/proc/{pid}")
    descriptors = [str(link.readlink()) for link in (process / "fd").iterdir()]
    return (process / "environ").read_bytes(), str((process / "cwd").readlink()), descriptors


async def wait_until_gone(pid: int, timeout_s: float = 10.0) -> None:
    until = time.monotonic() + timeout_s
    while is_running(pid):
        assert time.monotonic() < until, f"process {pid} still runs"
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_many_vms_share_one_process_that_has_an_empty_environment(tmp_path: Path, host: VmHost) -> None:
    vms = [VM(write_task(tmp_path / str(n), HONEST), host=host) for n in range(3)]
    assert await asyncio.gather(*[vm.call("add", 1, n) for n, vm in enumerate(vms)]) == [1, 2, 3]
    pid = host.report().pid
    assert pid not in {0, os.getpid()}
    environment, folder, kinds = inspect(pid)
    assert (environment, folder) == (b"", "/")
    assert sum(kind.startswith("socket:") for kind in kinds) == 1
    assert not any(kind.startswith(("/home", "/root", "/tmp", "/work")) for kind in kinds), kinds
    assert host.report().restarts == 0


@pytest.mark.asyncio
async def test_a_call_that_crashes_the_host_is_named_and_others_can_be_repeated(tmp_path: Path, host: VmHost) -> None:
    hostile = VM(write_task(tmp_path / "hostile", CRASHES), name="hostile", host=host)
    honest = VM(write_task(tmp_path / "honest", HONEST), host=host)
    assert await honest.call("add", 1, 2) == 3
    running = asyncio.ensure_future(honest.call("wait", 5.0))
    queued = asyncio.ensure_future(honest.call("add", 2, 2))
    await asyncio.sleep(0.1)
    pid = host.report().pid
    with pytest.raises(HostCrashed, match="task hostile ended its VM host") as caught:
        await hostile.call("run")
    assert caught.value.signal in {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL"}
    for call in (running, queued):
        with pytest.raises(HostLost, match=caught.value.signal):
            await call
    assert (hostile.crashed, honest.crashed) == (True, False)
    assert not honest.alive
    with pytest.raises(HostLost):
        await honest.call("add", 1, 2)
    again = VM(tmp_path / "honest", host=host)
    assert await again.call("add", 1, 2) == 3
    assert host.report().pid != pid
    assert host.report().restarts == 1


@pytest.mark.asyncio
async def test_a_task_that_crashes_the_host_repeatedly_is_quarantined(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(2, host=host)
    hostile, honest = write_task(tmp_path / "hostile", CRASHES), write_task(tmp_path / "honest", HONEST)
    for _ in range(MAX_STRIKES):
        with pytest.raises(HostCrashed):
            await pool.call(hostile, "run")
        began_s = time.monotonic()
        assert await pool.call(honest, "add", 1, 2) == 3
        assert time.monotonic() - began_s < 5
    with pytest.raises(TaskQuarantined):
        await pool.call(hostile, "run")
    assert await pool.call(honest, "add", 1, 2) == 3
    pool.close()


@pytest.mark.asyncio
async def test_nobody_is_blamed_for_a_host_that_was_killed(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(1, host=host)
    honest = write_task(tmp_path, HONEST)
    for _ in range(MAX_STRIKES + 1):
        running = asyncio.ensure_future(pool.call(honest, "wait", 30.0))
        while not host.report().pid:  # noqa: ASYNC110 -- a thread starts the process
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        os.kill(host.report().pid, signal.SIGKILL)
        with pytest.raises(HostLost, match="SIGKILL"):
            await running
    assert await pool.call(honest, "add", 1, 2) == 3
    pool.close()


@pytest.mark.asyncio
async def test_a_call_that_cannot_be_stopped_costs_the_host_a_restart(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(2, host=host)
    stuck = write_task(tmp_path / "stuck", "import itertools\ndef run(): return any(itertools.repeat(0))\n")
    honest = write_task(tmp_path / "honest", HONEST)
    assert await pool.call(honest, "add", 1, 2) == 3
    pid = host.report().pid
    long = asyncio.ensure_future(pool.call(honest, "wait", 2.5))  # runs on, and ends, in the host that is replaced
    with pytest.raises(DeadlineExceeded):
        await pool.call(stuck, "run", deadline=0.1)
    until = time.monotonic() + 10
    while host.report().pid == pid:
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    assert list(await asyncio.gather(pool.call(honest, "add", 1, 2), long)) == [3, 2.5]
    await wait_until_gone(pid)
    assert host.report().pid not in {0, pid}
    pool.close()


@pytest.mark.asyncio
async def test_a_stopped_host_is_killed_when_a_reply_is_overdue(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, HONEST), host=host, grace_s=0.1)
    assert await vm.call("add", 1, 2) == 3
    pid = host.report().pid
    os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(HostCrashed, match="did not answer"):
        await vm.call("add", 1, 2, deadline=0.1)
    assert 5 <= time.monotonic() - began_s < 15
    await wait_until_gone(pid)


def test_the_host_ends_with_its_device(tmp_path: Path) -> None:
    write_task(tmp_path, HONEST)
    code = f"""
    import asyncio, os, signal
    from walle.engine_ext.vm.host import VmHost
    from walle.engine_ext.vm.vm import VM
    async def main():
        host = VmHost()
        vm = VM({str(tmp_path)!r}, host=host)
        await vm.call("add", 1, 2)
        if os.fork() == 0:  # this child holds the device's end of the socket
            signal.pause()
        print(host.report().pid, flush=True)
        asyncio.ensure_future(vm.call("wait", 60.0))
        await asyncio.sleep(60)
    asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as device:
        assert device.stdout is not None
        pid = int(device.stdout.readline())
        assert is_running(pid)
        os.kill(device.pid, signal.SIGKILL)
        device.wait()
        asyncio.run(wait_until_gone(pid))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(device.pid, signal.SIGKILL)  # the fork


def test_a_device_that_exits_ends_its_host(tmp_path: Path) -> None:
    write_task(tmp_path, HONEST)
    code = f"""
    import asyncio
    from walle.engine_ext.vm.host import VmHost
    from walle.engine_ext.vm.vm import VM
    async def main():
        host = VmHost()
        print(await VM({str(tmp_path)!r}, host=host).call("add", 1, 2), host.report().pid, flush=True)
    asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    result, pid = done.stdout.split()
    assert result == "3"
    assert done.stderr == ""
    assert not is_running(int(pid))


def test_a_host_that_cannot_start_is_reported(tmp_path: Path) -> None:
    folder = write_task(tmp_path, HONEST)

    async def main(python: str, error: str) -> None:
        host = VmHost(python=python)
        for _ in range(3):
            with pytest.raises(HostLost, match=error):
                await VM(folder, host=host).call("add", 1, 2)
        with pytest.raises(HostLost, match=error):
            await VM(folder, host=host).call("add", 1, 2)
        with pytest.raises(HostStartError, match=error):  # without another process
            VM(folder, host=host)
        host.close()

    asyncio.run(main("/nonexistent/python", "could not be started"))


@pytest.mark.asyncio
async def test_what_a_task_prints_reaches_the_devices_log(
    tmp_path: Path, host: VmHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "walle.engine_ext.vm.host")
    vm = VM(write_task(tmp_path, "def run():\n    print('from the task\\x1b[2J')\n"), host=host)
    await vm.call("run")
    until = time.monotonic() + 10
    while "from the task?[2J" not in caplog.text:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_closed_host_refuses_vms(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, HONEST), host=host)
    assert await vm.call("add", 1, 2) == 3
    running = asyncio.ensure_future(vm.call("wait", 30.0))
    await asyncio.sleep(0.05)
    pid = host.report().pid
    await asyncio.to_thread(host.close)
    with pytest.raises(VMClosedError, match="was closed"):
        await running
    assert not is_running(pid)
    with pytest.raises(HostStartError, match="closed"):
        VM(tmp_path, host=host)


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.asyncio
async def test_vms_and_hosts_come_and_go_without_a_leak(tmp_path: Path, host: VmHost) -> None:
    import walle.np as np

    folder = write_task(tmp_path, HONEST + "def same(x): return x\n")
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "file").write_bytes(b"contents")
    array = np.zeros(100_000)

    async def some(count: int) -> None:
        for _ in range(count):
            vm = VM(folder, host=host)
            assert (await vm.call("same", array)).shape == (100_000,)
            vm.close()
            assert await vm.wait_closed()

    await some(3)
    pid = host.report().pid
    before, of_host = descriptors(), descriptors(pid)
    await some(300)
    assert (descriptors(), descriptors(pid)) == (before, of_host)
    for _ in range(10):
        os.kill(host.report().pid, signal.SIGKILL)
        await wait_until_gone(host.report().pid)
        until = time.monotonic() + 10
        while host.report().pid:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        await some(1)
    until = time.monotonic() + 10
    while descriptors() > before:
        assert time.monotonic() < until, f"{before} descriptors before, {descriptors()} after"
        await asyncio.sleep(0.05)
    assert host.report().restarts == 10
