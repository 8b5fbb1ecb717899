// Tests of the vectorised functions of every instruction set of this CPU, compared with the exact value: numbers of every
// exponent, the range limits of every formula, and NaN. A unit in the last place of a subnormal result is the smallest subnormal
// number.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "check.h"
#include "kernels/table.h"

using namespace walle;

namespace {

template <class T>
using Exact = std::conditional_t<std::is_same_v<T, float>, double, long double>;

template <class T>
Exact<T> ulp(Exact<T> exact) {
  const T near = std::fabs(static_cast<T>(exact)), least = std::numeric_limits<T>::min();
  if (near >= std::numeric_limits<T>::max()) return static_cast<Exact<T>>(near) - std::nextafter(near, T{0});
  const T from = near > least ? near : least;
  return static_cast<Exact<T>>(std::nextafter(from, std::numeric_limits<T>::infinity())) - from;
}

// Returns whether two results agree: NaN with NaN, zeros and infinities with their sign, other values within `bound` units in the
// last place, of `scale` if that is larger.
template <class T>
bool near(T got, Exact<T> exact, double bound, Exact<T> scale = 0) {
  const T rounded = static_cast<T>(exact);
  if (std::isnan(got) || std::isnan(rounded)) return std::isnan(got) && std::isnan(rounded);
  if (rounded == T{0} && exact == 0) return got == T{0} && std::signbit(got) == std::signbit(rounded);
  if (std::isinf(got) != std::isinf(rounded))  // rounded to different sides of the largest number
    return std::signbit(got) == std::signbit(rounded) &&
           std::fabs(std::isinf(got) ? rounded : got) == std::numeric_limits<T>::max();
  if (std::isinf(got)) return got == rounded;
  return std::fabs(static_cast<Exact<T>>(got) - exact) <= bound * ulp<T>(std::fmax(std::fabs(exact), scale));
}

template <class T, class Bits>
T as(Bits bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <class T>
std::vector<T> special() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> all{0,
                     1,
                     0.5,
                     2,
                     8,
                     10,
                     1000,
                     8192,
                     32768,
                     88.8,
                     709.8,
                     3e4,
                     T(1e5),
                     Limits::min(),
                     Limits::denorm_min(),
                     Limits::max(),
                     Limits::infinity(),
                     Limits::quiet_NaN()};
  for (const double ends : {0.70710678, 1.41421356, 0.3465736, 0.78539816, 1.57079633, 3.14159265})
    all.push_back(static_cast<T>(ends));
  for (std::size_t i = 0, count = all.size(); i < count; ++i) {
    all.push_back(-all[i]);
    all.push_back(std::nextafter(all[i], T{0}));
    all.push_back(std::nextafter(all[i], Limits::infinity()));
  }
  return all;
}

// Numbers of every exponent, with more in the usual range of the functions.
template <class T>
std::vector<T> numbers(std::mt19937_64& random, std::size_t count) {
  std::vector<T> all = special<T>();
  for (std::size_t i = 0; i < count; ++i)
    all.push_back(sizeof(T) == 4 ? as<T>(static_cast<std::uint32_t>(random())) : as<T>(static_cast<std::uint64_t>(random())));
  for (const double range : {1.0, 10.0, 100.0, 0.01}) {
    std::uniform_real_distribution<double> even(-range, range);
    for (std::size_t i = 0; i < count; ++i) all.push_back(static_cast<T>(even(random)));
    for (std::size_t i = 0; i < count / 4; ++i) all.push_back(static_cast<T>(1 + even(random) / 10));
  }
  return all;
}

template <class T>
void unary(const Table& table, std::size_t type, UnaryOp op, const char* name, Exact<T> (*exact)(Exact<T>),
           const std::vector<T>& given, double bound) {
  std::vector<T> out(given.size());
  table.unary[static_cast<std::size_t>(op)][type](given.data(), 1, out.data(), static_cast<std::int64_t>(given.size()));
  int shown = 0;
  for (std::size_t i = 0; i < given.size() && shown < 3; ++i) {
    if (near<T>(out[i], exact(given[i]), bound)) continue;
    ++shown;
    char text[160];
    std::snprintf(text, sizeof(text), "%s: %s of %.17g (%a) is %.17g", std::string(table.name).c_str(), name,
                  static_cast<double>(given[i]), static_cast<double>(given[i]), static_cast<double>(out[i]));
    check::report(false, __FILE__, __LINE__, text);
  }
}

template <class T>
void binary(const Table& table, std::size_t type, BinaryOp op, const char* name, Exact<T> (*exact)(Exact<T>, Exact<T>),
            const std::vector<T>& left, const std::vector<T>& right, double bound, bool of_operands = false) {
  std::vector<T> out(left.size());
  table.binary[static_cast<std::size_t>(op)][type](left.data(), 1, right.data(), 1, out.data(),
                                                   static_cast<std::int64_t>(left.size()));
  int shown = 0;
  for (std::size_t i = 0; i < left.size() && shown < 3; ++i) {
    const Exact<T> greater = std::fmax(std::fabs(left[i]), std::fabs(right[i]));
    const Exact<T> scale = of_operands && std::isfinite(greater) ? std::fmax(greater, Exact<T>{1}) : 0;
    if (near<T>(out[i], exact(left[i], right[i]), bound, scale)) continue;
    ++shown;
    char text[200];
    std::snprintf(text, sizeof(text), "%s: %s of %.17g, %.17g is %.17g", std::string(table.name).c_str(), name,
                  static_cast<double>(left[i]), static_cast<double>(right[i]), static_cast<double>(out[i]));
    check::report(false, __FILE__, __LINE__, text);
  }
}

template <class E>
E log_add_exp(E a, E b) {
  if (a == b) return a + std::log(E{2});
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return std::fmax(a, b) + std::log1p(std::exp(-std::fabs(a - b)));
}

// Pairs of all special numbers, and random pairs.
template <class T>
std::pair<std::vector<T>, std::vector<T>> pairs(std::mt19937_64& random, std::size_t count) {
  std::pair<std::vector<T>, std::vector<T>> all;
  for (const T a : special<T>())
    for (const T b : special<T>()) {
      all.first.push_back(a);
      all.second.push_back(b);
    }
  const std::vector<T> some = numbers<T>(random, count);
  for (const T a : some) {
    all.first.push_back(a);
    all.second.push_back(some[static_cast<std::size_t>(check::whole(random, 0, static_cast<std::int64_t>(some.size()) - 1))]);
  }
  return all;
}

void floats(const Table& table, std::mt19937_64& random) {
  const std::vector<float> given = numbers<float>(random, 20000);
#define WALLE_CHECK(op, f) unary<float>(table, 0, UnaryOp::op, #f, [](double x) { return std::f(x); }, given, 2.0);
  WALLE_CHECK(Log, log)
  WALLE_CHECK(Log2, log2)
  WALLE_CHECK(Log10, log10)
  WALLE_CHECK(Log1p, log1p)
  WALLE_CHECK(Exp, exp)
  WALLE_CHECK(Exp2, exp2)
  WALLE_CHECK(Expm1, expm1)
  WALLE_CHECK(Sinh, sinh)
  WALLE_CHECK(Cosh, cosh)
  WALLE_CHECK(Tanh, tanh)
  WALLE_CHECK(Sin, sin)
  WALLE_CHECK(Cos, cos)
  WALLE_CHECK(Tan, tan)
  WALLE_CHECK(Asin, asin)
  WALLE_CHECK(Acos, acos)
  WALLE_CHECK(Atan, atan)
  WALLE_CHECK(Asinh, asinh)
  WALLE_CHECK(Acosh, acosh)
  WALLE_CHECK(Atanh, atanh)
  WALLE_CHECK(Cbrt, cbrt)
#undef WALLE_CHECK
  const auto [left, right] = pairs<float>(random, 20000);
  binary<float>(table, 0, BinaryOp::Atan2, "atan2", [](double a, double b) { return std::atan2(a, b); }, left, right, 2.0);
  binary<float>(table, 0, BinaryOp::Power, "pow", [](double a, double b) { return std::pow(a, b); }, left, right, 2.0);
  binary<float>(table, 0, BinaryOp::Hypot, "hypot", [](double a, double b) { return std::hypot(a, b); }, left, right, 2.0);
  binary<float>(table, 0, BinaryOp::LogAddExp, "logaddexp", &log_add_exp<double>, left, right, 2.0, true);
  // Exact in float64, so the bits are equal.
  binary<float>(table, 0, BinaryOp::Fmod, "fmod", [](double a, double b) { return std::fmod(a, b); }, left, right, 0.0);
  binary<float>(
      table, 0, BinaryOp::NextAfter, "nextafter",
      [](double a, double b) { return double{std::nextafter(static_cast<float>(a), static_cast<float>(b))}; }, left, right, 0.0);
  binary<float>(
      table, 0, BinaryOp::ScaleByPower, "ldexp",
      [](double a, double b) {
        return std::isnan(b) ? b
                             : double{std::ldexp(static_cast<float>(a), static_cast<int>(std::fmin(9e8, std::fmax(-9e8, b))))};
      },
      left, right, 0.0);
}

void doubles(const Table& table, std::mt19937_64& random) {
  std::vector<double> given = numbers<double>(random, 4000);
  // A block with numbers outside a formula's range is computed by the scalar loop, which would hide the formula.
  std::sort(given.begin(), given.end(),
            [](double a, double b) { return std::isnan(a) != std::isnan(b) ? std::isnan(a) : std::fabs(a) < std::fabs(b); });
  std::vector<double> positive = given;
  for (double& x : positive) x = std::fabs(x);
#define WALLE_CHECK(op, f, given, bound) \
  unary<double>(table, 1, UnaryOp::op, #f, [](long double x) { return std::f(x); }, given, bound);
  WALLE_CHECK(Exp, exp, given, 2.0)
  WALLE_CHECK(Log, log, positive, 2.0)
  WALLE_CHECK(Log, log, given, 2.0)
  WALLE_CHECK(Tanh, tanh, given, 3.0)
  WALLE_CHECK(Sin, sin, given, 2.0)
  WALLE_CHECK(Cos, cos, given, 2.0)
#undef WALLE_CHECK
  const auto power = [](long double a, long double b) { return std::pow(a, b); };
  const auto [left, right] = pairs<double>(random, 500);
  binary<double>(table, 1, BinaryOp::Power, "pow", power, left, right, 2.0);
  const auto atan2 = [](long double y, long double x) { return std::atan2(y, x); };
  binary<double>(table, 1, BinaryOp::Atan2, "atan2", atan2, left, right, 2.0);
  std::uniform_real_distribution<double> exponent(-700, 700), even(-1, 1);
  std::vector<double> base, tame;
  for (int i = 0; i < 8192; ++i) {
    base.push_back(std::exp(exponent(random) * (i % 3 == 0 ? 1 : 0.002)));
    tame.push_back(i % 3 == 0 ? even(random) : i % 3 == 1 ? exponent(random) : std::round(10 * even(random)));
    if (i % 6 == 5) base.back() = -base.back();
  }
  binary<double>(table, 1, BinaryOp::Power, "pow", power, base, tame, 2.0);
  binary<double>(table, 1, BinaryOp::Atan2, "atan2", atan2, base, tame, 2.0);
}

}  // namespace

int main() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available || set.name == "scalar") continue;
    std::mt19937_64 random(7);
    floats(kernels(set.name), random);
    doubles(kernels(set.name), random);
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0;
}
