"""Dtype names, mathematical constants, and the limits of dtypes."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import dtype, ufunc
from walle.engine_ext.errors import DTypeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import builtins

    from walle.engine_ext.np.likes import ArrayLike, DType

__all__ = [
    "False_",
    "True_",
    "bfloat16",
    "bool",
    "bool_",
    "byte",
    "can_cast",
    "cdouble",
    "complex64",
    "complex128",
    "csingle",
    "double",
    "dtype",
    "e",
    "euler_gamma",
    "finfo",
    "float16",
    "float32",
    "float64",
    "half",
    "iinfo",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "intc",
    "intp",
    "isscalar",
    "iterable",
    "long",
    "longlong",
    "nan",
    "newaxis",
    "pi",
    "promote_types",
    "result_type",
    "short",
    "single",
    "ubyte",
    "ufunc",
    "uint",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uintc",
    "uintp",
    "ulong",
    "ulonglong",
    "ushort",
]  # fmt: skip

float16 = dtype("float16")  # computed, like bfloat16, in float32
bfloat16 = dtype("bfloat16")
float32 = dtype("float32")
float64 = dtype("float64")
int8 = dtype("int8")
int16 = dtype("int16")
int32 = dtype("int32")
int64 = dtype("int64")
uint8 = dtype("uint8")
uint16 = dtype("uint16")
uint32 = dtype("uint32")
uint64 = dtype("uint64")
bool = bool_ = dtype("bool")  # noqa: A001 -- NumPy's name
half, single, double = float16, float32, float64
complex64 = csingle = dtype("complex64")
complex128 = cdouble = dtype("complex128")
int_ = intp = long = longlong = int64
uint = uintp = ulong = ulonglong = uint64
byte, short, intc, ubyte, ushort, uintc = int8, int16, int32, uint8, uint16, uint32
True_, False_ = bool_(1), bool_(0)
True_.setflags(write=False)  # one object for all tasks of a VM
False_.setflags(write=False)
pi = 3.141592653589793
e = 2.718281828459045
euler_gamma = 0.5772156649015329
inf = float("inf")
nan = float("nan")
newaxis = None

_MANTISSAS = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126), "float64": (52, -1022)}


class finfo:  # noqa: N801 -- NumPy's name
    """Limits of a floating dtype."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = _core.full((), 0, dtype).real.dtype  # a complex number's parts
        if self.dtype not in _MANTISSAS:
            raise DTypeError(f"finfo of {self.dtype}, which is not a floating dtype; use iinfo for integers")
        self.nmant, self.minexp = _MANTISSAS[self.dtype]
        self.bits = 8 * _core.full((), 0, self.dtype).itemsize
        self.eps = 2.0**-self.nmant
        self.tiny = self.smallest_normal = 2.0**self.minexp
        self.smallest_subnormal = 2.0 ** (self.minexp - self.nmant)
        self.max = (2 - self.eps) * 2.0 ** (1 - self.minexp)
        self.min = -self.max


class iinfo:  # noqa: N801 -- NumPy's name
    """Limits of an integer dtype."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = _core.full((), 0, dtype).dtype
        if not self.dtype.startswith(("int", "uint")):
            raise DTypeError(f"iinfo of {self.dtype}, which is not an integer dtype; use finfo for floats")
        self.bits = 8 * _core.full((), 0, self.dtype).itemsize
        unsigned = self.dtype.startswith("uint")
        self.min = 0 if unsigned else -(1 << (self.bits - 1))
        self.max = (1 << self.bits) - 1 if unsigned else (1 << (self.bits - 1)) - 1


_KINDS = "buifc"


def promote_types(a: DType, b: DType) -> str:
    """Return the dtype that both convert to when they are combined."""
    return _core.promote(a, b)


def result_type(*of: ArrayLike | DType) -> str:
    """Return the dtype that all arrays and dtypes given convert to when they are combined."""
    names: list[str] = [_core.dtype(one) if isinstance(one, str | type) else _core.asarray(one).dtype for one in of]
    result = names[0]
    for name in names[1:]:
        result = _core.promote(result, name)
    return result


def can_cast(from_: DType, to: DType, casting: str = "safe") -> builtins.bool:
    """Return whether numbers of the one dtype may become numbers of the other, by NumPy's casting rules.

    "no" and "equiv": the dtypes are equal. "safe": each number can be represented. "same_kind": bool, unsigned, signed,
    floating and complex numbers each take those before them. "unsafe": always.

    Raises:
        ValueError: the rule is unknown.
    """
    source, target = _core.dtype(from_), _core.dtype(to)
    if casting not in ("no", "equiv", "safe", "same_kind", "unsafe"):
        raise ValueError(f"unknown casting {casting!r}; use no, equiv, safe, same_kind or unsafe")
    if casting == "unsafe" or source == target:
        return True
    if casting in ("no", "equiv"):
        return False
    if casting == "same_kind":
        return _KINDS.index(source.kind) <= _KINDS.index(target.kind)
    return promote_types(source, target) == target


def isscalar(x: object) -> builtins.bool:
    """Return whether the value is a Python number or string; an array without dimensions is not, as in NumPy."""
    return isinstance(x, int | float | complex | str | bytes)


def iterable(x: object) -> builtins.bool:
    """Return whether the value can be iterated over."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True
