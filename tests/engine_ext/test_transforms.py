"""Every transform operator of the registry against NumPy's indexing, eagerly and in a session; and its errors."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.operators import operators
from walle.engine_ext.session import Session
from walle.errors import EngineError
from walle.onnx_backend import Backend

type Array = numpy.ndarray[Any, Any]


class Case(NamedTuple):
    """A call of one operator with its result; operands in `known` are constants of a session's model."""

    inputs: list[Array]
    attributes: dict[str, Any]
    expected: list[Array]
    known: frozenset[int] = frozenset()


TRANSFORMS = [one.name for one in operators() if one.category == "transform"]
DTYPES = ["float32", "int64", "uint8", "bool", "float16"]


def tensor(draw: st.DrawFn, *, ranks: tuple[int, int] = (0, 4), least: int = 0, most: int = 5) -> Array:
    shape = draw(st.lists(st.integers(least, most), min_size=ranks[0], max_size=ranks[1]))
    return filled(shape, draw(st.sampled_from(DTYPES)))


def filled(shape: Any, dtype: str = "float32", start: int = 1) -> Array:
    values = (numpy.arange(math.prod(shape)) * 7 + start) % 251
    return values.reshape(shape).astype(dtype)


def axis_of(draw: st.DrawFn, x: Array) -> int:
    return draw(st.integers(-x.ndim, x.ndim - 1))


def whole(*numbers: int) -> Array:
    return numpy.array(numbers, dtype="int64")


def strided(x: Array, shape: Any, strides: Any, offset: int) -> Array:
    """Return AsStrided of x in Python, one element after the other."""
    flat = x.reshape(-1)
    result = numpy.empty(shape, x.dtype)
    for at in numpy.ndindex(*shape):
        result[at] = flat[offset + sum(a * b for a, b in zip(at, strides, strict=True))]
    return result


def array_feature_extractor(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1)
    chosen = draw(st.lists(st.integers(0, x.shape[-1] - 1), min_size=1, max_size=4))
    taken = x[..., chosen]
    return Case([x, whole(*chosen)], {}, [taken[None] if x.ndim == 1 else taken], frozenset(draw(st.sets(st.just(1)))))


def as_strided(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 1), least=1, most=12)
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = [draw(st.integers(-2, 2)) for _ in shape]
    low = sum(min(0, (size - 1) * stride) for size, stride in zip(shape, strides, strict=True) if size)
    high = sum(max(0, (size - 1) * stride) for size, stride in zip(shape, strides, strict=True) if size)
    if high - low >= x.size:
        shape, strides, low = [2], [0], 0
    attributes = {"shape": shape, "strides": strides, "offset": -low}
    return Case([x], attributes, [strided(x, shape, strides, -low)])


def batch_to_space(draw: st.DrawFn) -> Case:
    block, places, inner = (draw(st.integers(1, 3)) for _ in range(3))
    y = filled((2 * block, places, inner))
    whole_axis = y.reshape(block, 2, places, inner).transpose(1, 2, 0, 3).reshape(2, places * block, inner)
    before = draw(st.integers(0, places * block))
    after = draw(st.integers(0, places * block - before))
    expected = whole_axis[:, before : places * block - after]
    return Case([y], {"block_shape": [block], "crops": [before, after]}, [expected])


def bit_cast(draw: st.DrawFn) -> Case:
    x = filled(draw(st.lists(st.integers(0, 4), max_size=3)), "float32")
    return Case([x], {"to": "int32"}, [x.view("int32") if x.ndim else x.reshape(1).view("int32").reshape(())])


def center_crop_pad(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3))
    axis, size = axis_of(draw, x), draw(st.integers(0, 7))
    more = size - x.shape[axis]
    if more >= 0:
        pads = [(0, 0)] * x.ndim
        pads[axis] = (more // 2, more - more // 2)
        expected = numpy.pad(x, pads)
    else:
        start = -more // 2
        expected = numpy.take(x, range(start, start + size), axis)
    return Case([x, whole(size)], {"axes": [axis]}, [expected], frozenset({1}))


def concat(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 4))
    axis = axis_of(draw, x)
    return Case([x, x, x], {"axis": axis}, [numpy.concatenate([x, x, x], axis)])


