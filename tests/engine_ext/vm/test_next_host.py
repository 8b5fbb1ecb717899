"""The process that takes over from a VM host: started early, used once, ended where it is not needed."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.sim.vm_task import write_task
from walle.engine_ext.vm.host import HostStartError
from walle.vm import VM, VmHost

pytestmark = pytest.mark.vm_host
MAIN = "def run(): return 5\n"


def next_pid(host: VmHost) -> int:
    """Return the id of the process that is to take over, once it has started."""
    process = host._next
    assert process is not None
    process.client.wait_ready(10.0)
    return process.pid


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


async def gone(pid: int) -> None:
    until_s = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_the_next_vm_is_in_the_process_that_was_prepared(tmp_path: Path) -> None:
    host = VmHost()
    vm = VM(write_task(tmp_path, MAIN), host=host)
    assert await vm.call("run") == 5
    first = host.report().pid
    host.prepare_next()
    prepared = next_pid(host)
    host.prepare_next()
    assert next_pid(host) == prepared != first
    assert (host.report().pid, host.report().restarts) == (first, 0)
    os.kill(first, signal.SIGKILL)
    await gone(first)
    assert await VM(tmp_path, host=host).call("run") == 5
    assert (host.report().pid, host.report().restarts) == (prepared, 1)
    host.close()
    await gone(prepared)


@pytest.mark.asyncio
async def test_a_prepared_process_takes_over_with_the_interpreters_of_closed_vms(tmp_path: Path) -> None:
    host = VmHost()
    folder = write_task(tmp_path, MAIN)
    vm = VM(folder, host=host)
    assert await vm.call("run") == 5
    with pytest.raises(HostStartError, match="prepared"):
        VM(folder, host=host.in_next())
    host.prepare_next()
    prepared = next_pid(host)
    warm = VM(folder, host=host.in_next())
    assert await warm.call("run") == 5
    warm.close()
    assert await warm.wait_closed()
    threads = threads_of(prepared)
    assert await vm.call("run") == 5  # the first process runs it
    os.kill(host.report().pid, signal.SIGKILL)
    await gone(host._process.pid if host._process else 0)
    assert await VM(folder, host=host).call("run") == 5
    assert host.report().pid == prepared
    assert threads_of(prepared) == threads  # no new interpreter
    host.close()


@pytest.mark.asyncio
async def test_a_prepared_process_ends_where_it_is_dropped_or_the_host_is_closed(tmp_path: Path) -> None:
    host = VmHost()
    host.prepare_next()
    dropped = next_pid(host)
    host.drop_next()
    host.drop_next()
    await gone(dropped)
    host.prepare_next()
    killed = next_pid(host)
    os.kill(killed, signal.SIGKILL)
    await gone(killed)
    assert await VM(write_task(tmp_path, MAIN), host=host).call("run") == 5  # a process that was started for it
    assert host.report().pid != killed
    host.prepare_next()
    left = next_pid(host)
    host.close()
    await gone(left)
    host.prepare_next()
    assert host._next is None
