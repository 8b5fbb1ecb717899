"""The VM host: its start, its end, its resources, and the arrays that cross to it."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from unittest import mock

import pytest

from tests.sim.vm_hosts import HONEST, descriptors, inspect, is_running, wait_until_gone
from tests.sim.vm_task import write_task
from walle.engine_ext.vm import host as host_module
from walle.errors import VMError
from walle.vm import (
    VM,
    DeadlineExceeded,
    HostLost,
    HostStartError,
    TaskError,
    VMClosedError,
    VmHost,
    VMPool,
)


@pytest.mark.asyncio
async def test_many_vms_share_one_process_that_has_an_empty_environment(tmp_path: Path, host: VmHost) -> None:
    vms = [VM(write_task(tmp_path / str(n), HONEST), host=host) for n in range(3)]
    assert await asyncio.gather(*[vm.call("add", 1, n) for n, vm in enumerate(vms)]) == [1, 2, 3]
    pid = host.report().pid
    assert pid not in {0, os.getpid()}
    environment, folder, kinds = inspect(pid)
    assert (environment, folder) == (b"", "/")
    # To the device, for a crash's frames, two to wake up its thread, and standard output and error.
    assert sum(kind.startswith("socket:") for kind in kinds) == 6
    assert not any(kind.startswith(("/home", "/root", "/tmp", "/work")) for kind in kinds), kinds
    assert host.report().restarts == 0


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


@pytest.mark.vm_host
def test_the_host_ends_with_its_device(tmp_path: Path) -> None:
    write_task(tmp_path, HONEST)
    code = f"""
    import asyncio, os, signal
    from walle.vm import VM, VmHost
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


@pytest.mark.vm_host
def test_the_child_of_a_fork_starts_another_host(tmp_path: Path) -> None:
    write_task(tmp_path, HONEST)
    code = f"""
    import asyncio, os, sys
    from walle.vm import VM, VmHost
    host = VmHost()
    async def add(vm):
        return await vm.call("add", 1, 2)
    vm = VM({str(tmp_path)!r}, host=host)
    assert asyncio.run(add(vm)) == 3
    pid = host.report().pid
    child = os.fork()
    if child == 0:
        assert not vm.alive and vm.ended
        assert asyncio.run(add(VM({str(tmp_path)!r}, host=host))) == 3
        assert host.report().pid not in (0, pid)
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert asyncio.run(add(vm)) == 3
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.vm_host
def test_a_device_that_exits_ends_its_host(tmp_path: Path) -> None:
    write_task(tmp_path, HONEST)
    code = f"""
    import asyncio
    from walle.vm import VM, VmHost
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
    asyncio.run(wait_until_gone(int(pid), timeout_s=2))


def test_a_host_that_cannot_start_is_reported(tmp_path: Path) -> None:
    folder = write_task(tmp_path, HONEST)

    async def main(python: str, error: str) -> None:
        host = VmHost(python=python)
        for _ in range(3):
            with pytest.raises(HostLost, match=error):
                await VM(folder, host=host).call("add", 1, 2)
        with pytest.raises(HostLost, match=error):
            await VM(folder, host=host).call("add", 1, 2)
        with pytest.raises(HostStartError, match=error):  # refused without another process
            VM(folder, host=host)
        host.close()

    asyncio.run(main("/nonexistent/python", "could not be started"))


@pytest.mark.asyncio
async def test_prints_of_a_task_reach_the_devices_log(
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


@pytest.mark.night
@pytest.mark.asyncio
async def test_vms_and_hosts_come_and_go_without_a_leak(tmp_path: Path, host: VmHost) -> None:
    import walle.np as np

    folder = write_task(tmp_path, HONEST + "def same(x): return x\n")
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "file").write_bytes(b"contents")
    array = np.zeros(200_000)

    async def some(count: int) -> None:
        for _ in range(count):
            vm = VM(folder, host=host)
            assert (await vm.call("same", array)).shape == (200_000,)
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


