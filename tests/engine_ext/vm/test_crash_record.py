"""Places of crashes: what a device reports of the task that ran as its VM host ended, by each kind of end."""

import asyncio
import contextlib
import logging
import mmap
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.sim.vm_hosts import CRASHES, HONEST
from tests.sim.vm_task import write_task
from walle.engine_ext.vm.pool import MAX_LOST_ALONE, MAX_STRIKES
from walle.protocol import Manifest, TriggerCondition
from walle.task.format.failure import failure_of
from walle.task.run.runner import TaskRunner
from walle.vm import VM, HostCrashed, HostLost, TaskQuarantined, VmHost, VMPool

CRASHES_BELOW = CRASHES.replace("run", "wild") + "\ndef run():\n    return wild()\n"
# Nested iterators use the thread's stack for each level, and CPython does not count them.
OVERFLOWS = """
def run():
    found = iter(())
    for _ in range(2_000_000):
        found = map(bool, found)
    return next(found, None)
"""
# Writes to the descriptors of its process that nothing forbids, without waiting, and more than the device reads.
WRITES_FRAMES = """
def write_frames(head):
    queue = [object]
    for one in queue:
        queue += type.__subclasses__(one)
    files = next(one for one in queue if one.__name__ == "FileIO")
    written = 0
    for number in range(3, 64):
        try:
            files(number, "w", closefd=False).write((head + "\\x1b[31m" * 8000).encode())
            for _ in range(100):
                files(number, "w", closefd=False).write(b"\\x1b[31m" * 8000)
            written += 1
        except OSError:
            pass
    return written
"""
MANIFEST: dict[str, Any] = {"version": "v1", "commit": "", "bytecode": (), "phases": {}, "files": ()}


def line_of(source: str, text: str) -> int:
    return 1 + source[: source.index(text)].count("\n")


@pytest.mark.asyncio
async def test_a_crash_names_the_line_of_the_task_that_led_to_it(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, CRASHES_BELOW), name="wild v3", host=host)
    with pytest.raises(HostCrashed, match="SIGSEGV") as caught:
        await vm.call("run")
    error = caught.value
    assert error.phase == "run"
    assert error.place == f"{tmp_path}/main.py:{line_of(CRASHES_BELOW, 'type(')} in wild"
    assert vm.last_place == (error.phase, error.place)
    assert f"(phase run, {error.place})" in str(error)
    assert failure_of(error).place == error.place


@pytest.mark.asyncio
async def test_a_crash_names_its_own_vm_among_several(
    tmp_path: Path, host: VmHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "walle.engine_ext.vm.host")
    others = _records()
    crashing = VM(write_task(tmp_path / "crashing", CRASHES), name="crashing v1", host=host)
    honest = VM(write_task(tmp_path / "honest", HONEST), name="honest v2", host=host)
    idle = VM(tmp_path / "honest", name="idle v2", host=host)
    assert [await honest.call("add", 1, 2), await idle.call("add", 1, 2)] == [3, 3]
    waiting = asyncio.ensure_future(honest.call("wait", 30.0))
    await asyncio.sleep(0)
    (record,) = _records() - others
    await _entered(record, b"wait")
    with pytest.raises(HostLost, match=r"phase run, .*main\.py:\d+ in run") as lost:
        await crashing.call("run")
    assert lost.value.place.startswith(f"{tmp_path}/crashing/main.py:")
    with pytest.raises(HostLost) as beside:
        await waiting
    assert (beside.value.phase, beside.value.place) == ("wait", "")  # nothing of the task that crashed
    assert idle.last_place == ("", "")
    await asyncio.to_thread(host.close)
    (end,) = [record.getMessage() for record in caplog.records if "SIGSEGV" in record.getMessage()]
    assert "crashing v1 (run, " in end
    assert "honest v2 (wait)" in end
    assert "idle" not in end


@pytest.mark.asyncio
async def test_a_stack_that_is_used_up_names_the_line(tmp_path: Path, host: VmHost) -> None:
    vm = VM(write_task(tmp_path, OVERFLOWS), host=host)
    with pytest.raises(HostCrashed, match="SIGSEGV") as caught:
        await vm.call("run")
    assert caught.value.place.endswith(f"main.py:{line_of(OVERFLOWS, 'return next')} in run")


@pytest.mark.asyncio
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
async def test_an_end_from_outside_names_the_phase_and_what_the_task_entered_last(
    tmp_path: Path, host: VmHost, by: signal.Signals
) -> None:
    """SIGKILL is also how the system ends a process where memory runs out; no handler runs then."""
    main = HONEST + "\ndef execute(ctx, x):\n    return wait(30.0)\n"
    files = write_task(tmp_path, main)
    others = _records()
    vm = VM(files, host=host)
    running = asyncio.ensure_future(vm.call("walle.pipeline.stream.context:phase", "a/b", "execute", 1, {}))
    (record,) = _records() - others
    await _entered(record, b" in execute")
    os.kill(host.report().pid, by)
    with pytest.raises(HostLost, match=by.name) as caught:
        await running
    assert (caught.value.phase, caught.value.place.rpartition("/")[2]) == (
        "execute",
        f"main.py:{line_of(main, 'def execute')} in execute",
    )


