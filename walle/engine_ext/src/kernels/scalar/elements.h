// Definition of each elementwise operator for one element. Integers wrap; integer division by zero gives 0, as in NumPy.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/small_float.h"

namespace walle::scalar {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat>;
// The type in which a type is computed.
template <class T>
using Wide = std::conditional_t<kIsHalf<T>, float, T>;

template <class T>
using Wrapping = std::make_unsigned_t<std::conditional_t<sizeof(T) < sizeof(unsigned), unsigned, T>>;

template <class T>
T neg(T x) noexcept {
  if constexpr (std::is_floating_point_v<T>)
    return -x;
  else
    return static_cast<T>(Wrapping<T>{0} - static_cast<Wrapping<T>>(x));
}

#define WALLE_ARITHMETIC(name, sign)                                                       \
  template <class T>                                                                       \
  T name(T a, T b) noexcept {                                                              \
    if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, bool>)                  \
      return static_cast<T>(a sign b);                                                     \
    else                                                                                   \
      return static_cast<T>(static_cast<Wrapping<T>>(a) sign static_cast<Wrapping<T>>(b)); \
  }
WALLE_ARITHMETIC(Add, +)
WALLE_ARITHMETIC(Sub, -)
WALLE_ARITHMETIC(Mul, *)
#undef WALLE_ARITHMETIC

// clang-format off
template <class T> T Neg(T x) noexcept { return neg(x); }
template <class T> T Abs(T x) noexcept { return std::is_floating_point_v<T> ? static_cast<T>(std::fabs(static_cast<double>(x))) : x < T{0} ? neg(x) : x; }
template <class T> T Sign(T x) noexcept { return x > T{0} ? T{1} : x < T{0} ? neg(T{1}) : x; }  // NaN stays NaN
template <class T> T Square(T x) noexcept { return Mul(x, x); }
template <class T> T Relu(T x) noexcept { return x < T{0} ? T{0} : x; }
template <class T> T Not(T x) noexcept { return !x; }
template <class T> T Exp(T x) noexcept { return std::exp(x); }
template <class T> T Expm1(T x) noexcept { return std::expm1(x); }
template <class T> T Log(T x) noexcept { return std::log(x); }
template <class T> T Log1p(T x) noexcept { return std::log1p(x); }
template <class T> T Sqrt(T x) noexcept { return std::sqrt(x); }
template <class T> T Rsqrt(T x) noexcept { return T{1} / std::sqrt(x); }
template <class T> T Reciprocal(T x) noexcept { return T{1} / x; }
template <class T> T Tanh(T x) noexcept { return std::tanh(x); }
template <class T> T Sigmoid(T x) noexcept { return T{1} / (T{1} + std::exp(-x)); }
template <class T> T Softplus(T x) noexcept { return std::fmax(x, T{0}) + std::log1p(std::exp(-std::fabs(x))); }
template <class T> T Erf(T x) noexcept { return std::erf(x); }
template <class T> T Floor(T x) noexcept { return std::floor(x); }
template <class T> T Ceil(T x) noexcept { return std::ceil(x); }
template <class T> T Round(T x) noexcept { return std::nearbyint(x); }  // half to even
template <class T> T Trunc(T x) noexcept { return std::trunc(x); }
template <class T> T Sin(T x) noexcept { return std::sin(x); }
template <class T> T Cos(T x) noexcept { return std::cos(x); }
template <class T> T Tan(T x) noexcept { return std::tan(x); }
template <class T> T Asin(T x) noexcept { return std::asin(x); }
template <class T> T Acos(T x) noexcept { return std::acos(x); }
template <class T> T Atan(T x) noexcept { return std::atan(x); }
template <class T> T Sinh(T x) noexcept { return std::sinh(x); }
template <class T> T Cosh(T x) noexcept { return std::cosh(x); }
template <class T> bool IsNaN(T x) noexcept { return std::isnan(x); }
template <class T> T Asinh(T x) noexcept { return std::asinh(x); }
template <class T> T Acosh(T x) noexcept { return std::acosh(x); }
template <class T> T Atanh(T x) noexcept { return std::atanh(x); }
template <class T> T Cbrt(T x) noexcept { return std::cbrt(x); }
template <class T> T Exp2(T x) noexcept { return std::exp2(x); }
template <class T> T Log10(T x) noexcept { return std::log10(x); }
template <class T> T Log2(T x) noexcept { return std::log2(x); }
template <class T> T NextAfter(T a, T b) noexcept { return std::nextafter(a, b); }
template <class T> bool IsFinite(T x) noexcept { return std::isfinite(x); }
template <class T> bool SignBit(T x) noexcept { return std::signbit(x); }
template <class T> T CopySign(T a, T b) noexcept { return std::copysign(a, b); }
template <class T> T Hypot(T a, T b) noexcept { return std::hypot(a, b); }
template <class T> T BitwiseNot(T x) noexcept { return static_cast<T>(~x); }
template <class T> bool IsInfinite(T x) noexcept { return std::isinf(x); }
template <class T> T Atan2(T a, T b) noexcept { return std::atan2(a, b); }
template <class T> T And(T a, T b) noexcept { return a && b; }
template <class T> T Or(T a, T b) noexcept { return a || b; }
template <class T> T Xor(T a, T b) noexcept { return a != b; }
template <class T> T BitwiseAnd(T a, T b) noexcept { return static_cast<T>(a & b); }
template <class T> T BitwiseOr(T a, T b) noexcept { return static_cast<T>(a | b); }
template <class T> T BitwiseXor(T a, T b) noexcept { return static_cast<T>(a ^ b); }
template <class T> bool Equal(T a, T b) noexcept { return a == b; }
template <class T> bool NotEqual(T a, T b) noexcept { return a != b; }
template <class T> bool Less(T a, T b) noexcept { return a < b; }
template <class T> bool LessOrEqual(T a, T b) noexcept { return a <= b; }
template <class T> bool Greater(T a, T b) noexcept { return a > b; }
template <class T> bool GreaterOrEqual(T a, T b) noexcept { return a >= b; }
// If either operand is NaN, so is the result.
template <class T> T Maximum(T a, T b) noexcept { return a > b || a != a ? a : b; }
template <class T> T Minimum(T a, T b) noexcept { return a < b || a != a ? a : b; }
// clang-format on

