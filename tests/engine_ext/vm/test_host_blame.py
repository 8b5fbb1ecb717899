"""Blame for the end of a VM host: what its device knows itself, and suspects that run alone."""

import asyncio
import contextlib
import functools
import os
import signal
import struct
import time
from pathlib import Path

import pytest

from tests.sim.fake_host import (
    ABANDONED,
    CHANGE,
    DEADLINE,
    ENDED,
    NONE,
    OPENED,
    REPLY,
    SUBMIT,
    FakeHost,
    call_of,
    change,
    message,
    reply,
)
from tests.sim.vm_hosts import CRASHES, HONEST, host_processes, wait_until_gone
from tests.sim.vm_task import write_task
from walle.engine_ext import _core
from walle.engine_ext.vm.pool import MAX_LOST_ALONE, MAX_STRIKES
from walle.errors import ConfigError, VMError
from walle.vm import (
    VM,
    DeadlineExceeded,
    HostCrashed,
    HostLost,
    TaskQuarantined,
    VMClosedError,
    VmHost,
    VMPool,
)

SIGNALS = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL"}


@pytest.mark.asyncio
async def test_a_call_that_ends_a_separate_host_is_named(tmp_path: Path, host: VmHost) -> None:
    hostile = VM(write_task(tmp_path, CRASHES), name="hostile", host=host)
    with pytest.raises(HostCrashed, match="task hostile ended its VM host") as caught:
        await hostile.call("run")
    assert caught.value.signal in SIGNALS
    assert (hostile.crashed, hostile.suspected) == (True, True)


@pytest.mark.asyncio
async def test_all_that_ran_are_suspected_and_can_be_made_again(tmp_path: Path, host: VmHost) -> None:
    hostile = VM(write_task(tmp_path / "hostile", CRASHES), host=host)
    honest = VM(write_task(tmp_path / "honest", HONEST), host=host)
    idle = VM(tmp_path / "honest", host=host)
    assert list(await asyncio.gather(honest.call("add", 1, 2), idle.call("add", 1, 2))) == [3, 3]
    running = asyncio.ensure_future(honest.call("wait", 5.0))
    queued = asyncio.ensure_future(honest.call("add", 2, 2))
    await asyncio.sleep(0.1)
    pid = host.report().pid
    for call in (hostile.call("run"), running, queued):
        with pytest.raises(HostLost) as lost:
            await call
        assert any(signal in str(lost.value) for signal in SIGNALS)
    assert [vm.crashed for vm in (hostile, honest, idle)] == [False] * 3
    assert [vm.suspected for vm in (hostile, honest, idle)] == [True, True, False]
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
async def test_the_culprit_among_several_running_tasks_is_found(tmp_path: Path, host: VmHost) -> None:
    """Whatever runs beside it, the task that ends hosts is quarantined, and no other; nothing is lost."""
    pool = VMPool(3, host=host)
    hostile, honest = write_task(tmp_path / "hostile", CRASHES), write_task(tmp_path / "honest", HONEST)
    other = write_task(tmp_path / "other", HONEST + "# other\n")
    ends: list[str] = []

    async def attack() -> None:
        for _ in range(2 * MAX_STRIKES):
            try:
                await pool.call(hostile, "run")
            except VMError as error:
                ends.append(type(error).__name__)

    async def work(task: Path) -> None:
        while len(ends) < 2 * MAX_STRIKES:
            with contextlib.suppress(HostLost):
                assert await pool.call(task, "wait", 0.02) == 0.02

    await asyncio.wait_for(asyncio.gather(attack(), work(honest), work(other)), 60)
    assert set(ends[: -MAX_STRIKES + 1]) <= {"HostLost", "HostCrashed"}
    assert ends.count("HostLost") <= 1
    assert ends[MAX_STRIKES + 1 :] == ["TaskQuarantined"] * (MAX_STRIKES - 1)
    assert host.report().restarts <= 1
    pool.close()