def cycle(draw: st.DrawFn) -> Case:
    x = tensor(draw)
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    return Case([x], {"shape": shape}, [numpy.resize(x, shape)])


def delete(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3))
    axis = axis_of(draw, x)
    size = x.shape[axis]
    gone = draw(st.lists(st.integers(-size, size - 1), max_size=4)) if size else []
    if draw(st.booleans()):
        return Case([x], {"axis": axis, "indices": gone}, [numpy.delete(x, whole(*gone), axis)])
    flat = draw(st.lists(st.integers(0, x.size - 1), max_size=4)) if x.size else []
    return Case([x], {"indices": flat}, [numpy.delete(x, whole(*flat))])


def depth_to_space(draw: st.DrawFn) -> Case:
    n, c, h, w, b = (draw(st.integers(1, 3)) for _ in range(5))
    x = filled((n, c * b * b, h, w))
    if draw(st.booleans()):
        y = x.reshape(n, b, b, c, h, w).transpose(0, 3, 4, 1, 5, 2)
        return Case([x], {"blocksize": b, "mode": "DCR"}, [y.reshape(n, c, h * b, w * b)])
    y = x.reshape(n, c, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return Case([x], {"blocksize": b, "mode": "CRD"}, [y.reshape(n, c, h * b, w * b)])


def diag(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 1))
    k = draw(st.integers(-4, 4))
    return Case([x], {"k": k}, [numpy.diag(x, k)])


def diagonal(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(2, 4))
    first, second = draw(st.permutations(range(x.ndim)))[:2]
    offset = draw(st.integers(-6, 6))
    attributes = {"offset": offset, "axis1": first - x.ndim, "axis2": second}
    return Case([x], attributes, [numpy.diagonal(x, offset, first, second)])


def expand(draw: st.DrawFn) -> Case:
    x = tensor(draw, least=1)
    ours = [1 if draw(st.booleans()) else size for size in x.shape]
    x = filled(ours)
    shape = [draw(st.integers(0, 3)) for _ in range(draw(st.integers(0, 2)))]
    shape += [draw(st.integers(0, 3)) if size == 1 else size for size in ours]
    return Case([x, whole(*shape)], {}, [numpy.broadcast_to(x, shape)], frozenset({1}))


def eye(x: Array, k: int, dtype: str) -> Array:
    rows, columns = x.shape
    return numpy.eye(rows, columns, k).astype(dtype)


def eye_like(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(2, 2))
    k = draw(st.integers(-6, 6))
    if draw(st.booleans()):
        return Case([x], {"k": k}, [eye(x, k, str(x.dtype))])
    return Case([x], {"k": k, "dtype": 11}, [eye(x, k, "float64")])


def feature_vectorizer(draw: st.DrawFn) -> Case:
    rows, dtype = draw(st.integers(0, 3)), draw(st.sampled_from(DTYPES))
    parts = [filled((rows, draw(st.integers(0, 3))), dtype) for _ in range(draw(st.integers(1, 3)))]
    sizes = [one.shape[1] for one in parts]
    given = [one[0] if rows == 1 and draw(st.booleans()) else one for one in parts]
    return Case(given, {"inputdimensions": sizes}, [numpy.concatenate(parts, 1)])


def flatten(draw: st.DrawFn) -> Case:
    x = tensor(draw)
    axis = draw(st.integers(-x.ndim, x.ndim))
    cut = axis if axis >= 0 else axis + x.ndim
    return Case([x], {"axis": axis}, [x.reshape(math.prod(x.shape[:cut]), math.prod(x.shape[cut:]))])


def flip(draw: st.DrawFn) -> Case:
    x = tensor(draw)
    if draw(st.booleans()):
        return Case([x], {}, [numpy.flip(x)])
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, max_size=x.ndim)) if x.ndim else []
    return Case([x], {"axes": axes}, [numpy.flip(x, tuple(axes))])


