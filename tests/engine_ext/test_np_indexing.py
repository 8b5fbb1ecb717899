"""Indexing, x[key] and x[key] = value, against NumPy: ints, slices, None, ellipses, index arrays and masks, mixed."""

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from walle.engine_ext.errors import DTypeError, ShapeError

SHAPE = (4, 3, 5)


def own_key(key: Any) -> Any:
    """Return the key with NumPy's arrays as walle.np's."""
    if isinstance(key, tuple):
        return tuple(own_key(part) for part in key)
    return np.asarray(key) if isinstance(key, numpy.ndarray) else key


@st.composite
def keys(draw: st.DrawFn) -> Any:
    parts: list[Any] = []
    axis = 0
    shape = draw(st.sampled_from([(), (2,), (3, 1), (2, 3)]))
    while axis < len(SHAPE) and draw(st.integers(0, 5)):
        size = SHAPE[axis]
        kind = draw(st.sampled_from(["int", "slice", "slice", "array", "mask", "none", "wide mask"]))
        if kind == "int":
            parts.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            ends = st.none() | st.integers(-size - 1, size + 1)
            parts.append(slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, -1, -2]))))
        elif kind == "array":
            seed = draw(st.integers(0, 99))
            parts.append(
                numpy.random.default_rng(seed)
                .integers(-size, size, shape)
                .astype(draw(st.sampled_from(["int64", "int32"])))
            )
        elif kind == "mask" and shape != (2, 3) and not any(isinstance(part, numpy.ndarray) for part in parts):
            parts.append(numpy.random.default_rng(draw(st.integers(0, 99))).random(size) < 0.5)
            shape = (1,)
        elif (
            kind == "wide mask" and axis + 1 < len(SHAPE) and not any(isinstance(part, numpy.ndarray) for part in parts)
        ):
            parts.append(numpy.random.default_rng(draw(st.integers(0, 99))).random(SHAPE[axis : axis + 2]) < 0.5)
            shape = (1,)
            axis += 1
        else:
            parts.append(None)
            continue
        axis += 1
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))) if axis == len(SHAPE) else len(parts), Ellipsis)
    return tuple(parts)


def base(strides: int) -> numpy.ndarray:
    if strides == 0:
        return numpy.arange(60.0).reshape(SHAPE)
    if strides == 1:
        return numpy.arange(60.0).reshape(SHAPE[::-1]).T
    return numpy.arange(120.0).reshape(4, 3, 10)[::-1, :, ::2]


@settings(max_examples=400, deadline=None)
@given(keys(), st.integers(0, 2))
def test_reading_by_a_key_agrees_with_numpy(key: Any, strides: int) -> None:
    there = base(strides)
    expected = there[key]
    own = np.asarray(there)[own_key(key)]
    assert own.shape == expected.shape
    assert own.dtype == "float64"
    numpy.testing.assert_array_equal(numpy.asarray(own), expected)
    # Views in NumPy are views here, except for single elements.
    if isinstance(expected, numpy.ndarray) and expected.size and expected.ndim:
        assert numpy.shares_memory(numpy.asarray(own), there) == numpy.shares_memory(expected, there)


@settings(max_examples=400, deadline=None)
@given(keys(), st.integers(0, 2), st.sampled_from(["number", "array", "row"]))
def test_writing_by_a_key_agrees_with_numpy(key: Any, strides: int, kind: str) -> None:
    there = base(strides).copy(order="K")
    own_base = there.copy(order="K")
    own = np.asarray(own_base)
    shape = there[key].shape
    value: Any = 7.0
    if kind == "array":
        value = numpy.random.default_rng(1).random(shape)
    elif kind == "row" and shape:
        value = numpy.random.default_rng(1).random(shape[-1:])
    there[key] = value
    own[own_key(key)] = np.asarray(value) if isinstance(value, numpy.ndarray) else value
    numpy.testing.assert_array_equal(own_base, there)


def test_views_write_through() -> None:
    there = np.zeros((3, 4))
    there[1:, ::2].T[0] = 5
    there[np.asarray([0, 2]), np.asarray([1, 3])] = [6.0, 7.0]
    there[there > 6] += 1
    assert there.tolist() == [[0, 6, 0, 0], [5, 0, 0, 0], [5, 0, 0, 8]]


def test_the_last_of_equal_indices_wins() -> None:
    there = np.zeros(3, "int64")
    there[[0, 0, 2]] = [1, 2, 3]
    assert there.tolist() == [2, 0, 3]