@pytest.mark.asyncio
async def test_an_end_while_a_module_is_loaded_names_the_module(tmp_path: Path, host: VmHost) -> None:
    folder = write_task(tmp_path, HONEST + "import slow\n")
    (folder / "slow.py").write_text(HONEST + "\nwait(30.0)\n")
    others = _records()
    running = asyncio.ensure_future(VM(folder, host=host).call("walle.pipeline.stream.context:load"))
    await asyncio.sleep(0)
    (record,) = _records() - others
    await _entered(record, b"slow.py")
    os.kill(host.report().pid, signal.SIGKILL)
    with pytest.raises(HostLost) as caught:
        await running
    assert caught.value.phase == "load"
    assert "slow.py:" in caught.value.place


@pytest.mark.asyncio
async def test_a_task_that_takes_all_memory_has_a_place_in_its_quarantine(tmp_path: Path, host: VmHost) -> None:
    """The system sends SIGKILL then, which the test does in its place."""
    main = "def execute(ctx, x):\n    return ctx.features('v', k=1)\n"
    runner = TaskRunner(2, host=host)
    files = write_task(tmp_path / "hog", main)
    trigger = TriggerCondition.of(["page_exit"])
    manifest = Manifest(
        scenario="a", task="hog", trigger=trigger, limits={}, **{**MANIFEST, "phases": {"execute": "cloud"}}
    )

    def kill(*_: object) -> None:
        for pid in _own_hosts(host):
            os.kill(pid, signal.SIGKILL)

    errors = []
    for _ in range(MAX_LOST_ALONE + 1):
        with pytest.raises((HostLost, TaskQuarantined)) as caught:
            await runner.phase(files, manifest, "execute", 1, {}, callbacks={"features": kill})
        errors.append(caught.value)
    assert isinstance(errors[-1], TaskQuarantined)
    failure = failure_of(errors[-1])
    assert failure.place.endswith("main.py:1 in execute")
    assert failure.place in failure.error
    await runner.close()


def _own_hosts(host: VmHost) -> list[int]:
    processes = [*host._alone, *([host._process] if host._process else [])]
    return [one.pid for one in processes if one.pid and one.client.usable]


@pytest.mark.asyncio
async def test_strikes_of_crashes_end_in_a_quarantine_with_their_place(tmp_path: Path, host: VmHost) -> None:
    pool = VMPool(1, host=host)
    folder = write_task(tmp_path, CRASHES)
    for _ in range(MAX_STRIKES):
        with pytest.raises(HostCrashed):
            await pool.call(folder, "run")
    with pytest.raises(TaskQuarantined) as caught:
        await pool.call(folder, "run")
    assert "main.py:" in caught.value.place
    pool.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("trace", ["of no thread", "of its thread"])
async def test_a_record_that_a_task_has_overwritten_is_only_shown(tmp_path: Path, host: VmHost, trace: str) -> None:
    """A task that broke out of Python writes what it likes: bounded, escaped, and nobody is blamed for it."""
    others = _records()
    vm = VM(write_task(tmp_path, HONEST + WRITES_FRAMES), host=host)
    assert await vm.call("add", 1, 2) == 3
    pid = host.report().pid
    (record,) = _records() - others
    thread = int.from_bytes(os.pread(record, 8, 8), "little")
    heads = {"of no thread": "zz", "of its thread": f'{thread:x} :\n  File "{tmp_path}/main.py", line '}
    assert await vm.call("write_frames", f"Current thread 0x{heads[trace]}") == 1  # the socket alone may be written to
    running = asyncio.ensure_future(vm.call("wait", 30.0))
    await _entered(record, b"wait")
    with mmap.mmap(record, 32 << 10) as memory:
        entry = memory.find((1).to_bytes(8, "little"))
        memory[entry + 16 : entry + 512] = b"\x1b[31m\xff?" * 70 + b"\x1b[31m!"  # neither ends with a zero
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(record, 0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(HostLost) as caught:
        await running
    assert len(caught.value.phase) <= 32
    assert len(caught.value.place) <= 464
    assert "\x1b" not in failure_of(caught.value).place


def _records() -> set[int]:
    """Return this process's descriptors of crash records, each of another host."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "walle-crash-record" in str(link.readlink()):
                found.add(int(link.name))
    return found


async def _entered(record: int, text: bytes) -> None:
    """Wait until the record has a text."""
    async with asyncio.timeout(30):
        while text not in os.pread(record, 32 << 10, 0):  # noqa: ASYNC110 -- memory sends no event
            await asyncio.sleep(0.01)
