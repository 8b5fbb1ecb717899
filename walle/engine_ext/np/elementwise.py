"""Elementwise functions: arithmetic, powers, trigonometry, comparison, logic and bits, rounding."""
# ruff: noqa: A001 -- NumPy's names

from __future__ import annotations

import builtins

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray, ufunc
from walle.engine_ext.np.base import COMPLEX, FLOATS, INEXACT, asarray, operands, refuse_complex, to_floating

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from walle.engine_ext.np.likes import ArrayLike

__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "allclose",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "around",
    "array_equal",
    "array_equiv",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clip",
    "copysign",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "divide",
    "divmod",
    "equal",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "fix",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "gcd",
    "greater",
    "greater_equal",
    "heaviside",
    "hypot",
    "i0",
    "invert",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "lcm",
    "ldexp",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "modf",
    "multiply",
    "nan_to_num",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "power",
    "rad2deg",
    "radians",
    "reciprocal",
    "remainder",
    "right_shift",
    "rint",
    "round",
    "round_",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "spacing",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
]


def _as_ufunc(function: Callable[..., ndarray]) -> ufunc:
    return ufunc(function.__name__, function, function.__code__.co_argcount)


abs = absolute = ufunc("absolute", "Abs", 1)
negative = ufunc("negative", "Neg", 1)
sign = ufunc("sign", "Sign", 1)
square = ufunc("square", "Square", 1)
sqrt = ufunc("sqrt", "Sqrt", 1)
cbrt = ufunc("cbrt", "Cbrt", 1)
reciprocal = ufunc("reciprocal", "Reciprocal", 1)
exp = ufunc("exp", "Exp", 1)
exp2 = ufunc("exp2", "Exp2", 1)
expm1 = ufunc("expm1", "Expm1", 1)
log = ufunc("log", "Log", 1)
log2 = ufunc("log2", "Log2", 1)
log10 = ufunc("log10", "Log10", 1)
log1p = ufunc("log1p", "Log1p", 1)
sin = ufunc("sin", "Sin", 1)
cos = ufunc("cos", "Cos", 1)
tan = ufunc("tan", "Tan", 1)
arcsin = asin = ufunc("arcsin", "Asin", 1)
arccos = acos = ufunc("arccos", "Acos", 1)
arctan = atan = ufunc("arctan", "Atan", 1)
sinh = ufunc("sinh", "Sinh", 1)
cosh = ufunc("cosh", "Cosh", 1)
tanh = ufunc("tanh", "Tanh", 1)
arcsinh = asinh = ufunc("arcsinh", "Asinh", 1)
arccosh = acosh = ufunc("arccosh", "Acosh", 1)
arctanh = atanh = ufunc("arctanh", "Atanh", 1)
isnan = ufunc("isnan", "IsNaN", 1)
isinf = ufunc("isinf", "IsInfinite", 1)
isfinite = ufunc("isfinite", "IsFinite", 1)
signbit = ufunc("signbit", "SignBit", 1)
invert = bitwise_not = bitwise_invert = ufunc("invert", "BitwiseNot", 1)

add = ufunc("add", "Add", 2)
subtract = ufunc("subtract", "Sub", 2)
multiply = ufunc("multiply", "Mul", 2)
divide = true_divide = ufunc("divide", "Div", 2)
floor_divide = ufunc("floor_divide", "FloorDiv", 2)
mod = remainder = ufunc("remainder", "FloorMod", 2)
fmod = ufunc("fmod", "Fmod", 2)
power = pow = ufunc("power", "Power", 2)
maximum = ufunc("maximum", "Maximum", 2)
minimum = ufunc("minimum", "Minimum", 2)
arctan2 = atan2 = ufunc("arctan2", "Atan2", 2)
hypot = ufunc("hypot", "Hypot", 2)
copysign = ufunc("copysign", "CopySign", 2)
nextafter = ufunc("nextafter", "NextAfter", 2)
logaddexp = ufunc("logaddexp", "LogAddExp", 2)
gcd = ufunc("gcd", "Gcd", 2)
bitwise_and = ufunc("bitwise_and", "BitwiseAnd", 2)
bitwise_or = ufunc("bitwise_or", "BitwiseOr", 2)
bitwise_xor = ufunc("bitwise_xor", "BitwiseXor", 2)
left_shift = bitwise_left_shift = ufunc("left_shift", "ShiftLeft", 2)
right_shift = bitwise_right_shift = ufunc("right_shift", "ShiftRight", 2)
equal = ufunc("equal", "Equal", 2)
not_equal = ufunc("not_equal", "NotEqual", 2)
less = ufunc("less", "Less", 2)
less_equal = ufunc("less_equal", "LessOrEqual", 2)
greater = ufunc("greater", "Greater", 2)
greater_equal = ufunc("greater_equal", "GreaterOrEqual", 2)