def gather(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1)
    axis = axis_of(draw, x)
    size = x.shape[axis]
    chosen = numpy.array(draw(st.lists(st.integers(-size, size - 1), max_size=6)), "int64")
    chosen = chosen.reshape(-1, 2) if chosen.size % 2 == 0 and draw(st.booleans()) else chosen
    return Case([x, chosen], {"axis": axis}, [numpy.take(x, chosen, axis)], frozenset(draw(st.sets(st.just(1)))))


def _elements(draw: st.DrawFn, x: Array, axis: int, *, once: bool = False) -> Array:
    size = x.shape[axis]
    if not once:
        return numpy.array([draw(st.integers(-size, size - 1)) for _ in range(x.size)], "int64").reshape(x.shape)
    order = numpy.array(draw(st.permutations(range(size))), "int64")
    shape = [1] * x.ndim
    shape[axis] = size
    return numpy.broadcast_to(order.reshape(shape), x.shape).copy()


def gather_elements(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1, most=3)
    axis = axis_of(draw, x)
    chosen = _elements(draw, x, axis)
    return Case([x, chosen], {"axis": axis}, [numpy.take_along_axis(x, chosen, axis)])


def gather_nd(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1)
    depth, count = draw(st.integers(1, x.ndim)), draw(st.integers(0, 4))
    rows = [[draw(st.integers(-size, size - 1)) for size in x.shape[:depth]] for _ in range(count)]
    index = numpy.array(rows, "int64").reshape(count, depth)
    return Case([x, index], {}, [x[tuple(index.T)]])


def identity(draw: st.DrawFn) -> Case:
    x = tensor(draw)
    return Case([x], {}, [x])


def im2col(draw: st.DrawFn) -> Case:
    n, c = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    size = [draw(st.integers(3, 5)) for _ in range(2)]
    kernel, strides, dilations = ([draw(st.integers(1, 2)) for _ in range(2)] for _ in range(3))
    pads = [draw(st.integers(0, 2)) for _ in range(4)]
    x = filled((n, c, *size))
    wide = numpy.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    views = numpy.lib.stride_tricks.sliding_window_view(wide, reach, (2, 3))
    views = views[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    columns = views.transpose(0, 1, 4, 5, 2, 3).reshape(n, c * math.prod(kernel), -1)
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    return Case([x], attributes, [columns])


def insert(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3))
    axis = axis_of(draw, x)
    size = x.shape[axis]
    indices = draw(st.lists(st.integers(-size, size), max_size=4))
    shape = list(x.shape)
    shape[axis] = len(indices)
    values = filled(shape, str(x.dtype), 100)
    # Like NumPy, it sorts the indices and keeps the order of those before the same slice.
    expected = numpy.insert(x, whole(*indices), values, axis)
    return Case([x, values], {"axis": axis, "indices": indices}, [expected])


def max_unpool(draw: st.DrawFn) -> Case:
    h, w = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x = filled((1, 1, h, w))
    places = numpy.array(draw(st.permutations(range(4 * h * w)))[: h * w], "int64").reshape(x.shape)
    expected = numpy.zeros(4 * h * w, x.dtype)
    expected[places.reshape(-1)] = x.reshape(-1)
    return Case([x, places], {"kernel_shape": [2, 2], "strides": [2, 2]}, [expected.reshape(1, 1, 2 * h, 2 * w)])


def meshgrid(draw: st.DrawFn) -> Case:
    lines = [filled([draw(st.integers(0, 4))], draw(st.sampled_from(DTYPES))) for _ in range(draw(st.integers(1, 4)))]
    indexing: Literal["xy", "ij"] = "xy" if draw(st.booleans()) else "ij"
    return Case(lines, {"indexing": indexing}, list(numpy.meshgrid(*lines, indexing=indexing)))


