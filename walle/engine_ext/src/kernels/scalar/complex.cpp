// Complex kernels of the scalar instruction set: elementwise operators, tests, parts, reductions, products and conversions. A
// product is (ac - bd) + (ad + bc)i and a quotient is Smith's, as in NumPy: infinities and NaN are not recovered as in C's Annex
// G.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>

#include "kernels/scalar/elements.h"
#include "kernels/scalar/set.h"
#include "kernels/table.h"

namespace walle::scalar {

namespace {

template <class R>
using Z = std::complex<R>;

namespace z {

// clang-format off
template <class R> Z<R> Add(Z<R> a, Z<R> b) noexcept { return {a.real() + b.real(), a.imag() + b.imag()}; }
template <class R> Z<R> Sub(Z<R> a, Z<R> b) noexcept { return {a.real() - b.real(), a.imag() - b.imag()}; }
template <class R> Z<R> Mul(Z<R> a, Z<R> b) noexcept {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}
template <class R> bool Equal(Z<R> a, Z<R> b) noexcept { return a.real() == b.real() && a.imag() == b.imag(); }
template <class R> bool NotEqual(Z<R> a, Z<R> b) noexcept { return a.real() != b.real() || a.imag() != b.imag(); }
template <class R> bool IsNaN(Z<R> x) noexcept { return std::isnan(x.real()) || std::isnan(x.imag()); }
template <class R> bool IsInfinite(Z<R> x) noexcept { return std::isinf(x.real()) || std::isinf(x.imag()); }
template <class R> bool IsFinite(Z<R> x) noexcept { return std::isfinite(x.real()) && std::isfinite(x.imag()); }
template <class R> R Magnitude(Z<R> x) noexcept { return std::hypot(x.real(), x.imag()); }
template <class R> Z<R> Conjugate(Z<R> x) noexcept { return {x.real(), -x.imag()}; }
template <class R> Z<R> Neg(Z<R> x) noexcept { return {-x.real(), -x.imag()}; }
template <class R> Z<R> Square(Z<R> x) noexcept { return Mul(x, x); }
template <class R> Z<R> Exp(Z<R> x) noexcept { return std::exp(x); }
template <class R> Z<R> Log(Z<R> x) noexcept { return std::log(x); }
template <class R> Z<R> Log1p(Z<R> x) noexcept { return {std::log(std::hypot(x.real() + 1, x.imag())), std::atan2(x.imag(), x.real() + 1)}; }
template <class R> Z<R> Sqrt(Z<R> x) noexcept { return std::sqrt(x); }
template <class R> Z<R> Tanh(Z<R> x) noexcept { return std::tanh(x); }
template <class R> Z<R> Round(Z<R> x) noexcept { return {std::nearbyint(x.real()), std::nearbyint(x.imag())}; }
template <class R> Z<R> Sin(Z<R> x) noexcept { return std::sin(x); }
template <class R> Z<R> Cos(Z<R> x) noexcept { return std::cos(x); }
template <class R> Z<R> Tan(Z<R> x) noexcept { return std::tan(x); }
template <class R> Z<R> Asin(Z<R> x) noexcept { return std::asin(x); }
template <class R> Z<R> Acos(Z<R> x) noexcept { return std::acos(x); }
template <class R> Z<R> Atan(Z<R> x) noexcept { return std::atan(x); }
template <class R> Z<R> Sinh(Z<R> x) noexcept { return std::sinh(x); }
template <class R> Z<R> Cosh(Z<R> x) noexcept { return std::cosh(x); }
template <class R> Z<R> Asinh(Z<R> x) noexcept { return std::asinh(x); }
template <class R> Z<R> Acosh(Z<R> x) noexcept { return std::acosh(x); }
template <class R> Z<R> Atanh(Z<R> x) noexcept { return std::atanh(x); }
// clang-format on

template <class R>
Z<R> scaled_log(Z<R> x, double factor) noexcept {
  const Z<R> result = std::log(x);
  return {static_cast<R>(result.real() * factor), static_cast<R>(result.imag() * factor)};
}
template <class R>
Z<R> Log2(Z<R> x) noexcept {
  return scaled_log(x, 1.44269504088896340736);
}
template <class R>
Z<R> Log10(Z<R> x) noexcept {
  return scaled_log(x, 0.434294481903251827651);
}
template <class R>
Z<R> Exp2(Z<R> x) noexcept {
  constexpr double kLn2 = 0.693147180559945309417;
  return std::exp(Z<R>(static_cast<R>(x.real() * kLn2), static_cast<R>(x.imag() * kLn2)));
}
// exp(a + bi) - 1 = (expm1(a) cos(b) - 2 sin(b / 2)^2) + exp(a) sin(b) i, which keeps the digits of small numbers.
template <class R>
Z<R> Expm1(Z<R> x) noexcept {
  const R half = std::sin(x.imag() / 2);
  return {std::expm1(x.real()) * std::cos(x.imag()) - 2 * half * half, std::exp(x.real()) * std::sin(x.imag())};
}

// Smith's division (1962): the divisor's larger part is divided by, so that no square overflows.
template <class R>
Z<R> Div(Z<R> a, Z<R> b) noexcept {
  const R re = std::fabs(b.real()), im = std::fabs(b.imag());
  if (re >= im) {
    if (re == 0 && im == 0) return {a.real() / re, a.imag() / re};
    const R ratio = b.imag() / b.real(), scale = 1 / (b.real() + b.imag() * ratio);
    return {(a.real() + a.imag() * ratio) * scale, (a.imag() - a.real() * ratio) * scale};
  }
  const R ratio = b.real() / b.imag(), scale = 1 / (b.imag() + b.real() * ratio);
  return {(a.real() * ratio + a.imag()) * scale, (a.imag() * ratio - a.real()) * scale};
}
// Of 0: NaN, as in NumPy.
template <class R>
Z<R> Reciprocal(Z<R> x) noexcept {
  const bool zero = x.real() == 0 && x.imag() == 0;
  return zero ? Z<R>(std::numeric_limits<R>::quiet_NaN(), std::numeric_limits<R>::quiet_NaN()) : Div(Z<R>(1, 0), x);
}

// x / |x|, and 0 for 0.
template <class R>
Z<R> Sign(Z<R> x) noexcept {
  const R size = Magnitude(x);
  if (std::isnan(size)) return {size, size};
  if (std::isinf(size)) {
    const bool re = std::isinf(x.real()), im = std::isinf(x.imag());
    if (re && im) return {std::numeric_limits<R>::quiet_NaN(), std::numeric_limits<R>::quiet_NaN()};
    return {re ? std::copysign(R{1}, x.real()) : R{0}, im ? std::copysign(R{1}, x.imag()) : R{0}};
  }
  return size == 0 ? Z<R>(0, 0) : Z<R>(x.real() / size, x.imag() / size);
}

// Whole exponents below 100 by repeated multiplication, so that they stay exact; 0 to a positive real power is 0.
template <class R>
Z<R> Power(Z<R> a, Z<R> b) noexcept {
  if (b.real() == 0 && b.imag() == 0) return {1, 0};
  if (a.real() == 0 && a.imag() == 0) {
    if (b.real() > 0) return {0, 0};
    return {std::numeric_limits<R>::quiet_NaN(), std::numeric_limits<R>::quiet_NaN()};
  }
  if (b.imag() == 0 && b.real() > -100 && b.real() < 100 && b.real() == std::trunc(b.real())) {
    const int whole = static_cast<int>(b.real());
    Z<R> result(1, 0), factor = a;
    for (int left = std::abs(whole);;) {
      if (left & 1) result = Mul(result, factor);
      if ((left >>= 1) == 0) break;
      factor = Mul(factor, factor);
    }
    return whole < 0 ? Reciprocal(result) : result;
  }
  return std::pow(a, b);
}

}  // namespace z

template <class In, class Out, auto f>
void complex_unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const In*>(in);
  auto* to = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Out>(f(from[i * stride]));
}

template <class T, class Out, auto f>
void complex_binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
                    std::int64_t count) noexcept {
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* to = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = f(left[i * a_stride], right[i * b_stride]);
}

