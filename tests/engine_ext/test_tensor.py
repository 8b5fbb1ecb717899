"""Arrays: views, the buffer protocol in both directions, conversions."""

import array
import copy
import gc
from typing import Any

import numpy
import pytest

import walle.np as np
from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ShapeError

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_a_buffer_is_shared_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    there = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    here = np.asarray(there)
    back = numpy.asarray(here)
    assert (here.shape, here.dtype, here.ndim, here.size) == (there.shape, dtype, there.ndim, there.size)
    assert back.dtype == there.dtype
    numpy.testing.assert_array_equal(back, there)
    if there.size:
        assert here.address == there.ctypes.data == back.ctypes.data


def test_writing_through_a_shared_buffer_shows_on_the_other_side() -> None:
    there = numpy.zeros((2, 3), "float32")
    np.asarray(there)[1, ::2] = 7
    assert there.tolist() == [[0, 0, 0], [7, 0, 7]]


def test_strides_and_negative_steps_are_shared() -> None:
    there = numpy.arange(24, dtype="int32").reshape(4, 6)[::-1, 1::2]
    here = np.asarray(there)
    assert here.strides == there.strides
    numpy.testing.assert_array_equal(numpy.asarray(here), there)


def test_a_read_only_buffer_stays_read_only() -> None:
    here = np.asarray(memoryview(b"abc"))
    assert here.tolist() == [97, 98, 99]
    assert not numpy.asarray(here).flags.writeable
    with pytest.raises(DTypeError, match="read-only"):
        here[0] = 1


def test_the_owner_of_a_buffer_lives_as_long_as_its_arrays() -> None:
    here = np.asarray(array.array("f", [1, 2, 3]))[1:]
    gc.collect()
    assert here.tolist() == [2, 3]


@pytest.mark.parametrize("bad", [numpy.array(["a"]), numpy.array([1j], "clongdouble"), numpy.array([object()])])
def test_buffers_that_are_not_arrays_of_numbers_are_refused(bad: numpy.ndarray) -> None:
    with pytest.raises(DTypeError, match="not an array of numbers"):
        np.asarray(bad)


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (1, "int64", ()),
        (1.5, "float32", ()),
        (True, "bool", ()),
        ([], "float32", (0,)),
        ([[]], "float32", (1, 0)),
        ([1, 2.0, True], "float32", (3,)),
        ([True, 2], "int64", (2,)),
        (((1, 2), (3, 4)), "int64", (2, 2)),
        ([numpy.zeros(2, "int32"), [1, 2]], None, None),
        ([numpy.zeros(2, "int32"), numpy.ones(2, "int32")], "int32", (2, 2)),
    ],
)
def test_lists_and_numbers_become_arrays(value: Any, dtype: str | None, shape: tuple[int, ...] | None) -> None:
    if dtype is None:
        with pytest.raises(ShapeError):
            np.asarray(value)
        return
    made = np.asarray(value)
    assert (made.dtype, made.shape) == (dtype, shape)
    assert made.tolist() == numpy.asarray(value).tolist()


@pytest.mark.parametrize("ragged", [[[1], [1, 2]], [1, [2]], [[1], 2], [[[1]], [2]]])
def test_ragged_lists_are_refused(ragged: list[object]) -> None:
    with pytest.raises(ShapeError, match="nested lists"):
        np.asarray(ragged)


def test_a_list_in_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ShapeError, match="deeper"):
        np.asarray(endless)


@pytest.mark.parametrize("bad", [None, "text", {1: 2}, object(), [None], ["a"]])
def test_other_values_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError):
        np.asarray(bad)


@pytest.mark.parametrize(
    ("number", "dtype"), [(256, "uint8"), (-1, "uint8"), (2**31, "int32"), (2**63, "int64"), (1e300, "int64")]
)
def test_an_int_that_does_not_fit_is_refused(number: float, dtype: str) -> None:
    with pytest.raises(OverflowError):
        np.asarray(number, dtype)