def pad(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1)
    mode = draw(st.sampled_from(["constant", "reflect", "symmetric", "edge", "wrap"]))
    widths = [(draw(st.integers(0, 4)), draw(st.integers(0, 4))) for _ in x.shape]
    pads = [before for before, _ in widths] + [after for _, after in widths]
    expected = numpy.pad(x, widths, mode=mode)  # type: ignore[call-overload] # a mode drawn at random
    return Case([x, whole(*pads)], {"mode": mode}, [expected], frozenset({1}))


def range_(draw: st.DrawFn) -> Case:
    start, stop = draw(st.integers(-5, 5)), draw(st.integers(-5, 5))
    step = draw(st.integers(-3, 3).filter(bool))
    numbers = [numpy.array(one, "int64") for one in (start, stop, step)]
    return Case(numbers, {}, [numpy.arange(start, stop, step)], frozenset({0, 1, 2}))


def repeat(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3))
    axis = axis_of(draw, x)
    times = [draw(st.integers(0, 3)) for _ in range(x.shape[axis])]
    if draw(st.booleans()) and len(times) != 1:
        return Case([x], {"axis": axis, "repeats": times}, [numpy.repeat(x, whole(*times), axis)])
    return Case([x], {"repeats": [2]}, [numpy.repeat(x, 2)])


def reshape(draw: st.DrawFn) -> Case:
    x = tensor(draw, least=1)
    shape = list(draw(st.permutations(x.shape)))
    wanted = list(shape)
    if len(wanted) > 0 and draw(st.booleans()):
        wanted[draw(st.integers(0, len(wanted) - 1))] = -1
    return Case([x, whole(*wanted)], {}, [x.reshape(shape)], frozenset({1}))


def reverse_sequence(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(2, 3), least=1)
    lengths = [draw(st.integers(0, x.shape[0])) for _ in range(x.shape[1])]
    expected = x.copy()
    for batch, length in enumerate(lengths):
        expected[:length, batch] = x[:length, batch][::-1]
    return Case([x, whole(*lengths)], {"batch_axis": 1, "time_axis": 0}, [expected], frozenset({1}))


def roll(draw: st.DrawFn) -> Case:
    x = tensor(draw)
    shift = draw(st.integers(-9, 9))
    if x.ndim == 0 or draw(st.booleans()):
        return Case([x], {"shifts": [shift]}, [numpy.roll(x, shift)])
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, max_size=x.ndim))
    shifts = [draw(st.integers(-9, 9)) for _ in axes]
    return Case([x], {"shifts": shifts, "axes": axes}, [numpy.roll(x, shifts, axes)])


def rot90(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(2, 4))
    first, second = draw(st.permutations(range(x.ndim)))[:2]
    k = draw(st.integers(-5, 5))
    return Case([x], {"k": k, "axes": [first, second - x.ndim]}, [numpy.rot90(x, k, (first, second))])


def scatter_elements(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1)
    axis = axis_of(draw, x)
    places = _elements(draw, x, axis, once=True)
    updates = filled(x.shape, str(x.dtype), 90)
    expected = x.copy()
    numpy.put_along_axis(expected, places, updates, axis)
    return Case([x, places, updates], {"axis": axis}, [expected])


def scatter_nd(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1)
    rows = draw(st.lists(st.integers(0, x.shape[0] - 1), unique=True, max_size=4))
    updates = filled((len(rows), *x.shape[1:]), str(x.dtype), 90)
    expected = x.copy()
    expected[rows] = updates
    return Case([x, whole(*rows).reshape(-1, 1), updates], {}, [expected])


def slice_(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3))
    axis = axis_of(draw, x)
    start, end = draw(st.integers(-7, 7)), draw(st.integers(-7, 7))
    step = draw(st.integers(-3, 3).filter(bool))
    key: list[Any] = [slice(None)] * x.ndim
    key[axis] = slice(start, end, step)
    known = frozenset({1, 2, 3, 4})
    return Case([x, whole(start), whole(end), whole(axis), whole(step)], {}, [x[tuple(key)]], known)


