"""Creation of arrays: from values, buffers and ranges, and filled with constants or windows."""

from __future__ import annotations

import builtins
from itertools import islice
from operator import index

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError, UnsupportedError
from walle.engine_ext.np.base import COMPLEX, FLOATS, as_shape, asarray, operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, DType, Shape

__all__ = [
    "arange", "array", "asanyarray", "asarray", "ascontiguousarray", "astype", "bartlett", "blackman", "copy", "diag",
    "diagflat", "empty", "empty_like", "eye", "frombuffer", "fromfunction", "fromiter", "fromstring", "full",
    "full_like", "geomspace", "hamming", "hanning", "identity", "indices", "kaiser", "linspace", "logspace",
    "meshgrid", "ndarray", "ones", "ones_like", "tri", "tril", "triu", "vander", "zeros", "zeros_like",
]  # fmt: skip

asanyarray = asarray
array, zeros, ones, arange = _core.array, _core.zeros, _core.ones, _core.arange_until
empty = zeros  # uninitialised memory could show an earlier task's data


def copy(x: ArrayLike) -> ndarray:
    return asarray(x).copy()


def astype(x: ArrayLike, dtype: DType) -> ndarray:
    return asarray(x).astype(dtype)


def ascontiguousarray(value: ArrayLike, dtype: DType | None = None) -> ndarray:
    """Return the array in row-major order with at least one dimension; it is copied only if it is in another order."""
    given = _core.contiguous(asarray(value, dtype))
    return given if given.ndim else given.reshape(1)


def full(shape: Shape, value: ArrayLike, dtype: DType | None = None) -> ndarray:
    return _core.full(shape, value, dtype)


def full_like(x: ArrayLike, value: ArrayLike, dtype: DType | None = None) -> ndarray:
    like = asarray(x)
    return _core.full(like.shape, value, dtype or like.dtype)


def zeros_like(x: ArrayLike, dtype: DType | None = None) -> ndarray:
    return full_like(x, 0, dtype)


def ones_like(x: ArrayLike, dtype: DType | None = None) -> ndarray:
    return full_like(x, 1, dtype)


def empty_like(x: ArrayLike, dtype: DType | None = None) -> ndarray:
    return full_like(x, 0, dtype)


def linspace(start: float, stop: float, num: int = 50, endpoint: bool = True, retstep: bool = False,
             dtype: DType = "float32") -> Any:  # fmt: skip
    """Return `num` evenly spaced numbers; `retstep` adds the step."""
    num = index(num)
    if num < 0:
        raise ShapeError(f"linspace of {num} numbers; `num` must not be negative")
    _refuse_vectors("linspace", start, stop)
    start, stop = float(start), float(stop)
    parts = num - 1 if endpoint else num
    step = (stop - start) / parts if parts > 0 else float("nan")
    line = _core.arange(0, 1, num, "float64") * (step if parts > 0 else 0.0) + float(start)
    if endpoint and num > 1:
        line[-1] = stop
    if _core.dtype(dtype).kind in "iu":  # NumPy rounds towards minus infinity, a conversion towards 0
        line = _core.unary("Floor", line)
    result = line.astype(dtype)
    return (result, step) if retstep else result


def logspace(start: float, stop: float, num: int = 50, endpoint: bool = True, base: float = 10.0,
             dtype: DType = "float32") -> ndarray:  # fmt: skip
    """Return base ** linspace(start, stop)."""
    powers: ndarray = linspace(start, stop, num, endpoint, dtype="float64")
    return _core.binary("Power", _core.full((), base, "float64"), powers).astype(dtype)


def geomspace(start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DType = "float32") -> ndarray:
    """Return `num` numbers of a geometric sequence."""
    _refuse_vectors("geomspace", start, stop)
    if start == 0 or stop == 0 or (start < 0) != (stop < 0):
        raise ShapeError(f"geomspace from {start} to {stop}; both must be other than 0 and have the same sign")
    parts = num - 1 if endpoint else num
    factor = (stop / start) ** (1 / parts) if parts > 0 else 1.0
    line = _core.binary("Power", _core.full((), factor, "float64"), _core.arange(0, 1, num, "float64")) * float(start)
    if endpoint and num > 1:
        line[-1] = stop
    return line.astype(dtype)


