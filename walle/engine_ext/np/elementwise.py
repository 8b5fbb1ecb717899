"""Elementwise functions: arithmetic, powers, trigonometry, comparison, logic and bits, rounding."""
# ruff: noqa: A001 -- NumPy's names

from __future__ import annotations

import builtins

from walle.engine_ext import _core
from walle.engine_ext._core import binary_function, ndarray, unary_function
from walle.engine_ext.np.base import COMPLEX, FLOATS, INEXACT, asarray, operands, refuse_complex, to_floating

TYPE_CHECKING = False
if TYPE_CHECKING:
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

abs = absolute = unary_function("absolute", "Abs")
negative = unary_function("negative", "Neg")
sign = unary_function("sign", "Sign")
square = unary_function("square", "Square")
sqrt = unary_function("sqrt", "Sqrt")
cbrt = unary_function("cbrt", "Cbrt")
reciprocal = unary_function("reciprocal", "Reciprocal")
exp = unary_function("exp", "Exp")
exp2 = unary_function("exp2", "Exp2")
expm1 = unary_function("expm1", "Expm1")
log = unary_function("log", "Log")
log2 = unary_function("log2", "Log2")
log10 = unary_function("log10", "Log10")
log1p = unary_function("log1p", "Log1p")
sin = unary_function("sin", "Sin")
cos = unary_function("cos", "Cos")
tan = unary_function("tan", "Tan")
arcsin = asin = unary_function("arcsin", "Asin")
arccos = acos = unary_function("arccos", "Acos")
arctan = atan = unary_function("arctan", "Atan")
sinh = unary_function("sinh", "Sinh")
cosh = unary_function("cosh", "Cosh")
tanh = unary_function("tanh", "Tanh")
arcsinh = asinh = unary_function("arcsinh", "Asinh")
arccosh = acosh = unary_function("arccosh", "Acosh")
arctanh = atanh = unary_function("arctanh", "Atanh")
isnan = unary_function("isnan", "IsNaN")
isinf = unary_function("isinf", "IsInfinite")
isfinite = unary_function("isfinite", "IsFinite")
signbit = unary_function("signbit", "SignBit")
invert = bitwise_not = bitwise_invert = unary_function("invert", "BitwiseNot")

add = binary_function("add", "Add")
subtract = binary_function("subtract", "Sub")
multiply = binary_function("multiply", "Mul")
divide = true_divide = binary_function("divide", "Div")
floor_divide = binary_function("floor_divide", "FloorDiv")
mod = remainder = binary_function("remainder", "FloorMod")
fmod = binary_function("fmod", "Fmod")
power = pow = binary_function("power", "Power")
maximum = binary_function("maximum", "Maximum")
minimum = binary_function("minimum", "Minimum")
arctan2 = atan2 = binary_function("arctan2", "Atan2")
hypot = binary_function("hypot", "Hypot")
copysign = binary_function("copysign", "CopySign")
nextafter = binary_function("nextafter", "NextAfter")
logaddexp = binary_function("logaddexp", "LogAddExp")
gcd = binary_function("gcd", "Gcd")
bitwise_and = binary_function("bitwise_and", "BitwiseAnd")
bitwise_or = binary_function("bitwise_or", "BitwiseOr")
bitwise_xor = binary_function("bitwise_xor", "BitwiseXor")
left_shift = bitwise_left_shift = binary_function("left_shift", "ShiftLeft")
right_shift = bitwise_right_shift = binary_function("right_shift", "ShiftRight")
equal = binary_function("equal", "Equal")
not_equal = binary_function("not_equal", "NotEqual")
less = binary_function("less", "Less")
less_equal = binary_function("less_equal", "LessOrEqual")
greater = binary_function("greater", "Greater")
greater_equal = binary_function("greater_equal", "GreaterOrEqual")


def positive(x: ArrayLike) -> ndarray:
    return asarray(x).copy()


def fabs(x: ArrayLike) -> ndarray:
    return abs(refuse_complex(to_floating(x), "fabs"))


def float_power(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return a ** b in float64, or in complex128 if one is complex."""
    left, right = asarray(a), asarray(b)
    wide = "complex128" if left.dtype in COMPLEX or right.dtype in COMPLEX else "float64"
    return power(left.astype(wide), right.astype(wide))


def lcm(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the least common multiple; 0 if either number is 0."""
    divisor = gcd(a, b)
    return abs(asarray(a, divisor.dtype) // divisor * asarray(b, divisor.dtype))  # 0 // 0 is 0


def deg2rad(x: ArrayLike) -> ndarray:
    return refuse_complex(to_floating(x), "deg2rad") * (3.141592653589793 / 180)


def rad2deg(x: ArrayLike) -> ndarray:
    return refuse_complex(to_floating(x), "rad2deg") * (180 / 3.141592653589793)


radians, degrees = deg2rad, rad2deg


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


def ldexp(x: ArrayLike, k: ArrayLike) -> ndarray:
    """Return x * 2**k."""
    given = to_floating(x)
    return _core.binary("ScaleByPower", given, asarray(k, "int64").astype(given.dtype))


def spacing(x: ArrayLike) -> ndarray:
    """Return the distance to the next representable number away from zero, with the number's sign."""
    return _core.unary("Spacing", to_floating(x))


def floor(x: ArrayLike) -> ndarray:
    return _whole("Floor", x)


def ceil(x: ArrayLike) -> ndarray:
    return _whole("Ceil", x)


def trunc(x: ArrayLike) -> ndarray:
    return _whole("Trunc", x)


fix = trunc


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


def logical_not(x: ArrayLike) -> ndarray:
    return _core.unary("Not", asarray(x, "bool"))


def logical_and(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("And", asarray(a, "bool"), asarray(b, "bool"))


def logical_or(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Or", asarray(a, "bool"), asarray(b, "bool"))


def logical_xor(a: ArrayLike, b: ArrayLike) -> ndarray:
    return _core.binary("Xor", asarray(a, "bool"), asarray(b, "bool"))


def fmax(a: ArrayLike, b: ArrayLike) -> ndarray:
    """Return the greater number; if one is NaN, the other."""
    result = maximum(a, b)
    if result.dtype not in FLOATS or not isnan(result).any():
        return result
    left, right = asarray(a, result.dtype), asarray(b, result.dtype)
    return _core.where(isnan(left), right, _core.where(isnan(right), left, result))


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