def test_unknown_dtypes_are_refused_by_name() -> None:
    with pytest.raises(DTypeError, match="'float33'"):
        np.zeros(3, "float33")
    with pytest.raises(DTypeError):
        np.zeros(3, bytes)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_astype_agrees_with_numpy(source: str, target: str) -> None:
    there = numpy.array([0, 1, 2, 100, 1, 0, 7], source)
    numpy.testing.assert_array_equal(numpy.asarray(np.asarray(there).astype(target)), there.astype(target))
    numpy.testing.assert_array_equal(numpy.asarray(np.asarray(there)[::2].astype(target)), there[::2].astype(target))


def test_floats_outside_an_integers_range_saturate() -> None:
    assert np.array([1e30, -1e30, float("nan"), 1.9, -1.9]).astype("int32").tolist() == [2**31 - 1, -(2**31), 0, 1, -1]


def test_numbers_of_one_element() -> None:
    one = np.array([[2.5]])
    assert (float(one), int(one), one.item(), bool(one)) == (2.5, 2, 2.5, True)
    scalar = np.array([1, 2, 3])[1]
    assert [10, 20, 30][scalar] == 30
    names: dict[Any, str] = {2: "two"}
    assert names[scalar] == "two"
    assert f"{np.array(1.5):.3f}" == "1.500"
    for ambiguous in (np.zeros(2), np.zeros(0)):
        with pytest.raises(ShapeError):
            bool(ambiguous)
        with pytest.raises(ShapeError):
            float(ambiguous)
    with pytest.raises(TypeError):
        hash(np.zeros(2))
    with pytest.raises(TypeError):
        len(np.array(1))


def test_copies_are_copies() -> None:
    first = np.array([1.0, 2.0])
    for other in (
        first.copy(),
        copy.copy(first),
        copy.deepcopy(first),
        first.flatten(),
        first.astype("float32"),
        +first,
    ):
        other[0] = 9
    assert first.tolist() == [1, 2]
    second = first[0]
    first[0] = 5
    assert second.item() == 1


def test_memory_is_freed() -> None:
    before = _core.live_storage_bytes()
    big = np.zeros((1000, 1000))
    assert _core.live_storage_bytes() >= before + 4_000_000
    part = big[0, :10]
    del big
    assert _core.live_storage_bytes() >= before + 4_000_000
    del part
    assert _core.live_storage_bytes() == before


def test_impossible_shapes_are_refused() -> None:
    for shape in [(-1,), (2**61,), (2**40, 2**40), (0, 2**40, 2**40)]:
        with pytest.raises(ShapeError):
            np.zeros(shape)
    with pytest.raises(MemoryError):  # 1 PiB, which a system with overcommit would grant
        np.zeros((2**48,))


def test_an_array_whose_elements_are_not_aligned_is_refused() -> None:
    data = bytes(65)
    odd = next(offset for offset in (0, 1) if numpy.frombuffer(data, "u1").ctypes.data % 4 != (4 - offset) % 4)
    with pytest.raises(DTypeError, match="not aligned"):
        np.asarray(numpy.frombuffer(data, "f4", count=8, offset=odd))
    assert np.asarray(numpy.frombuffer(data, "u1", offset=odd)).size == 65 - odd


def test_bools_of_a_buffer_are_0_or_1() -> None:
    with pytest.raises(DTypeError, match="neither 0 nor 1"):
        np.frombuffer(b"\x01\xff", "bool")
    memory = bytearray(b"\0\1\1")
    mask = np.frombuffer(memory, "bool")
    memory[1] = 7  # the owner still writes to it
    assert np.flatnonzero(mask).tolist() == [1, 2]


def test_a_list_that_changes_while_it_is_read() -> None:
    class Clearing:
        def __buffer__(self, flags: int, /) -> memoryview:
            parts.clear()
            return memoryview(bytes(4))

    parts: list[Clearing] = []
    parts += [Clearing() for _ in range(3)]
    assert np.asarray(parts).shape == (3, 4)


def test_an_array_is_not_created_without_memory() -> None:
    with pytest.raises(TypeError):
        np.ndarray.__new__(np.ndarray)  # type: ignore[call-arg, unused-ignore]
    assert np.ndarray(bytearray(b"ab")).tolist() == [97, 98]