def sliding_window(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1)
    axes = draw(st.lists(st.integers(0, x.ndim - 1), min_size=1, max_size=x.ndim, unique=True))
    window = [draw(st.integers(1, x.shape[axis])) for axis in axes]
    steps = [draw(st.integers(1, 3)) for _ in axes]
    views = numpy.lib.stride_tricks.sliding_window_view(x, tuple(window), tuple(axes))
    key: list[Any] = [slice(None)] * views.ndim
    for axis, step in zip(axes, steps, strict=True):
        key[axis] = slice(None, None, step)
    return Case([x], {"window": window, "axes": axes, "steps": steps}, [views[tuple(key)]])


def space_to_batch(draw: st.DrawFn) -> Case:
    block, places, inner = (draw(st.integers(1, 3)) for _ in range(3))
    before = draw(st.integers(0, places * block - 1))
    after = draw(st.integers(0, places * block - 1 - before))
    x = filled((2, places * block - before - after, inner))
    wide = numpy.pad(x, [(0, 0), (before, after), (0, 0)])
    expected = wide.reshape(2, places, block, inner).transpose(2, 0, 1, 3).reshape(2 * block, places, inner)
    return Case([x], {"block_shape": [block], "pads": [before, after]}, [expected])


def space_to_depth(draw: st.DrawFn) -> Case:
    n, c, h, w, b = (draw(st.integers(1, 3)) for _ in range(5))
    x = filled((n, c, h * b, w * b))
    y = x.reshape(n, c, h, b, w, b).transpose(0, 3, 5, 1, 2, 4)
    return Case([x], {"blocksize": b}, [y.reshape(n, c * b * b, h, w)])


def split(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3))
    axis = axis_of(draw, x)
    size = x.shape[axis]
    cuts = sorted(draw(st.integers(0, size)) for _ in range(2))
    parts = whole(cuts[0], cuts[1] - cuts[0], size - cuts[1])
    return Case([x, parts], {"axis": axis}, numpy.split(x, cuts, axis), frozenset({1}))


def squeeze(draw: st.DrawFn) -> Case:
    x = filled([draw(st.sampled_from([1, 2])) for _ in range(draw(st.integers(0, 4)))])
    ones = [axis for axis, size in enumerate(x.shape) if size == 1 and draw(st.booleans())]
    if not ones:
        return Case([x], {}, [numpy.squeeze(x)])
    return Case([x, whole(*ones)], {}, [numpy.squeeze(x, tuple(ones))], frozenset({1}))


def stack(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(0, 3))
    axis = draw(st.integers(-x.ndim - 1, x.ndim))
    return Case([x, x], {"axis": axis}, [numpy.stack([x, x], axis)])


def tensor_scatter(draw: st.DrawFn) -> Case:
    x = filled((2, 1, 5, 3))
    update = filled((2, 1, 2, 3), start=90)
    at = [draw(st.integers(0, 4)) for _ in range(2)]
    expected = x.copy()
    for batch, first in enumerate(at):
        for step in range(2):
            expected[batch, :, (first + step) % 5] = update[batch, :, step]
    return Case([x, update, whole(*at)], {"mode": "circular", "axis": -2}, [expected])


def tile(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(0, 4))
    times = [draw(st.integers(0, 3)) for _ in x.shape]
    return Case([x, whole(*times)], {}, [numpy.tile(x, times)], frozenset({1}))


def transpose(draw: st.DrawFn) -> Case:
    x = tensor(draw)
    perm = draw(st.permutations(range(x.ndim)))
    return Case([x], {"perm": list(perm)}, [x.transpose(perm)])


def trilu(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(2, 3))
    k, upper = draw(st.integers(-6, 6)), draw(st.booleans())
    expected = numpy.triu(x, k) if upper else numpy.tril(x, k)
    return Case([x, numpy.array(k, "int64")], {"upper": int(upper)}, [expected], frozenset({1}))


def unsqueeze(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(0, 3))
    count = draw(st.integers(1, 2))
    rank = x.ndim + count
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=count, max_size=count, unique=True))
    return Case([x, whole(*axes)], {}, [numpy.expand_dims(x, tuple(axes))], frozenset({1}))