// In float64, rounded once.
template <class R, Z<double> (*join)(Z<double>, Z<double>) noexcept>
void complex_reduce(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  constexpr std::int64_t kBlock = 64;  // numbers joined one after the other: a sum's errors grow with their number
  const auto* from = static_cast<const Z<R>*>(in);
  Z<double> result;
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t end = std::min(i + kBlock, count);
    Z<double> part(from[i * stride]);
    const bool first = i == 0;
    for (++i; i < end; ++i) part = join(part, Z<double>(from[i * stride]));
    result = first ? part : join(result, part);
  }
  *static_cast<Z<R>*>(out) = {static_cast<R>(result.real()), static_cast<R>(result.imag())};
}

template <class R>
void complex_gemm(const GemmArgs& args) noexcept {
  const auto* a = static_cast<const Z<R>*>(args.a);
  const auto* b = static_cast<const Z<R>*>(args.b);
  auto* out = static_cast<Z<R>*>(args.out);
  for (std::int64_t m = 0; m < args.m; ++m) {
    Z<R>* row = out + m * args.out_row;
    std::fill_n(row, args.n, Z<R>());
    for (std::int64_t k = 0; k < args.k; ++k) {
      const Z<R> factor = a[m * args.a_row + k * args.a_col];
      for (std::int64_t n = 0; n < args.n; ++n) row[n] = z::Add(row[n], z::Mul(factor, b[k * args.b_row + n * args.b_col]));
    }
  }
}
std::size_t complex_scratch(std::int64_t, std::int64_t, std::int64_t) noexcept { return 0; }

