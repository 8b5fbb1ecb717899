"""Family of random movements of elements, and operators that read through them."""

from collections.abc import Callable

import numpy as np

from tests.engine_ext.random_graphs.maker import GraphMaker, Unsuitable
from tests.engine_ext.random_graphs.steps import axes_of, binary, operand, reduction, smooth, typed, with_axes

_KINDS = ("int64", "int32", "uint8", "int8", "bool", "int16", "uint16")


def movement(g: GraphMaker) -> list[str]:
    """Make four to fourteen movements of one to three values; return values that are outputs besides the last ones."""
    values = [_value(g) for _ in range(g.between(1, 3))]
    for _ in range(g.between(4, 14)):
        x = g.draw(values[-3:])
        try:
            made = g.draw(_STEPS)(g, x, values)
        except Unsuitable:
            continue
        values.extend([made] if isinstance(made, str) else made)
    return [g.draw(values)] if g.chance(0.3) else []


def _value(g: GraphMaker) -> str:
    shape = tuple(g.draw([1, 2, 3, 4, 5, 6, 8]) for _ in range(g.draw([1, 2, 3, 3, 4, 4, 5])))
    if g.chance(0.7):
        return g.input(g.normal(shape))
    kind = g.draw(_KINDS)
    return g.input((g.rng.integers(0, 2 if kind == "bool" else 100, shape)).astype(kind))