@pytest.mark.night
@pytest.mark.asyncio
async def test_no_task_is_blamed_for_hosts_that_were_killed(tmp_path: Path, host: VmHost) -> None:
    """A signal that no code causes proves nothing: the task runs alone, and in the host again later."""
    pool = VMPool(1, host=host)
    honest = write_task(tmp_path, HONEST)
    for _ in range(MAX_STRIKES + 1):
        running = asyncio.ensure_future(pool.call(honest, "wait", 30.0))
        await asyncio.sleep(0.2)
        while not host_processes():  # noqa: ASYNC110 -- a thread starts the process
            await asyncio.sleep(0.01)
        for pid in host_processes():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(HostLost, match="SIGKILL"):
            await running
        assert await pool.call(honest, "add", 1, 2) == 3
    for _ in range(2 ** (MAX_STRIKES + 1)):
        assert await pool.call(honest, "add", 1, 2) == 3
    assert host.report().pid  # the task runs in the host again
    pool.close()


@pytest.mark.asyncio
async def test_a_task_whose_processes_are_killed_whenever_it_runs_is_quarantined(tmp_path: Path, host: VmHost) -> None:
    """As where it takes all memory: the system ends the process by SIGKILL, which tells nothing about the cause."""
    pool = VMPool(2, host=host)
    hog = write_task(tmp_path / "hog", HONEST + "# takes all memory\n")
    run = "walle.engine_ext.vm.callbacks:call"
    honest = write_task(tmp_path / "honest", HONEST)

    def kill() -> None:
        for pid in host_processes():
            os.kill(pid, signal.SIGKILL)

    async def work() -> None:
        while True:
            with contextlib.suppress(HostLost):  # the honest task's process was killed too
                assert await pool.call(honest, "add", 1, 2) == 3
                return

    for _ in range(1 + MAX_LOST_ALONE):
        await work()
        with pytest.raises(HostLost):
            await pool.call(hog, run, "kill", callbacks={"kill": kill})
    with pytest.raises(TaskQuarantined):
        await pool.call(hog, run, "kill", callbacks={"kill": kill})
    for _ in range(MAX_STRIKES + 1):
        await work()
    pool.close()


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_task_that_does_not_stop_costs_others_one_restart(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(2, host=host)
    stuck = write_task(tmp_path / "stuck", "import itertools\ndef run(): return any(itertools.repeat(0))\n")
    honest = write_task(tmp_path / "honest", HONEST)
    for _ in range(1 + MAX_STRIKES):
        assert await pool.call(honest, "add", 1, 2) == 3
        with pytest.raises(DeadlineExceeded):
            await pool.call(stuck, "run", deadline=0.05)
        await asyncio.sleep(1.2)  # time to retire what could not be stopped
    with pytest.raises(TaskQuarantined):
        await pool.call(stuck, "run", deadline=0.05)
    assert await pool.call(honest, "add", 1, 2) == 3
    assert host.report().restarts == 1
    pool.close()


@pytest.mark.asyncio
async def test_a_forged_abandonment_costs_no_strike(tmp_path: Path, host: VmHost) -> None:
    fake = FakeHost(host)
    pool = VMPool(1, host=fake)
    honest = write_task(tmp_path, HONEST)
    call = asyncio.create_task(pool.call(honest, "add", 1, 2))
    await asyncio.sleep(0)
    call_id = struct.unpack_from("<QQ", fake.receive(SUBMIT))[1]
    fake.socket.sendall(
        message(CHANGE, change(ABANDONED)) + message(REPLY, reply(NONE, call=call_id, outcome=DEADLINE))
    )
    with pytest.raises(DeadlineExceeded):
        await call
    for number in range(2):  # runs that end well
        assert await pool.call(honest, "add", 1, number) == 1 + number
        assert fake.alone == number + 1
    pool.close()
    fake.close()


@pytest.mark.asyncio
async def test_a_vm_that_runs_nothing_cannot_be_abandoned_nor_end(tmp_path: Path) -> None:
    for forged in (ABANDONED, ENDED):
        fake = FakeHost()
        call, _ = await call_of(fake, write_task(tmp_path, HONEST))
        idle = VM(tmp_path, host=fake)
        fake.socket.sendall(message(CHANGE, change(OPENED, vm=2)) + message(CHANGE, change(forged, vm=2)))
        with pytest.raises(HostLost, match="protocol"):
            await asyncio.wait_for(call, 10)
        assert (idle.abandoned, idle.crashed, idle.suspected) == (False, False, False)
        fake.close()


@pytest.mark.asyncio
async def test_a_forged_leak_quarantines_no_task(tmp_path: Path, host: VmHost) -> None:
    fake = FakeHost(host)
    pool = VMPool(1, host=fake)
    honest = write_task(tmp_path, HONEST)
    call = asyncio.create_task(pool.call(honest, "add", 1, 2))
    await asyncio.sleep(0)
    call_id = struct.unpack_from("<QQ", fake.receive(SUBMIT))[1]
    fake.socket.sendall(message(REPLY, reply(b"\3" + struct.pack("<q", 3), call=call_id)))
    assert await call == 3
    pool.discard(honest)
    fake.socket.sendall(message(CHANGE, change(ENDED, leaked_bytes=2**62)))
    async with asyncio.timeout(10):
        while fake.client.usable:  # noqa: ASYNC110 -- its tasks have leaked as much as a host may
            await asyncio.sleep(0.01)
    assert await pool.call(honest, "add", 1, 2) == 3  # alone, where it leaks until its process ends
    assert fake.alone == 1
    pool.close()
    fake.close()


@pytest.mark.asyncio
async def test_a_vm_that_was_closed_and_never_ends_costs_the_host(tmp_path: Path) -> None:
    fake = FakeHost(close_s=0.2, retire_s=0.3)
    process = fake.start_process()
    vm = VM(write_task(tmp_path, HONEST), host=fake)
    fake.socket.sendall(message(CHANGE, change(OPENED)))
    vm.close()
    assert not await vm.wait_closed(0.1)
    assert await vm.wait_closed(20)
    assert "could not be stopped" in fake.client.end_reason
    assert process.wait(10) == -signal.SIGKILL
    fake.close()


@pytest.mark.asyncio
async def test_a_vm_alone_has_a_process_that_ends_with_it(tmp_path: Path, host: VmHost) -> None:
    folder = write_task(tmp_path, HONEST)
    host.wait_ready()
    shared = host.report().pid
    vms = [VM(folder, host=host, alone=True) for _ in range(6)]
    calls = [asyncio.ensure_future(vm.call("wait", 0.3, deadline=5.0)) for vm in vms]
    most = 0
    for call in calls:
        while not call.done():
            most = max(most, len(host_processes()) - 1)
            await asyncio.sleep(0.02)
            for vm, done in zip(vms, calls, strict=True):
                if done.done():
                    vm.close()  # a closed VM makes room for the next start
        assert await call == 0.3
    assert 1 < most <= 4
    assert all([await vm.wait_closed() for vm in vms])
    async with asyncio.timeout(10):
        while host_processes() != [shared]:  # noqa: ASYNC110 -- processes send no event
            await asyncio.sleep(0.01)
    waiting = [VM(folder, host=host, alone=True) for _ in range(6)]
    running = [asyncio.ensure_future(vm.call("wait", 30.0)) for vm in waiting]
    await asyncio.sleep(0.2)
    await asyncio.to_thread(host.close)
    for call in running:
        with pytest.raises(VMClosedError, match="was closed"):
            await asyncio.wait_for(call, 10)
    assert host_processes() == []


def test_a_vm_alone_needs_a_host(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="host"):
        VM(write_task(tmp_path, HONEST), alone=True)


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_stopped_host_is_killed_when_a_reply_is_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "HostClient", functools.partial(_core.HostClient, reply_s=0.5))
    host = VmHost()
    vm = VM(write_task(tmp_path, HONEST), host=host, grace_s=0.1)
    assert await vm.call("add", 1, 2) == 3
    pid = host.report().pid
    os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(HostCrashed, match="did not answer"):
        await vm.call("add", 1, 2, deadline=0.1)
    assert 0.5 <= time.monotonic() - began_s < 15
    await wait_until_gone(pid)
    host.close()


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_signal_that_no_code_caused_is_blamed_on_no_task(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, HONEST), host=host)
    assert await vm.call("add", 1, 2) == 3
    call = asyncio.create_task(vm.call("wait", 30.0))
    await asyncio.sleep(0.2)
    os.kill(host.report().pid, signal.SIGHUP)
    with pytest.raises(HostLost) as lost:
        await call
    assert not isinstance(lost.value, HostCrashed)