def unstack(draw: st.DrawFn) -> Case:
    x = tensor(draw, ranks=(1, 3), least=1)
    axis = axis_of(draw, x)
    return Case([x], {"axis": axis}, list(numpy.moveaxis(x, axis, 0)))


MEANING: dict[str, Callable[[st.DrawFn], Case]] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "AsStrided": as_strided,
    "BatchToSpace": batch_to_space,
    "BitCast": bit_cast,
    "CenterCropPad": center_crop_pad,
    "Concat": concat,
    "Cycle": cycle,
    "Delete": delete,
    "DepthToSpace": depth_to_space,
    "Diag": diag,
    "Diagonal": diagonal,
    "Expand": expand,
    "EyeLike": eye_like,
    "FeatureVectorizer": feature_vectorizer,
    "Flatten": flatten,
    "Flip": flip,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Identity": identity,
    "Im2Col": im2col,
    "Insert": insert,
    "MaxUnpool": max_unpool,
    "Meshgrid": meshgrid,
    "Pad": pad,
    "Range": range_,
    "Repeat": repeat,
    "Reshape": reshape,
    "ReverseSequence": reverse_sequence,
    "Roll": roll,
    "Rot90": rot90,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Slice": slice_,
    "SlidingWindow": sliding_window,
    "SpaceToBatch": space_to_batch,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": squeeze,
    "Stack": stack,
    "TensorScatter": tensor_scatter,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
    "Unstack": unstack,
}


def test_every_transform_operator_has_its_meaning_here() -> None:
    assert sorted(MEANING) == TRANSFORMS
    assert {name for name, _, _ in BAD} >= set(TRANSFORMS) - {"Identity"}  # which takes any operand


@pytest.mark.parametrize("name", MEANING)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_movement_is_numpys_indexing(name: str, data: st.DataObject) -> None:
    case = data.draw(st.composite(MEANING[name])())
    found = _core.evaluate(name, [_core.asarray(one, None) for one in case.inputs], case.attributes, len(case.expected))
    same(found, case.expected)
    same(in_session(name, case), case.expected)


def same(found: list[Any], expected: list[Array]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype.name)
        numpy.testing.assert_array_equal(numpy.asarray(ours), theirs)


def in_session(name: str, case: Case) -> list[Any]:
    """Run the operator as the only node of a model."""
    graph = GraphBuilder("g")
    values = [
        graph.constant(f"i{i}", one) if i in case.known else graph.input(f"i{i}", one.shape, one.dtype.name)
        for i, one in enumerate(case.inputs)
    ]
    for i, value in enumerate(graph.node(name, values, len(case.expected), "node", case.attributes)):
        graph.output(f"o{i}", value)
    feeds = {f"i{i}": one for i, one in enumerate(case.inputs) if i not in case.known}
    found = Session(graph.to_bytes()).run(feeds)
    return [found[f"o{i}"] for i in range(len(case.expected))]


