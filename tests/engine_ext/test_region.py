"""Views and movements, each of which is a raster's region, against NumPy's indexing."""

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from walle.engine_ext.errors import ShapeError
from walle.errors import EngineError

ITEMS = ["uint8", "bool", "int32", "float64"]


@st.composite
def arrays(draw: st.DrawFn, *, least: int = 0, ranks: tuple[int, int] = (0, 4)) -> numpy.ndarray:
    shape = draw(st.lists(st.integers(least, 5), min_size=ranks[0], max_size=ranks[1]))
    values = numpy.arange(numpy.prod(shape, dtype=int)) * 7 % 251
    return values.reshape(shape).astype(draw(st.sampled_from(ITEMS)))


def slices(size: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, bound, bound, st.none() | st.integers(-3, 3).filter(bool))


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    parts: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        kinds = [slices(size)] + ([st.integers(-size, size - 1)] if size else [])
        parts.append(draw(st.one_of(kinds)))
    if draw(st.booleans()):
        parts.append(Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return tuple(parts)


def same(here: Any, there: numpy.ndarray) -> None:
    assert here.shape == there.shape
    assert here.dtype == there.dtype.name
    numpy.testing.assert_array_equal(numpy.asarray(here), there)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_indexing_twice_copying_and_assigning(data: st.DataObject) -> None:
    there = data.draw(arrays())
    here = np.asarray(there.copy())
    first = data.draw(keys(there.shape))
    second = data.draw(keys(there[first].shape))
    same(here[first][second], there[first][second])
    same(here[first][second].copy(), there[first][second])
    there = there.copy()
    value = numpy.arange(there[first].size).reshape(there[first].shape).astype(there.dtype)
    there[first] = value
    here[first] = value
    same(here, there)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_transposing_reshaping_and_broadcasting(data: st.DataObject) -> None:
    there = data.draw(arrays())
    order = data.draw(st.permutations(range(there.ndim)))
    here = np.asarray(there).transpose(order) if order else np.asarray(there)
    there = there.transpose(order)
    same(here, there)
    same(here.ravel(), there.ravel())
    same(here.reshape(-1, 1), there.reshape(-1, 1) if there.size else there.reshape(0, 1))
    wide = (2, *there.shape)
    same(np.broadcast_to(here, wide), numpy.broadcast_to(there, wide))
    same(np.broadcast_to(here, wide).copy(), numpy.broadcast_to(there, wide))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_transform_operators_agree_with_numpy(data: st.DataObject) -> None:
    there = data.draw(arrays(least=1, ranks=(1, 4)))
    here = np.asarray(there)
    axis = data.draw(st.integers(-there.ndim, there.ndim - 1))
    size = there.shape[axis]
    same(np.concatenate([here, here[..., ::-1]], axis), numpy.concatenate([there, there[..., ::-1]], axis))
    same(np.stack([here, here], axis), numpy.stack([there, there], axis))
    cut = data.draw(st.integers(0, size))
    for part, expected in zip(np.split(here, [cut], axis), numpy.split(there, [cut], axis), strict=True):
        same(part, expected)
    repeats = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    same(np.tile(here, repeats), numpy.tile(there, repeats))
    widths = data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=there.ndim, max_size=there.ndim)
    )
    same(np.pad(here, widths, constant_values=1), numpy.pad(there, widths, constant_values=1))
    chosen = data.draw(st.lists(st.integers(-size, size - 1), max_size=6))
    same(np.take(here, numpy.array(chosen, "int64"), axis), numpy.take(there, numpy.array(chosen, "int64"), axis))
    same(np.flip(here, axis), numpy.flip(there, axis))
    same(np.expand_dims(here, axis), numpy.expand_dims(there, axis))
    same(np.swapaxes(here, 0, axis), numpy.swapaxes(there, 0, axis))


def test_views_share_memory_and_copies_do_not() -> None:
    base = np.arange(24).reshape(2, 3, 4)
    for view in (
        base[1],
        base[:, ::2],
        base.T,
        base[..., None],
        base.reshape(4, 6),
        base.ravel(),
        np.squeeze(base[:1]),
    ):
        view[...] = 5
    assert (base[1] == 5).all()
    gathered = base[:, [0, 2]]
    gathered[...] = 0
    assert base.min().item() == 5


def test_overlapping_assignment_reads_before_it_writes() -> None:
    there = numpy.arange(10, dtype="float32")
    here = np.asarray(there.copy())
    there[1:] = there[:-1].copy()
    here[1:] = here[:-1]
    same(here, there)
    there[...] = there[::-1].copy()
    here[...] = here[::-1]
    same(here, there)


def test_masks_and_index_arrays() -> None:
    there = numpy.arange(12).reshape(3, 4)
    here = np.asarray(there.copy())
    same(here[here > 5], there[there > 5])
    same(here[np.array([True, False, True])], there[[True, False, True]])
    same(here[:, [3, 0, -1]], there[:, [3, 0, -1]])
    same(here[1, [[0, 1], [2, 3]]], there[1, [[0, 1], [2, 3]]])
    there[there > 5] = -1
    here[here > 5] = -1
    there[:, [0, 2]] = [[10, 20]]
    here[:, [0, 2]] = [[10, 20]]
    same(here, there)


@pytest.mark.parametrize("key", [3, -4, (0, 0, 0), (..., ...), "a", 1.0, [5], (slice(None), [0, 9])])
def test_bad_indices_are_index_errors(key: Any) -> None:
    with pytest.raises(IndexError):
        np.zeros((3, 4))[key]


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.reshape(5),
        lambda a: a.reshape(-1, -1),
        lambda a: a.transpose(0),
        lambda a: a.transpose(0, 0),
        lambda a: np.broadcast_to(a, (3, 4)),
        lambda a: np.concatenate([a, np.zeros((2, 5))], 0),
        lambda a: np.concatenate([a, a], 2),
        lambda a: a + np.zeros(3),
        lambda a: a @ a,
        lambda a: a.__setitem__(slice(None), np.zeros(3)),
    ],
)
def test_shapes_that_do_not_fit_say_so(call: Any) -> None:
    with pytest.raises(ShapeError, match=r"\d"):
        call(np.zeros((2, 4)))


def test_a_broadcast_view_is_not_written() -> None:
    with pytest.raises(EngineError, match="read-only"):
        np.broadcast_to(np.zeros(2), (3, 2))[0, 0] = 1.0
    np.broadcast_to(np.zeros(2), (3, 2))[0].copy()


def test_8_axes_are_moved_and_9_are_refused() -> None:
    there = numpy.arange(2**8).reshape((2,) * 8)
    same(np.asarray(there).T.copy(), there.T)
    deep = np.asarray(numpy.arange(2**9).reshape((2,) * 9))
    with pytest.raises(ShapeError, match="9 axes"):
        deep.T.copy()
