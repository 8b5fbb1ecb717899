// What each elementwise operator means for one element. Integers wrap; integer division by zero gives 0, as NumPy does.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace walle::scalar {

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
template <class T> bool IsInf(T x) noexcept { return std::isinf(x); }
template <class T> T Atan2(T a, T b) noexcept { return std::atan2(a, b); }
template <class T> T And(T a, T b) noexcept { return a && b; }
template <class T> T Or(T a, T b) noexcept { return a || b; }
template <class T> T Xor(T a, T b) noexcept { return a != b; }
template <class T> bool Equal(T a, T b) noexcept { return a == b; }
template <class T> bool NotEqual(T a, T b) noexcept { return a != b; }
template <class T> bool Less(T a, T b) noexcept { return a < b; }
template <class T> bool LessOrEqual(T a, T b) noexcept { return a <= b; }
template <class T> bool Greater(T a, T b) noexcept { return a > b; }
template <class T> bool GreaterOrEqual(T a, T b) noexcept { return a >= b; }
// A NaN on either side is the result.
template <class T> T Max(T a, T b) noexcept { return a > b || a != a ? a : b; }
template <class T> T Min(T a, T b) noexcept { return a < b || a != a ? a : b; }
// clang-format on

// Integers: rounded towards zero, as in ONNX.
template <class T>
T Div(T a, T b) noexcept {
  if constexpr (std::is_floating_point_v<T>) {
    return a / b;
  } else {
    if (b == T{0}) return T{0};
    if constexpr (std::is_signed_v<T>)
      if (b == T{-1}) return neg(a);  // the least integer has no positive; it wraps
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
T Mod(T a, T b) noexcept {
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
    const T quotient = (a - Mod(a, b)) / b;  // exact but for rounding
    const T rounded = std::floor(quotient);
    return quotient - rounded > T(0.5) ? rounded + T{1} : rounded;
  } else {
    const T quotient = Div(a, b);
    return b != T{0} && Fmod(a, b) != T{0} && (a < T{0}) != (b < T{0}) ? static_cast<T>(quotient - T{1}) : quotient;
  }
}

// Integers: by squaring, wrapping; a negative exponent gives 0 but for bases 1 and -1.
template <class T>
T Pow(T a, T b) noexcept {
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

// Between numbers as NumPy does it, but that a float outside an integer's range becomes its nearest bound, and NaN 0.
template <class From, class To>
To convert(From x) noexcept {
  if constexpr (std::is_same_v<To, bool>) {
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