X = filled((2, 3))
# Operands and attributes that an operator must refuse.
BAD: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("ArrayFeatureExtractor", [X, whole(3)], {}),
    ("AsStrided", [X], {"shape": [7], "strides": [1]}),
    ("AsStrided", [X], {"shape": [2], "strides": [1, 1]}),
    ("BatchToSpace", [filled((3, 2))], {"block_shape": [2]}),
    ("BatchToSpace", [filled((2, 2))], {"block_shape": [2], "crops": [3, 2]}),
    ("BitCast", [X], {"to": "float64"}),
    ("CenterCropPad", [X, whole(2)], {}),
    ("Concat", [X, filled((3, 3))], {"axis": 1}),
    ("Concat", [X, X], {"axis": 2}),
    ("Cycle", [X], {"shape": [-1]}),
    ("Cycle", [X], {}),
    ("Delete", [X], {"axis": 1, "indices": [3]}),
    ("Delete", [X], {"axis": 2, "indices": [0]}),
    ("DepthToSpace", [filled((1, 3, 2, 2))], {"blocksize": 2}),
    ("Diag", [X], {}),
    ("Diag", [X[0]], {"k": 1 << 40}),
    ("Diagonal", [X[0]], {}),
    ("Diagonal", [X], {"axis1": 1, "axis2": -1}),
    ("Expand", [X, whole(4)], {}),
    ("EyeLike", [X[0]], {}),
    ("EyeLike", [X], {"dtype": 8}),
    ("FeatureVectorizer", [X, filled((3, 2))], {}),
    ("FeatureVectorizer", [X], {"inputdimensions": [2]}),
    ("Flatten", [X], {"axis": 3}),
    ("Flip", [X], {"axes": [2]}),
    ("Flip", [X], {"axes": [0, -2]}),
    ("Gather", [X, whole(2)], {"axis": 0}),
    ("GatherElements", [X, whole(0)], {}),
    ("GatherND", [X, whole(0, 0, 0)], {}),
    ("Im2Col", [X], {"kernel_shape": [1]}),
    ("Im2Col", [filled((1, 1, 3))], {"kernel_shape": [1, 1]}),
    ("Im2Col", [filled((1, 1, 3))], {}),
    ("Insert", [X, X], {"axis": 0, "indices": [0]}),
    ("Insert", [X, X], {"axis": 0, "indices": [0, 3]}),
    ("Insert", [X, X.astype("int64")], {"axis": 0, "indices": [0, 1]}),
    ("MaxUnpool", [X, X], {"kernel_shape": [2]}),
    ("Meshgrid", [X], {}),
    ("Meshgrid", [X[0]], {"indexing": "yx"}),
    ("Pad", [X, whole(1)], {}),
    ("Pad", [X, whole(0, 0, -2, -2)], {"mode": "none"}),
    ("Range", [whole(0), whole(3), whole(0)], {}),
    ("Repeat", [X], {"axis": 0, "repeats": [1, 2, 3]}),
    ("Repeat", [X], {"repeats": [-1]}),
    ("Repeat", [X], {"repeats": [1 << 62]}),
    ("Reshape", [X, whole(4, -1)], {}),
    ("ReverseSequence", [X, whole(1, 3, 1)], {}),
    ("Roll", [X], {"shifts": [1, 2, 3], "axes": [0, 1]}),
    ("Roll", [X], {"axes": [0]}),
    ("Rot90", [X], {"axes": [1, 1]}),
    ("Rot90", [X[0]], {}),
    ("ScatterElements", [X, whole(0), whole(0)], {}),
    ("ScatterND", [X, whole(0), whole(0)], {}),
    ("Slice", [X, whole(0), whole(1), whole(2)], {}),
    ("Slice", [X, whole(0), whole(1), whole(0), whole(0)], {}),
    ("SlidingWindow", [X], {"window": [4], "axes": [1]}),
    ("SlidingWindow", [X], {"window": [1]}),
    ("SlidingWindow", [X], {"window": [1], "axes": [1], "steps": [0]}),
    ("SpaceToBatch", [X], {"block_shape": [2]}),
    ("SpaceToBatch", [X], {"block_shape": [0]}),
    ("SpaceToBatch", [X], {"block_shape": [3], "pads": [-1, 1]}),
    ("SpaceToDepth", [filled((1, 1, 3, 2))], {"blocksize": 2}),
    ("Split", [X, whole(1, 1)], {"axis": 1}),
    ("Squeeze", [X, whole(0)], {}),
    ("Stack", [X, X[0]], {}),
    ("TensorScatter", [X, filled((3, 3))], {"axis": 1}),
    ("Tile", [X, whole(1)], {}),
    ("Transpose", [X], {"perm": [0, 0]}),
    ("Trilu", [X[0]], {}),
    ("Unsqueeze", [X, whole(4)], {}),
    ("Unstack", [X], {"axis": 1}),
    ("Unstack", [X], {"axis": 2}),
]


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"), BAD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_does_not_fit_is_refused(name: str, inputs: list[Array], attributes: dict[str, Any]) -> None:
    outputs = len(inputs) if name == "Meshgrid" else 2 if name in {"Split", "Unstack"} else 1
    with pytest.raises(EngineError, match=r"\w+ \w+"):
        _core.evaluate(name, [_core.asarray(one, None) for one in inputs], attributes, outputs)


