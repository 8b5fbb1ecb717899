"""`walle.np`: arrays with NumPy's names, arguments and results, on the engine's operators.

Where it differs from NumPy: floats without a dtype become float32, not float64 (ints int64, bools bool). A dtype is a
string ("float32"), and `np.float32` is that string. What NumPy returns as a scalar is an array without dimensions;
`float(x)`, `x.item()`, comparison, hashing and formatting work on it. Integers given to a floating function become
float64 (int32, int64) or float32 (uint8, bool). Integer conversion saturates. An index holds at most one array of
indices or mask. Matrix products of integers wrap like all integer arithmetic. Nothing is written to standard error:
division by zero just gives inf, NaN or, for integers, 0.

It is loaded in every task VM, so it imports nothing but the native core.
"""

import builtins
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray

__all__ = [
    "abs",
    "add",
    "all",
    "allclose",
    "any",
    "arange",
    "arctan",
    "arctan2",
    "argmax",
    "argmin",
    "array",
    "array_equal",
    "asarray",
    "ascontiguousarray",
    "bool_",
    "broadcast_to",
    "ceil",
    "clip",
    "concatenate",
    "cos",
    "delete",
    "diag",
    "diagonal",
    "divide",
    "dot",
    "e",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "flip",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "inf",
    "insert",
    "int32",
    "int64",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "lib",
    "linspace",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "matmul",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "mod",
    "moveaxis",
    "multiply",
    "nan",
    "ndarray",
    "negative",
    "newaxis",
    "not_equal",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "pi",
    "power",
    "prod",
    "ravel",
    "reciprocal",
    "repeat",
    "reshape",
    "resize",
    "roll",
    "rot90",
    "round",
    "sign",
    "sin",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "tan",
    "tanh",
    "tile",
    "transpose",
    "trunc",
    "uint8",
    "unstack",
    "var",
    "where",
    "zeros",
    "zeros_like",
]