@pytest.mark.asyncio
async def test_arrays_cross_unchanged_whatever_their_size_and_strides(tmp_path: Path, host: VmHost) -> None:
    import walle.np as np

    main = "def same(x): return x\ndef change(x):\n    x[0] = 1\ndef double(x): return {'a': [x * 2, x[::-1]]}\n"
    vm = VM(write_task(tmp_path, main), host=host)
    for shape in [(0,), (1,), (3,), (5, 7), (700, 701)]:
        for dtype in ("float32", "float64", "int64", "bool", "uint8"):
            array = np.asarray(np.arange(np.ones(shape).size).reshape(shape), dtype=dtype)
            for one in (array, array.T):
                back = await vm.call("same", one)
                assert (back.shape, back.dtype) == (one.shape, one.dtype)
                assert back.tolist() == one.tolist()
    big = np.arange(500_000, dtype="float64")
    with pytest.raises(TaskError, match="read-only"):
        await vm.call("change", big)
    result = await vm.call("double", big)
    assert result["a"][0].tolist() == (big * 2).tolist()
    assert result["a"][1].tolist() == big.tolist()[::-1]
    result["a"][0][0] = 7.0  # the receiver owns the array
    assert float(big[0]) == 0.0


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_task_that_prints_without_end_does_not_delay_the_device(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, "def run():\n    while True:\n        print('\\n' * 60_000)\n"), host=host)
    call = asyncio.create_task(vm.call("run", deadline=2.0))
    began_s, turns = time.monotonic(), 0
    while not call.done() and time.monotonic() - began_s < 10:
        await asyncio.sleep(0.001)
        turns += 1
    with pytest.raises(DeadlineExceeded):
        await call
    assert turns > 200  # 29 while each line was read


@pytest.mark.asyncio
async def test_a_resource_that_cannot_be_mapped_fails_its_vm_only(tmp_path: Path, host: VmHost) -> None:
    folder = write_task(tmp_path, HONEST)
    honest = VM(folder, host=host)
    running = asyncio.ensure_future(honest.call("wait", 0.5))
    odd = "/sys/kernel/mm/transparent_hugepage/enabled"  # a regular file that no process can map
    with mock.patch.object(host_module, "_resources", return_value=[("resources/odd", odd)]):
        vm = VM(folder, host=host)
    with pytest.raises(VMClosedError, match=r"resource resources/odd cannot be mapped"):
        await vm.call("add", 1, 2)
    assert await running == 0.5
    assert host.report().restarts == 0


@pytest.mark.asyncio
async def test_a_resource_that_cannot_be_opened_is_named(tmp_path: Path, host: VmHost) -> None:
    folder = write_task(tmp_path, HONEST)
    resources = folder / "resources"
    resources.mkdir()
    (resources / "a").write_bytes(b"a")
    odd = resources / "b"
    odd.symlink_to("/etc/passwd")
    with pytest.raises(VMError, match=r"resources/b is a symbolic link"):
        VM(folder, host=host)
    odd.unlink()
    os.mkfifo(odd)
    with pytest.raises(VMError, match=r"resources/b is not a regular file"):
        VM(folder, host=host)
    odd.unlink()
    with (
        mock.patch.object(host_module, "_resources", return_value=[("resources/b", str(odd))]),
        pytest.raises(VMError, match=r"resources/b cannot be opened: No such file"),
    ):
        VM(folder, host=host)
    assert await VM(folder, host=host).call("add", 1, 2) == 3


@pytest.mark.asyncio
async def test_many_resources_need_few_descriptors(tmp_path: Path, host: VmHost) -> None:
    folder = write_task(tmp_path, HONEST + "def main(): return 1\n")
    (folder / "resources").mkdir()
    for number in range(500):
        (folder / "resources" / str(number)).write_bytes(b"%d" % number)
    await VM(write_task(tmp_path / "other", HONEST), host=host).call("add", 1, 2)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 150, limit[1]))
    try:
        assert await VM(folder, host=host).call("main") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert host.report().restarts == 0


def test_a_frozen_program_gets_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(HostStartError, match=r"DeviceConfig\(vm_host=False\)"):
        VmHost()
    VmHost(python="/usr/bin/python3").close()


@pytest.mark.vm_host
def test_a_device_without_standard_streams_has_a_host(tmp_path: Path) -> None:
    """The descriptors that a host is started with must not take the numbers of the streams that were closed."""
    write_task(tmp_path / "task", HONEST + "def say(): print('x' * 100)\n")
    code = f"""
    import asyncio, os
    os.closerange(0, 3)
    from walle.vm import VM, VmHost
    vm = VM({str(tmp_path / "task")!r}, host=VmHost())  # before the event loop's descriptors take the numbers
    async def main():
        await vm.call("say")
        os.system("echo to whatever is open >&1; echo as the standard error >&2")
        result = await vm.call("add", 1, 2)
        open({str(tmp_path / "result")!r}, "w").write(str(result))
    asyncio.run(asyncio.wait_for(main(), 20))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60, check=False)
    assert (tmp_path / "result").read_text() == "3"