// log(e^a + e^b) without overflow; two equal infinities give that infinity.
template <class T>
T LogAddExp(T a, T b) noexcept {
  if (a == b) return a + static_cast<T>(0.693147180559945309417);
  const T gap = a - b;
  return gap > T{0} ? a + std::log1p(std::exp(-gap)) : gap <= T{0} ? b + std::log1p(std::exp(gap)) : gap;
}

// x = m * 2^k with 1/2 <= |m| < 1: return m and k; for 0, infinities and NaN, m is x and k is 0.
template <class T>
T Mantissa(T x) noexcept {
  int exponent;
  return std::isfinite(x) ? std::frexp(x, &exponent) : x;
}
template <class T>
T Exponent(T x) noexcept {
  int exponent = 0;
  if (std::isfinite(x)) std::frexp(x, &exponent);
  return static_cast<T>(exponent);
}
// a * 2^b, b rounded towards 0; if b is NaN, so is the result.
template <class T>
T ScaleByPower(T a, T b) noexcept {
  constexpr T kMost = 5000;  // a larger exponent takes any number to 0 or infinity
  return b != b ? b : std::ldexp(a, static_cast<int>(std::fmin(kMost, std::fmax(-kMost, b))));
}
// The gap to the next number away from zero, with the number's sign.
template <class T>
T Spacing(T x) noexcept {
  return std::nextafter(x, x < T{0} ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity()) - x;
}

// The greatest common divisor of the absolute values; gcd(0, n) = n.
template <class T>
T Gcd(T a, T b) noexcept {
  auto x = static_cast<Wrapping<T>>(Abs(a)), y = static_cast<Wrapping<T>>(Abs(b));
  while (y != 0) {
    const auto rest = static_cast<Wrapping<T>>(x % y);
    x = y;
    y = rest;
  }
  return static_cast<T>(x);
}