class _HasBuffer(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...


type ArrayLike = ndarray | _HasBuffer | float | Sequence[Any]
type DType = str | type[float | int | bool]
type Shape = int | Iterable[int]
type Axis = int | Iterable[int] | None

float16 = "float16"
float32 = "float32"
float64 = "float64"
bfloat16 = "bfloat16"  # computed, like float16, in float32
int8 = "int8"
int16 = "int16"
int32 = "int32"
int64 = "int64"
uint8 = "uint8"
uint16 = "uint16"
uint32 = "uint32"
uint64 = "uint64"
bool_ = "bool"
pi = 3.141592653589793
e = 2.718281828459045
inf = float("inf")
nan = float("nan")
newaxis = None


# Creation.


def asarray(value: ArrayLike, dtype: DType | None = None) -> ndarray:
    """Return an array of the value; an array or buffer that has the dtype already is shared, not copied."""
    return _core.asarray(value, dtype)


def array(value: ArrayLike, dtype: DType | None = None) -> ndarray:
    """Return a new array of the value."""
    return _core.asarray(value, dtype).copy()


def ascontiguousarray(value: ArrayLike, dtype: DType | None = None) -> ndarray:
    given = _core.asarray(value, dtype)
    return given.reshape(given.shape)


def full(shape: Shape, value: ArrayLike, dtype: DType | None = None) -> ndarray:
    return _core.full(shape, value, dtype)


def zeros(shape: Shape, dtype: DType = float32) -> ndarray:
    return _core.full(shape, 0, dtype)


def ones(shape: Shape, dtype: DType = float32) -> ndarray:
    return _core.full(shape, 1, dtype)


def empty(shape: Shape, dtype: DType = float32) -> ndarray:
    """Return an array of zeros: memory of an earlier task is never shown."""
    return _core.full(shape, 0, dtype)


def full_like(x: ArrayLike, value: ArrayLike, dtype: DType | None = None) -> ndarray:
    like = asarray(x)
    return _core.full(like.shape, value, dtype or like.dtype)


def zeros_like(x: ArrayLike, dtype: DType | None = None) -> ndarray:
    return full_like(x, 0, dtype)


def ones_like(x: ArrayLike, dtype: DType | None = None) -> ndarray:
    return full_like(x, 1, dtype)


def empty_like(x: ArrayLike, dtype: DType | None = None) -> ndarray:
    return full_like(x, 0, dtype)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: DType | None = None) -> ndarray:
    """Return start, start + step, ... up to, not including, stop."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("arange with a step of 0")
    whole = builtins.all(isinstance(number, int) for number in (start, stop, step))
    count = builtins.max(0, -int(-(stop - start) // step))
    return _core.arange(start, step, count, dtype or (int64 if whole else float32))


def linspace(start: float, stop: float, num: int = 50, *, endpoint: bool = True, dtype: DType = float32) -> ndarray:
    parts = num - 1 if endpoint else num
    line = _core.arange(0, 1, num, float64) * ((stop - start) / parts if parts > 0 else 0.0) + float(start)
    if endpoint and num > 1:
        line[-1] = stop
    return line.astype(dtype)


def eye(n: int, m: int | None = None, k: int = 0, dtype: DType = float32) -> ndarray:
    return (arange(n)[:, None] + k == arange(n if m is None else m)[None, :]).astype(dtype)


# Shape.


def reshape(x: ArrayLike, shape: Shape) -> ndarray:
    """Return a view where the elements lie row by row already, else a copy."""
    return asarray(x).reshape(shape)


def ravel(x: ArrayLike) -> ndarray:
    return asarray(x).ravel()


def transpose(x: ArrayLike, axes: Iterable[int] | None = None) -> ndarray:
    """Return a view with the axes in another order, reversed by default."""
    return asarray(x).transpose() if axes is None else asarray(x).transpose(tuple(axes))


def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> ndarray:
    given = asarray(x)
    order = list(range(given.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return given.transpose(order)


def moveaxis(x: ArrayLike, source: int, destination: int) -> ndarray:
    given = asarray(x)
    order = list(range(given.ndim))
    order.insert(destination if destination >= 0 else destination + given.ndim, order.pop(source))
    return given.transpose(order)


def expand_dims(x: ArrayLike, axis: int) -> ndarray:
    given = asarray(x)
    at = axis if axis >= 0 else axis + given.ndim + 1
    return given.reshape((*given.shape[:at], 1, *given.shape[at:]))


def squeeze(x: ArrayLike, axis: Axis = None) -> ndarray:
    given = asarray(x)
    if axis is None:
        return given.reshape(tuple(size for size in given.shape if size != 1))
    axes = {at % given.ndim for at in ((axis,) if isinstance(axis, int) else axis)}
    if builtins.any(given.shape[at] != 1 for at in axes):
        raise ValueError(f"squeeze of axes {sorted(axes)} of shape {given.shape}; each must be 1")
    return given.reshape(tuple(size for at, size in enumerate(given.shape) if at not in axes))


def broadcast_to(x: ArrayLike, shape: Shape) -> ndarray:
    """Return a view that repeats elements; it cannot be written."""
    return _core.broadcast_to(x, shape)


def concatenate(arrays: Sequence[ArrayLike], axis: int | None = 0) -> ndarray:
    parts = _alike(arrays)
    if axis is None:
        parts, axis = [part.ravel() for part in parts], 0
    return _core.evaluate("Concat", parts, {"axis": axis})[0]


def stack(arrays: Sequence[ArrayLike], axis: int = 0) -> ndarray:
    return _core.evaluate("Stack", _alike(arrays), {"axis": axis})[0]


def split(x: ArrayLike, parts: int | Sequence[int], axis: int = 0) -> list[ndarray]:
    """Return views: `parts` equal ones, or those between the given positions."""
    given = asarray(x)
    at = axis % given.ndim
    size = given.shape[at]
    if isinstance(parts, int):
        if size % parts:
            raise ValueError(f"an axis of {size} does not split into {parts} equal parts")
        cuts = [size // parts * i for i in range(1, parts)]
    else:
        cuts = list(parts)
    head = (slice(None),) * at
    bounds = zip([0, *cuts], [*cuts, size], strict=True)
    return [given[(*head, slice(first, last))] for first, last in bounds]


def tile(x: ArrayLike, repeats: int | Sequence[int]) -> ndarray:
    given = asarray(x)
    times = (repeats,) if isinstance(repeats, int) else tuple(repeats)
    rank = builtins.max(given.ndim, len(times))
    shaped = given.reshape((1,) * (rank - given.ndim) + given.shape)
    return _core.evaluate("Tile", [shaped], {"repeats": (1,) * (rank - len(times)) + times})[0]


def pad(x: ArrayLike, width: int | Sequence[Any], constant_values: float = 0) -> ndarray:
    """Return a copy with a border of one value; `width` is NumPy's: one number, one pair, or one pair per axis."""
    given = asarray(x)
    pairs = [(width, width)] if isinstance(width, int) else list(width)
    if isinstance(pairs[0], int):
        pairs = [tuple(pairs)]
    if len(pairs) == 1:
        pairs *= given.ndim
    pads = [before for before, _ in pairs] + [after for _, after in pairs]
    fill = _core.asarray(constant_values, given.dtype)
    return _core.evaluate("Pad", [given, _core.asarray(pads, int64), fill], {})[0]


