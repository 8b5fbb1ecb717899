"""Arrays in memory that a device shares with its VM host: what tasks see, and when the memory is used again."""

import asyncio
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy
import pytest

from tests.sim.vm_hosts import descriptors
from tests.sim.vm_task import write_task
from walle import np
from walle.engine_ext import _core
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.loop_calls import HostLost, LimitExceeded, TaskError
from walle.engine_ext.vm.vm import VM
from walle.vm import shared_empty, shared_memory_counts

SHAPE = (360, 640, 3)
TASK = """
    import time

    kept = []

    def total(array):
        return int(array.astype("int64").sum())

    def corner(array):
        return array[-1, -1].tolist(), array.shape, str(array.dtype)

    def keep(array):
        kept.append(array)
        return len(kept)

    def kept_totals():
        return [total(array) for array in kept]

    def drop():
        kept.clear()

    def write(array):
        array[0, 0, 0] = 1

    def wait(array):
        while True:
            array[0]

    def spin(array, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    def after(array, numbers):
        return None

    def give_back(array):
        return array[1:3]
"""


def frame(value: int) -> np.ndarray:
    array = shared_empty(SHAPE, "uint8")
    numpy.asarray(array)[:] = value
    return array


def size_of(value: int) -> int:
    return value * SHAPE[0] * SHAPE[1] * SHAPE[2]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path, TASK)


@pytest.mark.asyncio
async def test_a_frame_is_the_same_in_both_places_and_read_only(task: Path, place: str) -> None:
    vm = VM(task)
    array = shared_empty(SHAPE, "uint8")
    values = numpy.asarray(array)
    values[:] = numpy.random.default_rng(1).integers(0, 256, SHAPE, dtype="uint8")
    assert await vm.call("total", array) == int(values.sum(dtype="int64"))
    assert await vm.call("corner", array[:, :100]) == (values[-1, 99].tolist(), (360, 100, 3), "uint8")  # cut rows
    assert await vm.call("corner", values[5:]) == (values[-1, -1].tolist(), (355, 640, 3), "uint8")  # a view of NumPy's
    assert await vm.call("corner", values[::-1, ::-1]) == (values[0, 0].tolist(), SHAPE, "uint8")
    assert numpy.array_equal(await vm.call("give_back", array), values[1:3])
    with pytest.raises(TaskError, match="read-only"):
        await vm.call("write", array)


@pytest.mark.asyncio
async def test_memory_is_used_again_once_app_and_tasks_have_released_it(task: Path, host: VmHost) -> None:
    vms = [VM(task, host=host) for _ in range(3)]
    created = shared_memory_counts()["created"]
    pid = before = open_files = 0
    for value in range(200):
        array = frame(value % 256)
        totals = await asyncio.gather(*(vm.call("total", array) for vm in vms))
        assert totals == [size_of(value % 256)] * 3
        if value == 20:
            pid = host.report().pid
            before, open_files = mapped_bytes(pid), descriptors(pid)
    assert shared_memory_counts()["created"] - created <= 2  # the loop's variable holds one while the next is made
    assert mapped_bytes(pid) == before
    assert descriptors(pid) == open_files


@pytest.mark.asyncio
async def test_a_call_that_ends_as_another_is_read_keeps_no_buffer(task: Path, host: VmHost) -> None:
    first, second = VM(task, host=host), VM(task, host=host)
    await asyncio.gather(*(vm.call("total", frame(0)) for vm in (first, second)))
    created = shared_memory_counts()["created"]
    long = list(range(100_000))  # takes milliseconds to send and to read
    began = time.perf_counter()
    await second.call("corner", frame(0))
    await second.call("after", frame(0), long)
    most_s = time.perf_counter() - began
    for number in range(40):
        array = frame(number)
        await asyncio.gather(first.call("spin", array, most_s * number / 40), second.call("after", array, long))
    assert shared_memory_counts()["created"] - created <= 2


@pytest.mark.asyncio
async def test_a_frame_that_a_task_keeps_does_not_change(task: Path, host: VmHost) -> None:
    keeper, reader = VM(task, host=host), VM(task, host=host)
    for value in range(6):
        array = frame(value)
        await asyncio.gather(keeper.call("keep", array), reader.call("total", array))
        del array
    assert await keeper.call("kept_totals") == [size_of(value) for value in range(6)]
    kept_bytes = mapped_bytes(host.report().pid)
    await keeper.call("drop")
    for value in range(6):
        assert await keeper.call("total", frame(value)) == size_of(value)
    assert mapped_bytes(host.report().pid) < kept_bytes


@pytest.mark.asyncio
async def test_frames_that_a_task_keeps_count_towards_its_memory(task: Path, place: str) -> None:
    vm = VM(task, limits={"memory_mb": 24})
    kept = 0

    async def keep_many() -> None:
        nonlocal kept
        for value in range(60):
            kept = await vm.call("keep", frame(value))

    with pytest.raises(LimitExceeded) as found:
        await keep_many()
    assert found.value.limit == "memory_mb"
    assert kept > 10  # several fit
    vm.close()
    assert await vm.wait_closed()
    assert shared_memory_counts()["bytes"] < 80 << 20


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_host_that_is_killed_in_mid_frame_releases_it(task: Path, host: VmHost) -> None:
    vm = VM(task, host=host)
    array = frame(3)
    in_use = shared_memory_counts()["in_use"]
    assert await vm.call("total", array) == size_of(3)
    call = asyncio.ensure_future(vm.call("wait", array, deadline=20))
    await asyncio.sleep(0.05)
    del array
    assert shared_memory_counts()["in_use"] == in_use  # the call has it
    os.kill(host.report().pid, signal.SIGKILL)
    with pytest.raises(HostLost):
        await call
    del call
    gc.collect()
    await asyncio.to_thread(wait_for_release, in_use - 1)
    next_vm = VM(task, host=host)  # a VM of the next host, which gets the same buffer
    assert await next_vm.call("total", frame(4)) == size_of(4)


