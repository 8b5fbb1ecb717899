import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walle.np
from tests.sim.vm_task import write_task
from walle.engine_ext import _core
from walle.engine_ext.vm.loop_calls import TaskError
from walle.engine_ext.vm.vm import VM

pytestmark = pytest.mark.usefixtures("place")

MAIN = """
import array
import walle.np as np

kept = []

def echo(value):
    return value

def address(value):
    return value.address

def fill(value, number):
    value[0] = number

def add(value):
    value += 1

def first_two(value):
    copy = value.copy()
    copy[0] = 7
    return copy[:2]

def made_here(is_kept):
    made = np.zeros((3,))
    if is_kept:
        kept.append(made)
    return made

def describe(value):
    view = memoryview(value)
    return view.format, view.shape, view.strides, view.readonly

def keep(value):
    kept.append(value)

def drop():
    kept.clear()

def make(count):
    kept.append(array.array("d", range(count)))
    return kept[-1]

def repeat(count):
    kept.append(array.array("d", range(count)))
    return np.broadcast_to(np.asarray(kept[-1]), (2, count))

def set_first(value):
    kept[-1][0] = value

def view(count):
    return memoryview(bytearray(range(count)))[::2]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_task(tmp_path, MAIN)


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_a_numpy_array_goes_in_and_out_without_a_copy(folder: Path) -> None:
    vm = VM(folder)
    array = np.arange(12, dtype="float32").reshape(3, 4)
    assert await vm.call("address", array) == address(array)
    back = np.asarray(await vm.call("echo", array))
    assert np.shares_memory(back, array)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    vm.close()


@pytest.mark.asyncio
async def test_an_array_is_read_only_where_it_arrives(folder: Path) -> None:
    vm, other = VM(folder), VM(folder)
    array = np.arange(4, dtype="float32")
    for given in (array, await other.call("made_here", True), {"a": [array]}["a"][0][1:]):
        before = np.array(given)
        for function, args in (("fill", (given, 7.5)), ("add", (given,))):
            with pytest.raises(TaskError, match="read-only"):
                await vm.call(function, *args)
        np.testing.assert_array_equal(np.asarray(given), before)
    array[0] = 3.0  # the owner may still write to it
    assert np.asarray(await vm.call("first_two", array)).tolist() == [7, 1]
    vm.close()
    other.close()


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_a_result_that_the_task_does_not_keep_can_be_written(folder: Path) -> None:
    vm = VM(folder)
    own = np.asarray(await vm.call("made_here", False))
    own[0] = 5.0
    assert not np.asarray(await vm.call("made_here", True)).flags.writeable
    vm.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
async def test_every_dtype_crosses(folder: Path, dtype: str) -> None:
    vm = VM(folder)
    for shape in [(1,), (0, 3), (2, 3)]:
        array = np.ones(shape, dtype)
        back = np.asarray((await vm.call("echo", {"a": [array]}))["a"][0])
        assert (back.shape, back.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(back, array)
    vm.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "i8", "u8", "?"])
async def test_an_array_without_axes_crosses_as_its_number(folder: Path, dtype: str) -> None:
    vm = VM(folder)
    for value in (np.ones((), dtype), np.dtype(dtype).type(1), walle.np.asarray(1, np.dtype(dtype).name)):
        (back,) = await vm.call("echo", [value])
        assert type(back) is {"f": float, "?": bool}.get(dtype[0], int)
        assert back == 1
    vm.close()


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_views_keep_their_strides_and_read_only_stays_so(folder: Path) -> None:
    vm = VM(folder)
    array = np.arange(24, dtype="int32").reshape(2, 3, 4)[:, ::2, ::-1]
    array.setflags(write=False)
    assert await vm.call("describe", array) == ("i", array.shape, array.strides, True)
    back = np.asarray(await vm.call("echo", array))
    np.testing.assert_array_equal(back, array)
    assert not back.flags.writeable
    vm.close()


@pytest.mark.asyncio
async def test_an_array_of_objects_is_refused(folder: Path) -> None:
    vm = VM(folder)
    with pytest.raises(TypeError, match=r"args\[0\]\.a is an array that cannot be sent"):
        await vm.call("echo", {"a": np.array(["text"])})
    with pytest.raises(TypeError, match=r"args\[0\] is an array that cannot be sent"):
        await vm.call("echo", np.zeros(2, dtype=[("a", "f4"), ("b", "i2")]))
    vm.close()


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_numpys_memory_is_released_when_the_vm_drops_it(folder: Path) -> None:
    vm = VM(folder)
    array = np.zeros(1000)
    gone = weakref.ref(array)
    await vm.call("keep", array)
    del array
    gc.collect()
    assert gone() is not None  # the VM holds it
    await vm.call("drop")
    gc.collect()
    assert gone() is None
    vm.close()


@pytest.mark.asyncio
async def test_numpys_memory_is_released_when_the_vm_ends(folder: Path) -> None:
    vm, other = VM(folder), VM(folder)
    array = np.zeros(1000)
    gone = weakref.ref(array)
    await vm.call("keep", array)
    del array
    vm.close()
    assert await vm.wait_closed()
    await other.call("echo", 1)  # any reply releases the loans that have ended
    gc.collect()
    assert gone() is None
    other.close()


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_an_array_created_in_a_vm_outlives_it_and_is_freed_when_dropped(folder: Path) -> None:
    gc.collect()
    before = _core.live_storage_bytes()
    vm = VM(folder)
    made = await vm.call("make", 100_000)
    every_other = await vm.call("view", 10)
    assert _core.live_storage_bytes() - before >= 800_000
    vm.close()
    assert await vm.wait_closed()
    np.testing.assert_array_equal(np.asarray(made), np.arange(100_000, dtype="float64"))
    assert list(memoryview(every_other)) == [0, 2, 4, 6, 8]
    del made, every_other
    assert _core.live_storage_bytes() == before


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_engine_memory_crosses_both_ways_without_a_copy(folder: Path) -> None:
    one, other = VM(folder), VM(folder)
    before = _core.live_storage_bytes()
    made = await one.call("make", 1000)  # engine memory from here on
    live = _core.live_storage_bytes()
    for vm in (one, other, one):
        made_again = await vm.call("echo", made)
        assert made_again.address == made.address
        assert await vm.call("address", made) == made.address
    assert _core.live_storage_bytes() == live
    await other.call("keep", made)
    del made, made_again
    assert _core.live_storage_bytes() == live  # the other VM holds it
    other.close()
    one.close()
    assert await other.wait_closed()
    assert await one.wait_closed()
    assert _core.live_storage_bytes() == before


@pytest.mark.in_process
@pytest.mark.asyncio
async def test_arrays_cross_to_a_callback_and_back(folder: Path) -> None:
    vm = VM(folder)
    array = np.arange(5.0)
    seen: list[Any] = []

    def look(value: Any) -> Any:
        seen.append(address(value))
        return value

    back = await vm.call("walle.engine_ext.vm.callbacks:call", "look", array, callbacks={"look": look})
    assert seen == [address(array)]
    assert np.shares_memory(np.asarray(back), array)
    vm.close()


def test_memory_stays_flat_over_many_calls(folder: Path) -> None:
    async def main() -> None:
        vm = VM(folder)
        await vm.call("make", 10)
        before = _core.live_storage_bytes()
        for _ in range(300):
            await vm.call("make", 1000)
            await vm.call("drop")
        assert _core.live_storage_bytes() <= before
        vm.close()
        assert await vm.wait_closed()

    asyncio.run(main())


@pytest.mark.asyncio
async def test_a_repeated_view_of_the_vms_own_memory_leaves_as_a_copy(folder: Path) -> None:
    vm = VM(folder)
    found = await vm.call("repeat", 1000)
    await vm.call("set_first", -1.0)
    vm.close()
    assert await vm.wait_closed()
    np.testing.assert_array_equal(np.asarray(found), np.broadcast_to(np.arange(1000.0), (2, 1000)))


@pytest.mark.asyncio
async def test_a_result_too_large_for_plain_data_is_refused(folder: Path) -> None:
    vm = VM(folder)
    huge = b"x" * (257 << 20)
    with pytest.raises(TypeError, match="larger than 268435456 bytes; send arrays instead"):
        await vm.call("echo", huge)
    with pytest.raises(TaskError, match="result"):
        await vm.call("walle.engine_ext.vm.callbacks:call", "absent")
    vm.close()