def flip(x: ArrayLike, axis: Axis = None) -> ndarray:
    given = asarray(x)
    chosen = range(given.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = {at % given.ndim for at in chosen}
    return given[tuple(slice(None, None, -1 if at in axes else 1) for at in range(given.ndim))]


def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> ndarray:
    given = asarray(x)
    if axis is None:
        given, axis = given.ravel(), 0
    return _core.evaluate("Gather", [given, asarray(indices).astype(int64)], {"axis": axis})[0]


def roll(x: ArrayLike, shift: int | Sequence[int], axis: Axis = None) -> ndarray:
    """Return the elements `shift` places further along the axes, those that leave at the end at the start."""
    shifts = [shift] if isinstance(shift, int) else list(shift)
    attributes: dict[str, Any] = {"shifts": shifts}
    if axis is not None:
        attributes["axes"] = [axis] * len(shifts) if isinstance(axis, int) else list(axis)
    return _core.evaluate("Roll", [asarray(x)], attributes)[0]


def rot90(x: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> ndarray:
    return _core.evaluate("Rot90", [asarray(x)], {"k": k, "axes": list(axes)})[0]


def repeat(x: ArrayLike, repeats: int | Sequence[int], axis: int | None = None) -> ndarray:
    """Return each slice along the axis (each element where there is none) as often as `repeats` says."""
    times = [repeats] if isinstance(repeats, int) else list(repeats)
    return _core.evaluate("Repeat", [asarray(x)], {"repeats": times} | _along(axis))[0]


def delete(x: ArrayLike, places: int | slice | Sequence[int], axis: int | None = None) -> ndarray:
    """Return an array without the slices along the axis that `places` names; without an axis it is flat."""
    given = asarray(x)
    size = given.size if axis is None else given.shape[axis]
    gone = range(size)[places] if isinstance(places, slice) else [places] if isinstance(places, int) else places
    return _core.evaluate("Delete", [given], {"indices": list(gone)} | _along(axis))[0]


def insert(x: ArrayLike, places: int | Sequence[int], values: ArrayLike, axis: int | None = None) -> ndarray:
    """Return an array with slices of `values` before the places of `x` along the axis; without an axis it is flat."""
    given = asarray(x)
    if axis is None:
        given, axis = given.ravel(), 0
    axis %= given.ndim
    new = asarray(values).astype(given.dtype)
    new = new.reshape((1,) * (given.ndim - new.ndim) + new.shape)
    if isinstance(places, int):  # NumPy: as many slices as the first axis of the values has
        new = moveaxis(new, 0, axis)
        indices = [places] * new.shape[axis]
    else:
        indices = list(places)
    new = broadcast_to(new, (*given.shape[:axis], len(indices), *given.shape[axis + 1 :]))
    return _core.evaluate("Insert", [given, new], {"axis": axis, "indices": indices})[0]


def resize(x: ArrayLike, shape: Shape) -> ndarray:
    """Return the elements over and over, as many as the shape holds."""
    return _core.evaluate("Cycle", [asarray(x)], {"shape": [shape] if isinstance(shape, int) else list(shape)})[0]


def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    return _core.evaluate("Diagonal", [asarray(x)], {"offset": offset, "axis1": axis1, "axis2": axis2})[0]


def diag(x: ArrayLike, k: int = 0) -> ndarray:
    """Return the matrix with a vector on its diagonal `k`, or that diagonal of a matrix."""
    given = asarray(x)
    return _core.evaluate("Diag", [given], {"k": k})[0] if given.ndim == 1 else diagonal(given, k)


def meshgrid(*arrays: ArrayLike, indexing: str = "xy") -> tuple[ndarray, ...]:
    """Return each array's values all over the grid that the arrays span."""
    lines = [asarray(one).ravel() for one in arrays]
    return tuple(_core.evaluate("Meshgrid", lines, {"indexing": indexing}, len(lines))) if lines else ()


def unstack(x: ArrayLike, *, axis: int = 0) -> tuple[ndarray, ...]:
    """Return the slices along an axis, which they lack."""
    given = asarray(x)
    return tuple(_core.evaluate("Unstack", [given], {"axis": axis}, given.shape[axis]))


def sliding_window_view(x: ArrayLike, window_shape: Shape, axis: Axis = None) -> ndarray:
    """Return a copy of every window along the axes, the windows' own axes last."""
    window = [window_shape] if isinstance(window_shape, int) else list(window_shape)
    attributes: dict[str, Any] = {"window": window}
    if axis is not None:
        attributes["axes"] = [axis] if isinstance(axis, int) else list(axis)
    return _core.evaluate("SlidingWindow", [asarray(x)], attributes)[0]


class lib:  # noqa: N801 -- NumPy's name
    class stride_tricks:  # noqa: N801 -- NumPy's name
        sliding_window_view = staticmethod(sliding_window_view)


def _along(axis: int | None) -> dict[str, Any]:
    return {} if axis is None else {"axis": axis}


def _alike(arrays: Sequence[ArrayLike]) -> list[ndarray]:
    parts = [asarray(part) for part in arrays]
    if not parts:
        raise ValueError("at least one array is needed")
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = _core.promote(dtype, part.dtype)
    return [part if part.dtype == dtype else part.astype(dtype) for part in parts]


# Element by element.


def abs(x: ArrayLike) -> ndarray:  # noqa: A001 -- NumPy's name
    return _core.unary("Abs", x)


def negative(x: ArrayLike) -> ndarray:
    return _core.unary("Neg", x)


def sign(x: ArrayLike) -> ndarray:
    return _core.unary("Sign", x)


def square(x: ArrayLike) -> ndarray:
    return _core.unary("Square", x)


def sqrt(x: ArrayLike) -> ndarray:
    return _core.unary("Sqrt", x)


def reciprocal(x: ArrayLike) -> ndarray:
    return _core.unary("Reciprocal", x)


def exp(x: ArrayLike) -> ndarray:
    return _core.unary("Exp", x)


def expm1(x: ArrayLike) -> ndarray:
    return _core.unary("Expm1", x)


def log(x: ArrayLike) -> ndarray:
    return _core.unary("Log", x)


def log1p(x: ArrayLike) -> ndarray:
    return _core.unary("Log1p", x)


def sin(x: ArrayLike) -> ndarray:
    return _core.unary("Sin", x)


def cos(x: ArrayLike) -> ndarray:
    return _core.unary("Cos", x)


def tan(x: ArrayLike) -> ndarray:
    return _core.unary("Tan", x)


def arctan(x: ArrayLike) -> ndarray:
    return _core.unary("Atan", x)


def arctan2(y: ArrayLike, x: ArrayLike) -> ndarray:
    return _core.binary("Atan2", y, x)


def tanh(x: ArrayLike) -> ndarray:
    return _core.unary("Tanh", x)


def floor(x: ArrayLike) -> ndarray:
    return _core.unary("Floor", x)


def ceil(x: ArrayLike) -> ndarray:
    return _core.unary("Ceil", x)


def round(x: ArrayLike) -> ndarray:  # noqa: A001 -- NumPy's name
    """Return the nearest whole numbers, halves to even."""
    return _core.unary("Round", x)


def trunc(x: ArrayLike) -> ndarray:
    return _core.unary("Trunc", x)


def isnan(x: ArrayLike) -> ndarray:
    return _core.unary("IsNaN", x)


def isinf(x: ArrayLike) -> ndarray:
    return _core.unary("IsInfinite", x)


def isfinite(x: ArrayLike) -> ndarray:
    return ~(isnan(x) | isinf(x))


def logical_not(x: ArrayLike) -> ndarray:
    return _core.unary("Not", _core.asarray(x, bool_))


def add(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Add", a, b)


def subtract(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Sub", a, b)


def multiply(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Mul", a, b)


def divide(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Div", a, b)


def floor_divide(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("FloorDiv", a, b)


def mod(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("FloorMod", a, b)


def power(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Power", a, b)


def maximum(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Maximum", a, b)


def minimum(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Minimum", a, b)


def equal(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Equal", a, b)


def not_equal(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("NotEqual", a, b)


def less(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Less", a, b)


def less_equal(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("LessOrEqual", a, b)


def greater(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Greater", a, b)


def greater_equal(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("GreaterOrEqual", a, b)


def logical_and(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("And", _core.asarray(a, bool_), _core.asarray(b, bool_))


def logical_or(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Or", _core.asarray(a, bool_), _core.asarray(b, bool_))


def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.where(condition, a, b)


def clip(x: ArrayLike, low: ArrayLike | None, high: ArrayLike | None) -> ndarray:
    result = asarray(x)
    if low is not None:
        result = maximum(result, low)
    return result if high is None else minimum(result, high)


def isclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8) -> ndarray:
    return (abs(subtract(a, b)) <= atol + rtol * abs(b)) | equal(a, b)


def allclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    return bool(isclose(a, b, rtol, atol).all())


def array_equal(a: ArrayLike, b: ArrayLike) -> bool:
    left, right = asarray(a), asarray(b)
    return left.shape == right.shape and bool((left == right).all())


# Over axes.


def sum(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:  # noqa: A001 -- NumPy's name
    """Return the sum; floats are gathered in float64 along the innermost axis, integers in int64."""
    return _core.reduce("ReduceSum", x, axis, keepdims)


def prod(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:
    return _core.reduce("ReduceProd", x, axis, keepdims)


def mean(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:
    return _core.reduce("ReduceMean", x, axis, keepdims)


def max(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:  # noqa: A001 -- NumPy's name
    return _core.reduce("ReduceMax", x, axis, keepdims)


def min(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:  # noqa: A001 -- NumPy's name
    return _core.reduce("ReduceMin", x, axis, keepdims)


def argmax(x: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> ndarray:
    return _core.reduce("ArgMax", x, axis, keepdims)


def argmin(x: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> ndarray:
    return _core.reduce("ArgMin", x, axis, keepdims)


def all(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:  # noqa: A001 -- NumPy's name
    return asarray(x).all(axis, keepdims)


def any(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> ndarray:  # noqa: A001 -- NumPy's name
    return asarray(x).any(axis, keepdims)


def var(x: ArrayLike, axis: Axis = None, ddof: int = 0, *, keepdims: bool = False) -> ndarray:
    given = asarray(x)
    centred = square(given - mean(given, axis, keepdims=True))
    total = sum(centred, axis, keepdims=keepdims)
    return total / (given.size // total.size - ddof if total.size else 1)


def std(x: ArrayLike, axis: Axis = None, ddof: int = 0, *, keepdims: bool = False) -> ndarray:
    return sqrt(var(x, axis, ddof, keepdims=keepdims))


# Linear algebra.


def matmul(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("MatMul", a, b)


def dot(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the product of vectors, matrices, or a number with either."""
    left, right = asarray(a), asarray(b)
    if left.ndim == 0 or right.ndim == 0:
        return multiply(left, right)
    if right.ndim > 2:
        raise ValueError(f"dot of shapes {left.shape} and {right.shape}; use matmul for stacks of matrices")
    return matmul(left, right)


def outer(a: ArrayLike, b: ArrayLike) -> ndarray:
    return multiply(asarray(a).reshape(-1, 1), asarray(b).reshape(1, -1))