def test_numpys_functions_are_these_operators() -> None:
    there = filled((3, 4, 5), "int64")
    here = _core.asarray(there, None)
    view, windows = np.lib.stride_tricks.sliding_window_view, numpy.lib.stride_tricks.sliding_window_view
    same([np.roll(here, 2), np.roll(here, 7, axis=1)], [numpy.roll(there, 2), numpy.roll(there, 7, axis=1)])
    same([np.roll(here, [1, -2], (0, 2))], [numpy.roll(there, [1, -2], (0, 2))])
    same([np.rot90(here), np.rot90(here, -1, (1, 2))], [numpy.rot90(there), numpy.rot90(there, -1, (1, 2))])
    same([np.repeat(here, 2)], [numpy.repeat(there, 2)])
    same([np.repeat(here, [2, 0, 1], 0)], [numpy.repeat(there, [2, 0, 1], 0)])
    gone: Any
    places: Any
    values: Any
    axis: Any
    for gone, axis in [(1, None), (slice(None, None, 2), 1), ([0, -1], 2)]:
        same([np.delete(here, gone, axis)], [numpy.delete(there, gone, axis)])
    for places, values, axis in [
        (1, 9, 1),
        (1, 9, None),
        ([0, 2], 9, 0),
        (2, [1, 2, 3, 4], -1),
        ([3, 0, 3], numpy.arange(3), 2),
        (0, numpy.ones((2, 4, 5)), 0),
    ]:
        same([np.insert(here, places, values, axis)], [numpy.insert(there, places, values, axis)])
    same([np.resize(here, (7, 11)), np.resize(here, 3)], [numpy.resize(there, (7, 11)), numpy.resize(there, 3)])
    same([np.diagonal(here, -1, 2, 0)], [numpy.diagonal(there, -1, 2, 0)])
    same([np.diag(here[0], 1), np.diag(here[0, 0], -1)], [numpy.diag(there[0], 1), numpy.diag(there[0, 0], -1)])
    lines = [there[0, 0], there[0, :, 0], there[:, 0, 0]]
    same(list(np.meshgrid(*lines)), list(numpy.meshgrid(*lines)))
    same(list(np.meshgrid(*lines[:2], indexing="ij")), list(numpy.meshgrid(*lines[:2], indexing="ij")))
    same(list(np.unstack(here, axis=-1)), list(numpy.unstack(there, axis=-1)))
    same([view(here, (2, 3), (0, 2))], [windows(there, (2, 3), (0, 2))])
    same([view(here[0, 0], 3)], [windows(there[0, 0], 3)])


def test_a_domain_of_an_onnx_model_has_the_engines_own_operators() -> None:
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Rot90", ["x"], ["y"], domain="walle", k=1)
    floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph([node], "g", [info("x", floats, [2, 3])], [info("y", floats, None)])
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("walle", 1)]
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=imports)
    numpy.testing.assert_array_equal(Backend.run_model(model, [X])[0], numpy.rot90(X))


def test_features_of_any_type_become_one_matrix_of_floats() -> None:
    info = onnx.helper.make_tensor_value_info
    inputs = [info("a", onnx.TensorProto.INT64, [2, 2]), info("b", onnx.TensorProto.FLOAT, [2, 1])]
    node = onnx.helper.make_node("FeatureVectorizer", ["a", "b"], ["y"], domain="ai.onnx.ml", inputdimensions=[2, 1])
    graph = onnx.helper.make_graph([node], "g", inputs, [info("y", onnx.TensorProto.FLOAT, None)])
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=imports)
    a, b = whole(1, 2, 3, 4).reshape(2, 2), filled((2, 1))
    (found,) = Backend.run_model(model, [a, b])
    assert found.dtype == numpy.float32
    numpy.testing.assert_array_equal(found, numpy.concatenate([a, b], 1))
