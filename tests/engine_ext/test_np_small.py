"""Small arrays: paths without pybind11 give what the general ones and NumPy give; elements are values, not views."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from walle.engine_ext import _core
from walle.engine_ext._core import live_storage_bytes
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError

DTYPES = ["float32", "float64", "float16", "int8", "int32", "int64", "uint8", "uint64", "bool"]


def same(here: Any, there: Any) -> None:
    there = numpy.asarray(there)
    assert here.shape == there.shape
    assert here.dtype == there.dtype.name
    numpy.testing.assert_array_equal(numpy.asarray(here), there)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_numbers_apart_from_their_array(dtype: str) -> None:
    x = np.asarray([1, 0, 1], dtype)
    first, last, (_, *rest) = x[0], x[0, ...], x
    x[0], x[2] = 0, 0
    assert first.item() == 1
    assert last.item() == 0, "a key with an ellipsis is a view, as in NumPy"
    assert rest[1].item() == 1
    assert first.dtype == dtype
    assert (first.shape, first.ndim, first.size, first.nbytes) == ((), 0, 1, x.itemsize)
    first[...] = 0
    assert not first
    assert numpy.asarray(first).dtype.name == dtype


def test_numbers_take_part_in_everything() -> None:
    x = np.array([3, 4])
    assert [10, 20, 30, 40, 50][x[0]] == 40
    assert x[0] + x[1] == 7
    assert {int(x[0]): "three", x[0]: "three"}[3] == "three"
    assert (x[0] * 2.5).item() == 7.5
    assert (float(x[1]), int(x[1]), bool(x[1]), f"{x[1]:03}") == (4.0, 4, True, "004")
    number = x[1]
    number += 1
    assert (number.item(), x.tolist()) == (5, [3, 4])
    with pytest.raises(TypeError, match="without dimensions"):
        len(number)
    with pytest.raises(TypeError, match="without dimensions"):
        iter(number)


def test_iteration_sees_what_is_written_meanwhile() -> None:
    x = np.zeros(4)
    seen = []
    for i, one in enumerate(x):
        seen.append(one.item())
        x[min(i + 1, 3)] = i + 1
    assert seen == [0, 1, 2, 3]
    rows = list(np.arange(6).reshape(3, 2).T)
    assert [row.tolist() for row in rows] == [[0, 2, 4], [1, 3, 5]]
    assert list(np.zeros((0, 2))) == []


def test_arrays_are_freed_and_can_be_referenced_weakly() -> None:
    gc.collect()
    before = live_storage_bytes()
    x = np.zeros(1000)
    reference = weakref.ref(x)
    iterator, view = iter(x), x[:5]
    del x
    next(iterator)
    assert reference() is view.base
    del iterator, view
    assert reference() is None
    assert live_storage_bytes() == before


def test_the_type_is_final_and_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("mine", (np.ndarray,), {})
    with pytest.raises(TypeError, match="immutable"):
        np.ndarray.sum = None  # type: ignore[method-assign, assignment]
    kind: Any = np.ndarray
    with pytest.raises(TypeError, match="requires a 'walle"):
        kind.__add__(3, 4)
    with pytest.raises(TypeError, match="doesn't apply to a 'int'"):
        kind.sum(3)
    with pytest.raises(TypeError, match="buffer"):
        kind()


def test_objects_that_are_not_numbers() -> None:
    x: Any = np.array([1, 2])
    assert (x == None).tolist() == [False, False]  # noqa: E711 -- elementwise
    assert (x != "text").tolist() == [True, True]
    assert "text" not in x
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "text"

    class Other:
        def __radd__(self, other: object) -> str:
            return "other's"

    assert x + Other() == "other's"
    with pytest.raises(TypeError, match="cannot be deleted"):
        del x[0]
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del x.flat


class Broken(int):
    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    def __gt__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = int.__hash__


def test_errors_of_a_numbers_own_comparison_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        np.arange(3, 5, Broken(2))
    with pytest.raises(ZeroDivisionError):
        np.greater(np.array([1, 2], "uint8"), Broken(2**80))


def test_flags_may_change_while_another_thread_counts_them() -> None:
    size, is_done = 1_000_000, threading.Event()
    beyond = np.full(2 * size, 7, "uint8")
    beyond[:size] = 1
    flags, items = np.ones(2 * size, "bool")[:size], beyond[:size]

    def change() -> None:
        while not is_done.is_set():
            flags.fill(False)
            flags.fill(True)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            (kept,) = _core.evaluate("Compress", [items, flags], {}, 1)
            (places,) = _core.evaluate("NonZero", [flags], {}, 1)
            assert kept.size == 0 or kept.max() <= 1
            assert places.size == 0 or places.max() < size
    finally:
        is_done.set()
        thread.join()


def test_out_of_integers_refuses_complex_numbers() -> None:
    numbers = np.ones((2, 3), "complex64")
    with pytest.raises(DTypeError, match="cannot hold"):
        np.add.reduce(numbers, out=np.zeros(3, "int32"))
    with pytest.raises(DTypeError, match="cannot hold"):
        np.add(numbers, 1, out=np.zeros((2, 3), "int32"), where=np.array([True, False, True]))
    assert np.add.reduce(np.ones((2, 3)), out=np.zeros(3, "complex64")).tolist() == [2, 2, 2]


def test_buffers_have_what_their_consumer_asks_for() -> None:
    x: Any = np.arange(6).reshape(2, 3)
    assert bytes(memoryview(x).cast("B")) == x.tobytes()
    with pytest.raises(BufferError, match="row-major"):
        x[:, ::2].__buffer__(0)
    assert numpy.asarray(x[:, ::2]).tolist() == [[0, 2], [3, 5]]
    with pytest.raises(BufferError, match="read-only"):
        np.broadcast_to(x, (2, 2, 3)).__buffer__(0x19)
    assert x.T.__buffer__(0x40 | 0x18).f_contiguous
    with pytest.raises(BufferError, match="column-major"):
        x.__buffer__(0x40 | 0x18)


def test_calls_that_do_not_match_are_refused() -> None:
    x: Any = np.arange(3)
    zeros: Any = np.zeros
    add: Any = np.add
    calls: list[Callable[[], Any]] = [
        lambda: x.sum(0, None, None, False, None, None, 1),
        lambda: x.sum(axes=0),
        lambda: x.sum(0, axis=0),
        lambda: x.astype(),
        lambda: zeros(),
        lambda: np.add(x),
        lambda: np.add(x, x, None, x),
        lambda: add(x, x, wher=True),
        lambda: x.reshape(3, ordr="C"),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    references = sys.getrefcount(x)
    with pytest.raises(TypeError):
        np.concatenate([x, "text"])
    assert sys.getrefcount(x) == references


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_concatenate_agrees(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1) | st.none())
    parts = []
    for seed in range(data.draw(st.integers(1, 4))):
        own = list(shape)
        if axis is not None:
            own[axis] = data.draw(st.integers(0, 4))
        part = numpy.random.default_rng(seed).integers(0, 2, own[::-1]).astype(data.draw(st.sampled_from(DTYPES[:7])))
        parts.append(part.transpose())
    there = numpy.concatenate(parts, axis)
    here = np.concatenate([np.asarray(part) for part in parts], axis)
    assert here.shape == there.shape
    numpy.testing.assert_array_equal(numpy.asarray(here), there)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_sort_agrees(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from(["float32", "float64", "int32", "int64", "uint8", "bool"]))
    there = numpy.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 3, shape).astype(dtype)
    if dtype.startswith("float") and there.size:
        there.reshape(-1)[:: data.draw(st.integers(1, 3))] = numpy.nan
    axis = data.draw(st.integers(-len(shape), len(shape) - 1) | st.none())
    kind: Any = data.draw(st.sampled_from(["quicksort", "stable", "heapsort", None]))
    same(np.sort(np.asarray(there), axis, kind=kind), numpy.sort(there, axis, kind=kind))
    same(np.argsort(np.asarray(there), axis, kind=kind), numpy.argsort(there, axis, kind="stable"))


def test_sorts_of_unknown_kinds_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="known are quicksort"):
        np.sort([2, 1], kind="bubble")
    with pytest.raises(UnsupportedError, match="records"):
        np.argsort([2, 1], order="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
def test_orders_of_elements_agree_with_numpy(order: Any) -> None:
    there = numpy.arange(24).reshape(2, 3, 4)
    for own, view in (
        (np.asarray(there), there),
        (np.asarray(there).T, there.T),
        (np.asarray(there)[:, ::2], there[:, ::2]),
    ):
        same(own.ravel(order), view.ravel("C" if order == "K" and not view.flags.f_contiguous else order))
        same(own.flatten("C" if order == "K" else order), view.flatten("C" if order == "K" else order))
        if order != "K":
            same(own.reshape(-1, 2, order=order), view.reshape(-1, 2, order=order))
            same(np.reshape(own, (-1, 2), order=order), numpy.reshape(view, (-1, 2), order=order))


def test_small_created_arrays_agree_with_numpy() -> None:
    same(np.array(range(3)), numpy.array(range(3)))
    same(np.asarray([range(2), range(2)]), numpy.asarray([range(2), range(2)]))
    same(np.arange(7, 1, -2), numpy.arange(7, 1, -2))
    same(np.arange(np.array(3)), numpy.arange(3))
    same(np.arange(2**40, 2**40 + 2), numpy.arange(2**40, 2**40 + 2))
    same(np.arange(3, dtype="uint8"), numpy.arange(3, dtype="uint8"))
    same(np.arange(1, 2, 0.25), numpy.arange(1, 2, 0.25, dtype="float32"))
    same(np.array(3, ndmin=2), numpy.array(3, ndmin=2))
    same(np.ones((2, 0)), numpy.ones((2, 0), "float32"))
    assert np.arange(5, 1).shape == (0,)
    given_ = np.arange(3)
    assert np.array(given_, copy=False) is given_
    assert np.array(given_) is not given_
    with pytest.raises(ShapeError, match="step of 0"):
        np.arange(1, 2, 0)
    with pytest.raises(UnsupportedError, match="row-major"):
        np.zeros((2, 2), order="F")
    with pytest.raises(ShapeError, match="negative"):
        np.zeros((2, -1))
    with pytest.raises(MemoryError):
        np.arange(2**47)


UFUNCS = ["add", "multiply", "maximum", "minimum", "subtract", "logical_and", "logical_or", "bitwise_xor", "gcd"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_methods_of_ufuncs_agree(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(UFUNCS))
    own, other = getattr(np, name), getattr(numpy, name)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    there = numpy.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 9, shape)
    here = np.asarray(there)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    keepdims = data.draw(st.booleans())
    same(own.reduce(here, axis, keepdims=keepdims), other.reduce(there, axis, keepdims=keepdims))
    same(own.accumulate(here, axis), other.accumulate(there, axis))
    same(own.outer(here, [1, 2]), other.outer(there, [1, 2]))
    edges = data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=4))
    same(own.reduceat(here, edges, axis), other.reduceat(there, edges, axis))
    if not name.startswith("logical"):
        mask = there > 4
        target, wanted = here.copy(), there.copy()
        same(own(here, 3, where=np.asarray(mask), out=target), other(there, 3, where=mask, out=wanted))
        places = data.draw(st.lists(st.integers(-shape[0], shape[0] - 1), max_size=6))
        own.at(target, places, 2)
        other.at(wanted, numpy.asarray(places, "int64"), 2)
        same(target, wanted)


def test_ufuncs_have_the_attributes_of_numpys() -> None:
    assert isinstance(np.sqrt, type(np.floor))
    assert (np.add.nin, np.add.nout, np.add.nargs, np.add.identity, np.sqrt.nin) == (2, 1, 3, 0, 1)
    assert (np.add.__name__, repr(np.add)) == ("add", "<ufunc 'add'>")
    assert np.add([1, 2], [3, 4], dtype="float64").dtype == "float64"
    assert np.add.reduce([]).item() == 0
    assert np.add.reduce([[1, 2], [3, 4]], axis=None, initial=10).item() == 20
    out = np.zeros(2)
    assert np.sqrt([4.0, 9.0], out=out) is out
    assert np.floor([1.5, 2.5], out) is out
    assert out.tolist() == [1, 2]
    assert np.sqrt([4.0, -1.0], where=[True, False]).tolist() == [2, 0]
    x = np.zeros((2, 2))[:, 0]
    np.add.at(x, [0, 0, 1], [1, 2, 3])
    assert x.tolist() == [3, 3]
    with pytest.raises(DTypeError, match="cannot hold"):
        np.add([1.5], [1.5], out=np.zeros(1, "int64"))
    with pytest.raises(DTypeError, match="cannot hold"):
        np.add([1.5], [1.5], out=np.zeros(1, "int64"), where=[True])
    with pytest.raises(ShapeError, match="two arrays"):
        np.sqrt.reduce([1.0])
    with pytest.raises(ShapeError, match="identity"):
        np.gcd.reduce([]) if np.gcd.identity is None else np.fmax.reduce(np.zeros((0,)))
    with pytest.raises(TypeError, match="in place"):
        np.add.at([1, 2], 0, 1)  # type: ignore[arg-type]