def _refuse_vectors(function: str, *ends: object) -> None:
    """Refuse ends that are complex numbers or have dimensions, which NumPy takes."""
    for end in ends:
        if not isinstance(end, int | float) and (asarray(end).ndim > 0 or asarray(end).dtype in COMPLEX):
            raise UnsupportedError(
                f"{function} between arrays or complex numbers is not supported; "
                "use start + (stop - start) * linspace(0, 1, n)"
            )


def eye(n: int, m: int | None = None, k: int = 0, dtype: DType = "float32") -> ndarray:
    columns = n if m is None else m
    result = _core.full((n, columns), 0, dtype)
    first, rest = max(k, -k * columns), max(0, min(n + min(k, 0), columns - max(k, 0)))
    if rest:
        result.reshape(-1)[first : first + (rest - 1) * (columns + 1) + 1 : columns + 1] = 1
    return result


def identity(n: int, dtype: DType = "float32") -> ndarray:
    return eye(n, dtype=dtype)


def diag(x: ArrayLike, k: int = 0) -> ndarray:
    """Return a matrix with the vector on its k-th diagonal, or the k-th diagonal of a matrix."""
    given = asarray(x)
    if given.ndim == 2:
        return _core.diagonal(given, k, 0, 1).copy()
    if given.ndim != 1:
        raise ShapeError(f"diag of shape {given.shape}; it takes a vector or a matrix")
    n = given.size + abs(k)
    result = _core.full((n, n), 0, given.dtype)
    if given.size:
        first = max(k, -k * n)
        result.reshape(-1)[first : first + (given.size - 1) * (n + 1) + 1 : n + 1] = given
    return result


def diagflat(x: ArrayLike, k: int = 0) -> ndarray:
    return diag(asarray(x).reshape(-1), k)


def tri(n: int, m: int | None = None, k: int = 0, dtype: DType = "float32") -> ndarray:
    """Return ones on and below the k-th diagonal, zeros above."""
    return tril(_core.full((n, n if m is None else m), 1, dtype), k)


def tril(x: ArrayLike, k: int = 0) -> ndarray:
    return operator("Trilu", [_matrices(x, "tril"), asarray(k, "int64")], upper=0)


def triu(x: ArrayLike, k: int = 0) -> ndarray:
    return operator("Trilu", [_matrices(x, "triu"), asarray(k, "int64")], upper=1)


def _matrices(x: ArrayLike, name: str) -> ndarray:
    given = asarray(x)
    if given.ndim == 0:
        raise ShapeError(f"{name} of an array without dimensions; it takes one dimension or more")
    return _core.broadcast_to(given, (given.size, given.size)) if given.ndim == 1 else given


def vander(x: ArrayLike, n: int | None = None, increasing: bool = False) -> ndarray:
    """Return a matrix whose rows hold the powers of each number, the highest first unless `increasing`."""
    given = asarray(x)
    count = given.size if n is None else n
    powers = _core.arange(0, 1, count, "int64") if increasing else _core.arange(count - 1, -1, count, "int64")
    wide = given if given.dtype in FLOATS else given.astype(_core.promote(given.dtype, "int64"))
    return _core.binary("Power", wide[:, None], powers.astype(wide.dtype))


def meshgrid(*axes: ArrayLike, sparse: bool = False, indexing: str = "xy") -> list[ndarray]:
    """Return the coordinates over the grid of the axes; `indexing` "xy" swaps the first two."""
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"meshgrid with indexing {indexing!r}; known are 'xy' and 'ij'")
    lines = [asarray(axis).reshape(-1) for axis in axes]
    places = list(range(len(lines)))
    if indexing == "xy" and len(lines) > 1:
        places[:2] = [1, 0]
    shape = [0] * len(lines)
    for line, place in zip(lines, places, strict=True):
        shape[place] = line.size
    shaped = [
        line.reshape([line.size if at == place else 1 for at in range(len(lines))])
        for line, place in zip(lines, places, strict=True)
    ]
    return shaped if sparse else [_core.broadcast_to(line, shape).copy() for line in shaped]