@pytest.mark.asyncio
async def test_a_stopped_call_leaves_later_frames_alone(task: Path, host: VmHost) -> None:
    vm = VM(task, host=host)
    with pytest.raises(LimitExceeded):
        await vm.call("wait", frame(1), deadline=0.05)
    for value in range(5):
        assert await vm.call("total", frame(value)) == size_of(value)


@pytest.mark.asyncio
async def test_the_host_cannot_write_to_shared_memory(task: Path, host: VmHost) -> None:
    array = frame(1)
    vm = VM(task, host=host)
    await vm.call("total", array)
    lines = mappings(host.report().pid)
    assert lines
    assert {line.split()[1] for line in lines} == {"r--s"}


def test_small_and_empty_arrays_are_ordinary_and_wrong_ones_are_refused() -> None:
    before = shared_memory_counts()
    assert shared_empty((3, 4), "float32").shape == (3, 4)
    assert shared_empty((0, 4), "float32").shape == (0, 4)
    assert shared_empty(7, "int16").shape == (7,)
    assert shared_memory_counts() == before
    for shape in ((-1, 3), (1 << 40, 1 << 40)):
        with pytest.raises(Exception, match=r"dimension|elements|shape"):
            shared_empty(shape, "uint8")


def test_a_copy_is_made_once_and_views_of_shared_memory_are_not_copied() -> None:
    rng = numpy.random.default_rng(3)
    source = rng.integers(0, 255, (200, 300, 3), dtype="uint8")
    for array in (source, source[::2], source[:, 5:250], source[:, :, ::-1], source.T, source[::-1]):
        copy = _core.shared_copy(array)
        assert numpy.array_equal(copy, array)
        assert not numpy.shares_memory(numpy.asarray(copy), source)
    shared = _core.shared_copy(source)
    assert _core.shared_copy(shared) is shared
    part = numpy.asarray(shared)[10:]
    assert numpy.shares_memory(numpy.asarray(_core.shared_copy(part)), part)


def test_memory_that_waits_is_bounded() -> None:
    arrays = [shared_empty((1 << 20) + (index << 16), "uint8") for index in range(60)]
    del arrays
    counts = shared_memory_counts()
    assert counts["bytes"] <= (32 << 20) + counts["in_use"] * (1 << 23)
    many = [shared_empty(1 << 16, "uint8") for _ in range(300)]  # beyond the bound they are ordinary arrays
    assert shared_memory_counts()["in_use"] <= 128
    for index, array in enumerate(many):
        numpy.asarray(array)[:] = index % 256
    assert all(int(array[5]) == index % 256 for index, array in enumerate(many))


def test_a_forked_child_has_no_part_in_its_parents_buffers(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, numpy
        from walle.vm import shared_empty, shared_memory_counts
        kept = shared_empty(1 << 20, "uint8")
        numpy.asarray(kept)[:] = 7
        free = shared_empty(1 << 20, "uint8")
        del free
        pid = os.fork()
        if pid == 0:
            assert shared_memory_counts()["bytes"] == 0
            own = shared_empty(1 << 20, "uint8")
            numpy.asarray(own)[:] = 9
            del kept, own
            os._exit(0 if shared_memory_counts()["in_use"] == 0 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        mine = shared_empty(1 << 20, "uint8")
        assert (numpy.asarray(kept) == 7).all() and shared_memory_counts()["in_use"] == 2
        print("done")
        """
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == "done\n", found.stderr


@pytest.mark.asyncio
async def test_frames_of_many_sizes_and_calls_at_once(task: Path, host: VmHost) -> None:
    rng = random.Random(5)
    vms = [VM(task, host=host) for _ in range(3)]

    async def one(index: int) -> None:
        array = shared_empty((rng.choice([100, 200, 300]), 400, 3), "uint8")
        value = index % 251
        numpy.asarray(array)[:] = value
        size = array.size
        vm = rng.choice(vms)
        assert await vm.call("total", array) == value * size
        if rng.random() < 0.1:
            await vm.call("keep", array)
        if rng.random() < 0.05:
            await vm.call("drop")

    for start in range(0, 200, 8):
        await asyncio.gather(*(one(start + index) for index in range(8)))


def wait_for_release(in_use: int) -> None:
    """Return once no more than `in_use` buffers are: the thread that reads a host's socket releases its calls' own."""
    until = time.monotonic() + 5
    while shared_memory_counts()["in_use"] > in_use:
        assert time.monotonic() < until
        time.sleep(0.01)


def mappings(pid: int) -> list[str]:
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "walle-array" in line]


def mapped_bytes(pid: int) -> int:
    total = 0
    for line in mappings(pid):
        low, high = line.split()[0].split("-")
        total += int(high, 16) - int(low, 16)
    return total


@pytest.mark.asyncio
async def test_a_failed_call_releases_its_arguments_at_once(task: Path, place: str) -> None:
    """Its error and its frame must not refer to each other: the collector of cycles comes late."""
    vm = VM(task)
    await vm.call("total", frame(0))
    gc.collect()
    before = shared_memory_counts()["in_use"]
    gc.disable()
    try:
        for value in range(6):
            with contextlib.suppress(TaskError):
                await vm.call("write", frame(value))
        assert shared_memory_counts()["in_use"] <= before + 1
    finally:
        gc.enable()
    vm.close()