def test_an_array_may_be_written_with_itself() -> None:
    there = np.arange(6)
    there[[0, 1, 2]] = there[3:]
    there[1:] = there[:-1]
    assert there.tolist() == [3, 3, 4, 5, 3, 4]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((4,), "index 4 is out of range for axis 0 of size 4"),
        (([0, 9],), "index 9 is out of range for axis 0 of size 4"),
        ((0, [[-4]]), "index -4 is out of range for axis 1 of size 3"),
        ((0, 0, 0, 0), "too many indices: 4 for an array of 3 dimensions"),
        ((..., ...), "only one ellipsis"),
        ((numpy.zeros(5, bool),), r"a mask of shape \(5,\) does not match the indexed axes of shape \(4,\)"),
        ((1.5,), "not float"),
        (([0.5],), "must be of integers or bool, not float32"),
    ],
)
def test_bad_keys_are_refused(key: Any, message: str) -> None:
    there = np.zeros(SHAPE)
    with pytest.raises(IndexError, match=message):
        there[own_key(key)]
    with pytest.raises(IndexError, match=message):
        there[own_key(key)] = 1
    assert not there.any()


def test_indices_that_do_not_broadcast_and_read_only_arrays_are_refused() -> None:
    there = np.zeros(SHAPE)
    with pytest.raises(ShapeError, match="do not broadcast"):
        there[np.zeros(2, "int64"), np.zeros(3, "int64")]
    with pytest.raises(ShapeError, match="does not broadcast"):
        there[[0, 1]] = np.zeros((7, 5))
    frozen = np.broadcast_to(there, (2, *SHAPE))
    with pytest.raises(DTypeError, match="read-only"):
        frozen[[0]] = 1
    with pytest.raises(DTypeError, match="read-only"):
        np.diagonal(np.zeros((3, 3)))[0] = 1


def test_put_and_place_agree_with_numpy() -> None:
    for name, args in {
        "put": ([0, 5, 5], [1, 2, 3]), "place": (numpy.arange(6).reshape(2, 3) % 2 == 0, [7, 8]),
        "putmask": (numpy.arange(6).reshape(2, 3) > 2, [7, 8, 9]), "fill_diagonal": (4,),
        "put_along_axis": (numpy.array([[0], [2]]), 9, 1), "copyto": (numpy.array([1, 2, 3]),),
    }.items():  # fmt: skip
        there = numpy.zeros((2, 3), "int64")
        own = np.zeros((2, 3), "int64")
        getattr(numpy, name)(there, *args)
        getattr(np, name)(own, *(own_key(one) for one in args))
        assert own.tolist() == there.tolist(), name
        for view, expected in ((own.T, there.T), (own[:, ::2], there[:, ::2])):
            if name in ("put", "fill_diagonal"):
                safe = tuple([0, 1, 1] if one == [0, 5, 5] else one for one in args)
                getattr(np, name)(view, *safe)
                getattr(numpy, name)(expected, *safe)
                assert own.tolist() == there.tolist(), name


def test_methods_of_arrays_agree_with_numpy() -> None:
    there = numpy.random.default_rng(0).random((3, 4))
    own = np.asarray(there.copy())
    for name, args in {
        "argsort": (0,), "clip": (0.2, 0.7), "cumsum": (1,), "diagonal": (), "ptp": (1,), "repeat": (2, 0),
        "round": (1,), "std": (0,), "swapaxes": (0, 1), "take": ([0, 3], 1), "trace": (), "var": (), "squeeze": (),
        "cumprod": (),
    }.items():  # fmt: skip
        expected = getattr(numpy, name)(there, *args)
        numpy.testing.assert_allclose(numpy.asarray(getattr(own, name)(*args)), expected, rtol=1e-12)
    own.sort(0)
    numpy.testing.assert_array_equal(numpy.asarray(own), numpy.sort(there, 0))
    assert own.item(1, 2) == numpy.sort(there, 0)[1, 2]
    assert own.item(7) == own[1, 3].item()
    out = np.zeros(4, "float64")
    assert own.sum(0, out=out) is not None
    numpy.testing.assert_allclose(numpy.asarray(out), there.sum(0))
    np.add(own, 1, out=own)
    numpy.testing.assert_allclose(numpy.asarray(own), numpy.sort(there, 0) + 1)
    with pytest.raises(ShapeError, match="`out` has shape"):
        np.add(own, 1, out=out)
    with pytest.raises(DTypeError, match="cannot hold"):
        np.divide(own, 2, out=np.zeros((3, 4), "int64"))