def indices(dimensions: Sequence[int], dtype: DType = "int64", sparse: bool = False) -> Any:
    """Return each element's coordinates: an array (rank, *dimensions), or if `sparse` one open array for each axis."""
    lines = [_core.arange(0, 1, n, dtype) for n in dimensions]
    open_lines = [line.reshape([-1 if i == at else 1 for i, _ in enumerate(lines)]) for at, line in enumerate(lines)]
    if sparse:
        return tuple(open_lines)
    result = _core.full((len(lines), *dimensions), 0, dtype)
    for at, line in enumerate(open_lines):
        result[at] = line
    return result


def fromfunction(function: Callable[..., ArrayLike], shape: Shape, *, dtype: DType = "float32") -> ndarray:
    """Return `function(*coordinates)`; it is called once, with arrays."""
    return asarray(function(*indices(as_shape(shape), dtype)))


def fromiter(values: Iterable[float], dtype: DType, count: int = -1) -> ndarray:
    """Return the values of an iterable: the first `count` of them, or all if it is -1."""
    numbers = list(values if count < 0 else islice(values, count))
    if count >= 0 and len(numbers) < count:
        raise ShapeError(f"the iterable ended after {len(numbers)} of {count} values")
    return asarray(numbers, dtype)


def frombuffer(buffer: Any, dtype: DType = "float32", count: int = -1, offset: int = 0) -> ndarray:
    """Return a view of a buffer's bytes, from `offset` on, as numbers of one dtype."""
    like = _core.full((), 0, dtype)
    name, item = like.dtype, like.itemsize
    data = memoryview(buffer).cast("B")[offset:]
    if count < 0 and len(data) % item:
        raise ShapeError(f"{len(data)} bytes do not divide into elements of {name}, {item} bytes each")
    length = len(data) // item if count < 0 else count
    if length * item > len(data):
        raise ShapeError(f"{len(data)} bytes hold fewer than {length} elements of {name}")
    numbers: Any = data[: length * item].cast(_FORMATS[name])  # type: ignore[call-overload]
    return asarray(numbers)


_FORMATS = {
    "float32": "f", "float64": "d", "float16": "e", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "bool": "?",
}  # fmt: skip


def fromstring(text: str, dtype: DType = "float32", count: int = -1, sep: str = " ") -> ndarray:
    """Return the numbers of a text, separated by `sep`: the first `count` of them, or all if it is -1."""
    words = text.split(sep.strip() or None)
    return fromiter([float(word) if "float" in str(dtype) else int(word) for word in words], dtype, count)


# Window functions of n numbers, with a peak of 1.


def _cosine_window(n: int, weights: tuple[float, ...]) -> ndarray:
    if n < 2:
        return _core.full((max(n, 0),), 1, "float64")
    turn = _core.arange(0, 1, n, "float64") * (2 * 3.141592653589793 / (n - 1))
    terms = (weight * _core.unary("Cos", turn * float(k)) for k, weight in enumerate(weights))
    return builtins.sum(terms, start=_core.full((n,), 0, "float64"))


def hanning(n: int) -> ndarray:
    return _cosine_window(n, (0.5, -0.5))


def hamming(n: int) -> ndarray:
    return _cosine_window(n, (0.54, -0.46))


def blackman(n: int) -> ndarray:
    return _cosine_window(n, (0.42, -0.5, 0.08))


def bartlett(n: int) -> ndarray:
    """Return a triangular window that is 0 at both ends."""
    if n < 2:
        return _core.full((max(n, 0),), 1, "float64")
    return 1 - _core.unary("Abs", _core.arange(0, 1, n, "float64") * (2 / (n - 1)) - 1.0)


def kaiser(n: int, beta: float) -> ndarray:
    from walle.engine_ext.np import i0

    if n < 2:
        return _core.full((max(n, 0),), 1, "float64")
    place = _core.arange(0, 1, n, "float64") * (2 / (n - 1)) - 1.0
    inside = _core.binary("Maximum", 1.0 - place * place, 0.0)
    return i0(float(beta) * _core.unary("Sqrt", inside)) / i0(asarray(beta, "float64"))
