"""NumPy's meaning of every transform operator: cases that hypothesis draws, by the operator's name."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy
from hypothesis import strategies as st

type Array = numpy.ndarray[Any, Any]


class Case(NamedTuple):
    """A call of one operator with its result; operands in `known` are constants of a session's model."""

    inputs: list[Array]
    attributes: dict[str, Any]
    expected: list[Array]
    known: frozenset[int] = frozenset()


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