template <class T>
inline constexpr bool kIsComplex = false;
template <class R>
inline constexpr bool kIsComplex<Z<R>> = true;

// A real number has the imaginary part 0; to a real type goes the real part alone, and to bool whether the number is not 0.
template <class From, class To>
To convert_complex(From x) noexcept {
  if constexpr (kIsComplex<From> && kIsComplex<To>)
    return {static_cast<typename To::value_type>(x.real()), static_cast<typename To::value_type>(x.imag())};
  else if constexpr (kIsComplex<To>)
    return {convert<From, typename To::value_type>(x), 0};
  else if constexpr (std::is_same_v<To, bool>)
    return x.real() != 0 || x.imag() != 0;
  else
    return convert<typename From::value_type, To>(x.real());
}

// Every type of kComputeTypes with its index.
#define WALLE_EACH_TYPE(set)                                                                                                   \
  set(float, 0) set(double, 1) set(std::int32_t, 2) set(std::int64_t, 3) set(std::uint8_t, 4) set(bool, 5) set(std::int8_t, 6) \
      set(std::int16_t, 7) set(std::uint16_t, 8) set(std::uint32_t, 9) set(std::uint64_t, 10) set(Half, 11) set(BFloat, 12)    \
          set(Z<float>, 13) set(Z<double>, 14)

template <class R>
void fill_type(Table& table, std::size_t type) noexcept {
  using T = Z<R>;
#define WALLE_SET(other, index)                                                   \
  table.cast[type][index] = &complex_unary<T, other, &convert_complex<T, other>>; \
  if (!kIsComplex<other>) table.cast[index][type] = &complex_unary<other, T, &convert_complex<other, T>>;
  WALLE_EACH_TYPE(WALLE_SET)
#undef WALLE_SET
  table.to_odd[type] = &complex_unary<T, float, [](T x) noexcept { return to_odd(x.real()); }>;
  table.gemm[type] = {&complex_gemm<R>, &complex_scratch};
  // The operators of kernels.inc that have complex numbers among their types.
#define WALLE_OTHER(op, ...)
#define WALLE_EACH(op, types, ...) WALLE_FILL_##types(op)
#define WALLE_FILL_F WALLE_OTHER
#define WALLE_FILL_D WALLE_OTHER
#define WALLE_FILL_I WALLE_OTHER
#define WALLE_FILL_N WALLE_OTHER
#define WALLE_FILL_A WALLE_OTHER
#define WALLE_FILL_B WALLE_OTHER
#define WALLE_FILL_C(op) WALLE_SET(op)
#define WALLE_FILL_FC WALLE_FILL_C
#define WALLE_FILL_NC WALLE_FILL_C
#define WALLE_FILL_AC WALLE_FILL_C
#define WALLE_SET(op) table.unary[static_cast<std::size_t>(UnaryOp::op)][type] = &complex_unary<T, T, &z::op<R>>;
#define WALLE_UNARY WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_UNARY
#undef WALLE_SET
#define WALLE_SET(op) table.test[static_cast<std::size_t>(TestOp::op)][type] = &complex_unary<T, bool, &z::op<R>>;
#define WALLE_TEST WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_TEST
#undef WALLE_SET
#define WALLE_SET(op) table.part[static_cast<std::size_t>(PartOp::op)][type] = &complex_unary<T, R, &z::op<R>>;
#define WALLE_PART WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_PART
#undef WALLE_SET
#define WALLE_SET(op) table.binary[static_cast<std::size_t>(BinaryOp::op)][type] = &complex_binary<T, T, &z::op<R>>;
#define WALLE_BINARY WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_BINARY
#undef WALLE_SET
#define WALLE_SET(op) table.compare[static_cast<std::size_t>(CompareOp::op)][type] = &complex_binary<T, bool, &z::op<R>>;
#define WALLE_COMPARE WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_COMPARE
#undef WALLE_SET
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceSum)][type] = &complex_reduce<R, &z::Add<double>>;
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceProd)][type] = &complex_reduce<R, &z::Mul<double>>;
}

}  // namespace

void fill_complex(Table& table) noexcept {
  fill_type<float>(table, static_cast<std::size_t>(Compute::c64));
  fill_type<double>(table, static_cast<std::size_t>(Compute::c128));
  struct Pair {
    std::uint64_t low, high;
  };
  table.select[4] = [](const void* where, std::int64_t where_stride, const void* a, std::int64_t a_stride, const void* b,
                       std::int64_t b_stride, void* out, std::int64_t count) noexcept {
    const auto* choice = static_cast<const bool*>(where);
    const auto *left = static_cast<const Pair*>(a), *right = static_cast<const Pair*>(b);
    auto* to = static_cast<Pair*>(out);
    for (std::int64_t i = 0; i < count; ++i) to[i] = choice[i * where_stride] ? left[i * a_stride] : right[i * b_stride];
  };
}

}  // namespace walle::scalar