@_as_ufunc
def positive(x: ArrayLike) -> ndarray:
    return asarray(x).copy()


@_as_ufunc
def fabs(x: ArrayLike) -> ndarray:
    return abs(refuse_complex(to_floating(x), "fabs"))


@_as_ufunc
def float_power(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return a ** b in float64, or in complex128 if one is complex."""
    left, right = asarray(a), asarray(b)
    wide = "complex128" if left.dtype in COMPLEX or right.dtype in COMPLEX else "float64"
    return power(left.astype(wide), right.astype(wide))


@_as_ufunc
def lcm(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the least common multiple; 0 if either number is 0."""
    divisor = gcd(a, b)
    return abs(asarray(a, divisor.dtype) // divisor * asarray(b, divisor.dtype))  # 0 // 0 is 0


@_as_ufunc
def deg2rad(x: ArrayLike) -> ndarray:
    return refuse_complex(to_floating(x), "deg2rad") * (3.141592653589793 / 180)


@_as_ufunc
def rad2deg(x: ArrayLike) -> ndarray:
    return refuse_complex(to_floating(x), "rad2deg") * (180 / 3.141592653589793)


radians, degrees = deg2rad, rad2deg


@_as_ufunc
def logaddexp2(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return log2(2**a + 2**b)."""
    ln2 = 0.6931471805599453
    left, right = operands(a, b)
    return logaddexp(to_floating(left) * ln2, to_floating(right) * ln2) / ln2


def sinc(x: ArrayLike) -> ndarray:
    """Return sin(pi x) / (pi x), and 1 at 0."""
    angle_ = to_floating(x) * 3.141592653589793
    zero = angle_ == 0
    return _core.where(zero, 1, sin(angle_) / _core.where(zero, 1, angle_))


@_as_ufunc
def heaviside(x: ArrayLike, at_zero: ArrayLike) -> ndarray:
    """Return 0 for negative, 1 for positive numbers, `at_zero` for 0 and NaN for NaN."""
    given = to_floating(x)
    return _core.where(given == 0, at_zero, _core.where(isnan(given), given, (given > 0).astype(given.dtype)))


def i0(x: ArrayLike) -> ndarray:
    """Return the modified Bessel function of the first kind and order 0, by its power series; |x| up to 700."""
    given = refuse_complex(asarray(x), "i0")
    quarter = square(given.astype("float64") * 0.5)
    term = total = _core.full(given.shape, 1, "float64")
    for k in range(1, 500):
        term = term * quarter / float(k * k)
        total = total + term
        if not (term > total * 1e-17).any():
            break
    return total.astype(to_floating(given).dtype)


def divmod(a: ArrayLike, b: ArrayLike) -> tuple[ndarray, ndarray]:
    return floor_divide(a, b), mod(a, b)


def modf(x: ArrayLike) -> tuple[ndarray, ndarray]:
    """Return the fractional and the integral parts, each with the number's sign."""
    given = to_floating(x)
    whole = trunc(given)
    return copysign(_core.where(isinf(given), 0, given - whole), given), whole


def frexp(x: ArrayLike) -> tuple[ndarray, ndarray]:
    """Return m and k with x = m * 2**k and 0.5 <= |m| < 1."""
    given = to_floating(x)
    return _core.unary("Mantissa", given), _core.unary("Exponent", given).astype("int32")


@_as_ufunc
def ldexp(x: ArrayLike, k: ArrayLike) -> ndarray:
    """Return x * 2**k."""
    given = to_floating(x)
    return _core.binary("ScaleByPower", given, asarray(k, "int64").astype(given.dtype))


@_as_ufunc
def spacing(x: ArrayLike) -> ndarray:
    """Return the distance to the next representable number away from zero, with the number's sign."""
    return _core.unary("Spacing", to_floating(x))


@_as_ufunc
def floor(x: ArrayLike) -> ndarray:
    return _whole("Floor", x)


@_as_ufunc
def ceil(x: ArrayLike) -> ndarray:
    return _whole("Ceil", x)


@_as_ufunc
def trunc(x: ArrayLike) -> ndarray:
    return _whole("Trunc", x)


fix = trunc


@_as_ufunc
def rint(x: ArrayLike) -> ndarray:
    return _core.unary("Round", x)


def _whole(op: str, x: ArrayLike) -> ndarray:
    given = asarray(x)
    return _core.unary(op, given) if given.dtype in INEXACT else given.copy()


def round(x: ArrayLike, decimals: int = 0) -> ndarray:
    """Return the numbers rounded to `decimals` decimal places, halves to even."""
    given = asarray(x)
    if given.dtype not in INEXACT:
        if decimals >= 0 or given.dtype == "bool":
            return given.copy()
        step: int = 10**-decimals
        return (_core.unary("Round", given.astype("float64") / step) * step).astype(given.dtype)
    if decimals == 0:
        return _core.unary("Round", given)
    scale = 10.0 ** builtins.abs(decimals)
    return _core.unary("Round", given * scale) / scale if decimals > 0 else _core.unary("Round", given / scale) * scale


around = round_ = round


def isposinf(x: ArrayLike) -> ndarray:
    return refuse_complex(asarray(x), "isposinf") == float("inf")


def isneginf(x: ArrayLike) -> ndarray:
    return refuse_complex(asarray(x), "isneginf") == float("-inf")


@_as_ufunc
def logical_not(x: ArrayLike) -> ndarray:
    return _core.unary("Not", asarray(x, "bool"))


@_as_ufunc
def logical_and(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("And", asarray(a, "bool"), asarray(b, "bool"))


@_as_ufunc
def logical_or(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Or", asarray(a, "bool"), asarray(b, "bool"))


@_as_ufunc
def logical_xor(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Xor", asarray(a, "bool"), asarray(b, "bool"))


@_as_ufunc
def fmax(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the greater number; if one is NaN, the other."""
    result = maximum(a, b)
    if result.dtype not in FLOATS or not isnan(result).any():
        return result
    left, right = asarray(a, result.dtype), asarray(b, result.dtype)
    return _core.where(isnan(left), right, _core.where(isnan(right), left, result))


@_as_ufunc
def fmin(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the smaller number; if one is NaN, the other."""
    result = minimum(a, b)
    if result.dtype not in FLOATS or not isnan(result).any():
        return result
    left, right = asarray(a, result.dtype), asarray(b, result.dtype)
    return _core.where(isnan(left), right, _core.where(isnan(right), left, result))


def clip(x: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None) -> ndarray:
    """Return max(low, min(x, high)); either bound may be None."""
    return asarray(x).copy() if low is None and high is None else _core.clip(x, low, high)


def nan_to_num(x: ArrayLike, copy: bool = True, nan: float = 0.0, posinf: float | None = None,
               neginf: float | None = None) -> ndarray:  # fmt: skip
    """Return x with NaN and infinities replaced, by default by 0 and the dtype's greatest and least numbers."""
    given = asarray(x)
    if given.dtype in COMPLEX:
        result = given.copy() if copy else given
        for part in (result.real, result.imag):
            nan_to_num(part, False, nan, posinf, neginf)
        return result
    if given.dtype not in FLOATS:
        return given.copy() if copy else given
    most = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}.get(
        given.dtype, 1.7976931348623157e308
    )
    top, bottom = most if posinf is None else posinf, -most if neginf is None else neginf
    bounded = _core.where(given == float("inf"), top, _core.where(given == float("-inf"), bottom, given))
    result = _core.where(isnan(given), nan, bounded)
    if copy:
        return result
    given[...] = result
    return given


def isclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> ndarray:
    left, right = operands(a, b)
    near = (abs(subtract(left, right)) <= atol + rtol * abs(right)) & isfinite(right) | equal(left, right)
    return near | (isnan(left) & isnan(right)) if equal_nan else near


def allclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return bool(isclose(a, b, rtol, atol, equal_nan).all())


def array_equal(a: ArrayLike, b: ArrayLike, equal_nan: bool = False) -> bool:
    left, right = operands(a, b)
    if left.shape != right.shape:
        return False
    same = left == right
    if equal_nan:
        same = same | ((left != left) & (right != right))  # noqa: PLR0124 -- NaN
    return bool(same.all())


def array_equiv(a: ArrayLike, b: ArrayLike) -> bool:
    """Return whether the arrays are equal once they are broadcast against each other."""
    try:
        left, right = operands(a, b)
        return bool((left == right).all())
    except ValueError:
        return False