def reshape(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x in another shape of as many elements, with 0 and -1 in the shape at times."""
    shape = g.shape(x)
    factors = [one for size in shape for one in _factors(size)]
    order = [factors[i] for i in g.rng.permutation(len(factors))]
    made = [1] * g.between(1, 5)
    for one in order:
        made[int(g.rng.integers(len(made)))] *= one
    if g.chance(0.3):
        made[int(g.rng.integers(len(made)))] = -1
    elif len(shape) <= len(made) and shape and g.chance(0.2) and made[0] == shape[0]:
        made[0] = 0
    return g.op("Reshape", [x, g.ints(made)])


def _factors(size: int) -> list[int]:
    found, factor = [], 2
    while size > 1:
        while size % factor == 0:
            found.append(factor)
            size //= factor
        factor += 1
    return found


def transpose(g: GraphMaker, x: str, _: list[str]) -> str:
    rank = len(g.shape(x))
    if g.chance(0.2):
        return g.op("Transpose", [x])
    return g.op("Transpose", [x], perm=g.rng.permutation(rank).tolist())


def cut(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return a slice, with negative starts, steps and ends beyond the axis at times."""
    axes = axes_of(g, x)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = g.shape(x)[axis]
        low, high = sorted((g.between(0, size - 1), g.between(0, size - 1)))
        step = g.draw([1, 1, 1, 2, 3])
        if g.chance(0.25):
            starts.append(high)
            ends.append(low - 1 if low > 0 else -(1 << 31))
            steps.append(-step)
        else:
            starts.append(low - size if g.chance(0.3) else low)
            ends.append(g.draw([high + 1, 1 << 62]))
            steps.append(step)
    return g.op("Slice", [x, *(g.ints(one) for one in (starts, ends, axes, steps))])


def pad(g: GraphMaker, x: str, _: list[str]) -> str:
    shape = g.shape(x)
    if not shape or g.kind(x) in {"bool", "uint16", "int16"}:
        raise Unsuitable("no pad of this")
    mode = g.draw(["constant", "constant", "edge", "reflect"])
    pads = [g.between(0, size - 1 if mode == "reflect" else 2) for size in shape * 2]
    if mode == "constant" and g.chance(0.2):  # negative pads remove
        pads[int(g.rng.integers(len(pads)))] = -1 if min(shape) > 3 else 0
    inputs = [x, g.ints(pads)]
    if mode == "constant" and g.chance(0.7):
        inputs.append(typed(g, x, ()))
    return g.op("Pad", inputs, mode=mode)


def split(g: GraphMaker, x: str, _: list[str]) -> list[str]:
    axis = axes_of(g, x)[0]
    size = g.shape(x)[axis]
    if size < 2:
        raise Unsuitable("one element")
    if size % 2 == 0 and g.chance(0.3) and g.opset >= 18:
        return g.ops("Split", [x], 2, axis=axis, num_outputs=2)
    at = g.between(1, size - 1)
    return g.ops("Split", [x, g.ints([at, size - at])], 2, axis=axis)


def concat(g: GraphMaker, x: str, values: list[str]) -> str:
    axis = axes_of(g, x)[0]
    like = [one for one in values if g.shape(one) == g.shape(x) and g.kind(one) == g.kind(x)]
    parts = [x, *(g.draw(like) for _ in range(g.between(1, 2)))]
    if g.chance(0.3):
        parts.append(typed(g, x, g.shape(x)))
    return g.op("Concat", [parts[i] for i in g.rng.permutation(len(parts))], axis=axis)


def gather(g: GraphMaker, x: str, _: list[str]) -> str:
    axis = axes_of(g, x)[0]
    shape, kind = g.shape(x), g.draw(["Gather", "Gather", "GatherElements", "GatherND"])
    size = shape[axis]
    if kind == "Gather":
        where = g.rng.integers(-size, size, [g.between(1, 4) for _ in range(g.between(0, 2))])
        where = np.asarray(where, dtype=g.draw([np.int64, np.int32]))
        return g.op(kind, [x, g.input(where) if g.chance(0.3) else g.constant(where)], axis=axis)
    if kind == "GatherElements":
        other = [length if at != axis % len(shape) else g.between(1, 4) for at, length in enumerate(shape)]
        return g.op(kind, [x, g.constant(g.rng.integers(-size, size, other).astype(np.int64))], axis=axis)
    depth = g.between(1, len(shape))
    where = np.stack([g.rng.integers(0, one, (g.between(1, 3),) * 0 + (3,)) for one in shape[:depth]], -1)
    return g.op(kind, [x, g.constant(where.astype(np.int64))])


def scatter(g: GraphMaker, x: str, _: list[str]) -> str:
    shape = g.shape(x)
    if not shape or g.kind(x) == "bool":
        raise Unsuitable("nothing to write to")
    if g.chance(0.5):
        rows = g.rng.permutation(shape[0])[: g.between(1, shape[0])].astype(np.int64)
        return g.op("ScatterND", [x, g.constant(rows[:, None]), typed(g, x, (len(rows), *shape[1:]))])
    axis = g.between(0, len(shape) - 1)
    size = shape[axis]
    rows = np.argsort(g.rng.random(shape), axis=axis)  # each index once along the axis
    rows = np.take(rows, range(g.between(1, size)), axis=axis).astype(np.int64)
    return g.op("ScatterElements", [x, g.constant(rows), typed(g, x, rows.shape)], axis=axis)


def tile(g: GraphMaker, x: str, _: list[str]) -> str:
    rank = len(g.shape(x))
    if g.chance(0.5):
        return g.op("Tile", [x, g.ints([g.draw([1, 1, 2, 3]) for _ in range(rank)])])
    shape = [size if size > 1 or g.chance(0.4) else g.between(2, 4) for size in g.shape(x)]
    return g.op("Expand", [x, g.ints(([g.between(1, 3)] if g.chance(0.3) else []) + shape)])


def axes_changed(g: GraphMaker, x: str, _: list[str]) -> str:
    shape = g.shape(x)
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    kind = g.draw(["Squeeze", "Unsqueeze", "Flatten"])
    if kind == "Flatten":
        return g.op(kind, [x], axis=g.between(-len(shape), len(shape)))
    if kind == "Squeeze":
        if not ones:
            raise Unsuitable("no axis of size 1")
        return with_axes(g, kind, x, [g.draw(ones)], 13)
    return with_axes(g, kind, x, [g.between(-len(shape) - 1, len(shape))], 13)


def blocks(g: GraphMaker, x: str, _: list[str]) -> str:
    shape = g.shape(x)
    if len(shape) != 4 or not g.floating(x):
        raise Unsuitable("no image")
    if shape[1] % 4 == 0 and g.chance(0.5):
        return g.op("DepthToSpace", [x], blocksize=2, mode=g.draw(["DCR", "CRD"]))
    if shape[2] % 2 or shape[3] % 2:
        raise Unsuitable("sizes do not divide")
    return g.op("SpaceToDepth", [x], blocksize=2)


def triangle(g: GraphMaker, x: str, _: list[str]) -> str:
    if len(g.shape(x)) < 2 or g.kind(x) not in {"float32", "float64", "int64"}:
        raise Unsuitable("no matrix")
    return g.op("Trilu", [x], upper=g.between(0, 1))


def where(g: GraphMaker, x: str, values: list[str]) -> str:
    condition = g.constant(g.rng.random(tuple(size if g.chance(0.7) else 1 for size in g.shape(x))) < 0.5)
    pair = [x, operand(g, x, values)]
    return g.op("Where", [condition, *(pair if g.chance(0.5) else pair[::-1])])


def shape_of(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x in its own shape, or joined axes, by operators on Shape."""
    rank = len(g.shape(x))
    if rank < 2:
        raise Unsuitable("too few axes")
    shape = g.op("Shape", [x])
    first = g.op("Slice", [shape, g.ints([0]), g.ints([1])])
    if g.chance(0.5):
        last = g.op("Gather", [shape, g.ints([rank - 1])], axis=0)
        return g.op("Reshape", [x, g.op("Concat", [first, g.ints([-1]), last], axis=0)])
    return g.op("Reshape", [x, g.op("Concat", [first, g.ints([-1])], axis=0)])


def cast(g: GraphMaker, x: str, _: list[str]) -> str:
    if g.floating(x):
        raise Unsuitable("floats stay")
    return g.op("Cast", [x], to=g.draw([1, 6, 7]))


def compute(g: GraphMaker, x: str, values: list[str]) -> str:
    if not g.floating(x):
        if g.kind(x) == "int64" and g.chance(0.7):
            return g.op(g.draw(["Add", "Sub", "Max"]), [x, operand(g, x, values)])
        raise Unsuitable("only moved")
    return g.draw([smooth, reduction])(g, x) if g.chance(0.6) else binary(g, x, values)


def reverse(g: GraphMaker, x: str, _: list[str]) -> str:
    """Return x reversed along axes, or joined with itself shifted."""
    axes = axes_of(g, x)
    minus = [-1] * len(axes)
    return g.op("Slice", [x, g.ints(minus), g.ints([-(1 << 31)] * len(axes)), g.ints(axes), g.ints(minus)])


_STEPS: tuple[Callable[[GraphMaker, str, list[str]], str | list[str]], ...] = (
    reshape, reshape, transpose, transpose, transpose, cut, cut, cut, pad, split, concat, concat, gather, gather,
    scatter, tile, axes_changed, axes_changed, blocks, triangle, where, shape_of, cast, compute, compute, reverse,
)  # fmt: skip