// Integers: rounded towards zero, as in ONNX.
template <class T>
T Div(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    return a / b;
  } else {
    if (b == T{0}) return T{0};
    if constexpr (std::is_signed_v<T>)
      if (b == T{-1}) return neg(a);  // the negative of the least integer overflows; it wraps
    return static_cast<T>(a / b);
  }
}

// The remainder with the dividend's sign (C).
template <class T>
T Fmod(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmod(a, b);
  } else {
    if (b == T{0}) return T{0};
    if constexpr (std::is_signed_v<T>)
      if (b == T{-1}) return T{0};
    return static_cast<T>(a % b);
  }
}

// The remainder with the divisor's sign (Python).
template <class T>
T FloorMod(T a, T b) noexcept {
  const T rest = Fmod(a, b);
  if constexpr (std::is_floating_point_v<T>) {
    if (rest == T{0}) return std::copysign(rest, b);
    return (rest < T{0}) != (b < T{0}) ? rest + b : rest;
  } else {
    return rest != T{0} && (rest < T{0}) != (b < T{0}) ? static_cast<T>(rest + b) : rest;
  }
}

template <class T>
T FloorDiv(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    if (b == T{0}) return a / b;
    const T rest = Fmod(a, b), whole = (a - rest) / b;  // exact apart from rounding
    const T quotient = rest != T{0} && (rest < T{0}) != (b < T{0}) ? whole - T{1} : whole, rounded = std::floor(quotient);
    return quotient == T{0} ? std::copysign(T{0}, a / b) : quotient - rounded > T(0.5) ? rounded + T{1} : rounded;
  } else {
    const T quotient = Div(a, b);
    return b != T{0} && Fmod(a, b) != T{0} && (a < T{0}) != (b < T{0}) ? static_cast<T>(quotient - T{1}) : quotient;
  }
}

// Integers: by squaring, wrapping; a negative exponent gives 0 except for bases 1 and -1.
template <class T>
T Power(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    return std::pow(a, b);
  } else {
    if (b < T{0}) return a == T{1} ? T{1} : a == neg(T{1}) ? (b & 1 ? a : T{1}) : T{0};
    T result{1};
    for (; b != T{0}; b = static_cast<T>(b >> 1), a = Mul(a, a))
      if (b & 1) result = Mul(result, a);
    return result;
  }
}

// Bits shifted out are lost; a shift by the width or more (or by a negative count) gives 0, or the sign for a right shift.
template <class T>
T ShiftLeft(T a, T b) noexcept {
  constexpr int kBits = 8 * sizeof(T);
  return b < T{0} || b >= T{kBits} ? T{0} : static_cast<T>(static_cast<Wrapping<T>>(a) << b);
}
template <class T>
T ShiftRight(T a, T b) noexcept {
  constexpr int kBits = 8 * sizeof(T);
  return b < T{0} || b >= T{kBits} ? (a < T{0} ? static_cast<T>(~T{0}) : T{0}) : static_cast<T>(a >> b);
}

// Conversion between numbers as in NumPy, except that a float outside an integer's range becomes its nearest bound, and NaN 0. To
// float16 and bfloat16 there is one rounding from every type.
template <class From>
float to_odd(From x) noexcept {
  if constexpr (std::is_same_v<From, double>) {
    return round_to_odd(x);
  } else if constexpr (std::is_integral_v<From> && sizeof(From) >= 4) {
    // A float64 cannot represent every 64-bit integer: the low twelve bits are replaced by one sticky bit, set if any of them
    // was.
    if constexpr (sizeof(From) == 8)
      if (x >= From{1} << 53 || (std::is_signed_v<From> && x <= static_cast<From>(-(std::int64_t{1} << 53))))
        return round_to_odd(static_cast<double>((x & ~From{0xFFF}) | ((x & From{0xFFF}) != 0 ? From{0x800} : From{0})));
    return round_to_odd(static_cast<double>(x));
  } else {
    return static_cast<float>(x);
  }
}

template <class From, class To>
To convert(From x) noexcept {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (kIsHalf<From>) {
    return convert<float, To>(static_cast<float>(x));
  } else if constexpr (kIsHalf<To>) {
    return To(to_odd(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (x != x) return To{0};
    if (x <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (x >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace walle::scalar
