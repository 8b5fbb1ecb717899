// Functions of float64 in plain code that the compiler vectorises, without tables: exponential, logarithm, power, tanh, sine,
// cosine and arc tangent, each within 2 ulp of the exact value (tanh 3). Intermediate values that need more precision than a
// float64 are the sum of two. The polynomials are Taylor polynomials, truncated where the remainder is below 2^-57 of the result.
// `fits` returns whether a formula covers an argument.

// A double-double number, high + low; and the sum of a and b as one, where |a| >= |b| or a is 0.
struct Pair {
  double high, low;
};
inline Pair sum_of_two(double a, double b) noexcept {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

// ln 2 in two parts: the first times an integer below 2^13 is exact.
inline constexpr double kLn2 = 0x1.62e42fefa2000p-1, kLn2Rest = 0x1.9ef35793c7673p-41;

// Write x.high + x.low as n ln 2 + r, |r| <= ln 2 / 2 apart from rounding, |n| < 2^13; return n, and e^r - 1 as a pair.
struct Power2 {
  double n;
  Pair rest;
};
inline Power2 exp_parts(Pair x) noexcept {
  const double n = __builtin_fma(x.high, 1.4426950408889634, kWhole) - kWhole;
  const double first = __builtin_fma(-n, kLn2, x.high), near = __builtin_fma(-n, kLn2Rest, first);
  const Pair left = sum_of_two(near, __builtin_fma(-n, kLn2Rest, first - near) + x.low);
  const double r = left.high;
  const double square = r * r;
  double even = 1.0 / 479001600, odd = 1.0 / 6227020800;  // two independent chains for even and odd powers have less latency
  even = __builtin_fma(even, square, 1.0 / 3628800);
  odd = __builtin_fma(odd, square, 1.0 / 39916800);
  even = __builtin_fma(even, square, 1.0 / 40320);
  odd = __builtin_fma(odd, square, 1.0 / 362880);
  even = __builtin_fma(even, square, 1.0 / 720);
  odd = __builtin_fma(odd, square, 1.0 / 5040);
  even = __builtin_fma(even, square, 1.0 / 24);
  odd = __builtin_fma(odd, square, 1.0 / 120);
  even = __builtin_fma(even, square, 0.5);
  odd = __builtin_fma(odd, square, 1.0 / 6);
  return {n, {r, __builtin_fma(__builtin_fma(odd, r, even), square, left.low)}};
}
// Return 2^n for integers n from -1022 to 1023.
inline double power_of_2(double n) noexcept { return bits_as_double((double_as_bits(n + kWhole) << 52) + 0x3ff0000000000000u); }

struct DoubleExp {
  using Number = double;
  static bool fits(double x) noexcept { return __builtin_fabs(x) < 700.0; }
  static double of(double x) noexcept {
    const Power2 parts = exp_parts({x, 0.0});
    return (1.0 + (parts.rest.high + parts.rest.low)) * power_of_2(parts.n);
  }
};

// Return ln x of a positive normal x, relative error about 2^-65: with x = 2^k m and t = (m - 1) / (m + 1), k ln 2 + 2 t + 2/3
// t^3 + ...
inline Pair log_pair(double x) noexcept {
  constexpr std::uint64_t kHalfRoot = 0x3fe6a09e667f3bcdu;  // sqrt(1/2)
  const std::uint64_t offset = double_as_bits(x) - kHalfRoot;
  const double m = bits_as_double((offset & 0x000fffffffffffffu) + kHalfRoot);
  const double k = bits_as_double(0x4330000000000000u | ((offset + (std::uint64_t{1024} << 52)) >> 52)) - (0x1p52 + 1024);
  const double over = m - 1, under = m + 1, inverse = 1 / under, under_rest = m < 1 ? m - (under - 1) : 1 - (under - m);
  const double t = over * inverse, t_rest = __builtin_fma(-t, under_rest, __builtin_fma(-t, under, over)) * inverse;
  const double square = t * t, square_rest = __builtin_fma(t, t, -square) + 2 * t * t_rest;
  const double fourth = square * square;
  double even = 2.0 / 21, odd = 2.0 / 23;  // two independent chains for even and odd powers have less latency
  even = __builtin_fma(even, fourth, 2.0 / 17);
  odd = __builtin_fma(odd, fourth, 2.0 / 19);
  even = __builtin_fma(even, fourth, 2.0 / 13);
  odd = __builtin_fma(odd, fourth, 2.0 / 15);
  even = __builtin_fma(even, fourth, 2.0 / 9);
  odd = __builtin_fma(odd, fourth, 2.0 / 11);
  even = __builtin_fma(even, fourth, 2.0 / 5);
  odd = __builtin_fma(odd, fourth, 2.0 / 7);
  const double p = __builtin_fma(odd, square, even);
  const Pair factor = sum_of_two(2.0 / 3, p * square);
  const double factor_rest = factor.low + 0x1.5555555555555p-55;  // the part of 2 / 3 below a float64's precision
  const double cube = t * square, cube_rest = __builtin_fma(t, square, -cube) + __builtin_fma(t, square_rest, t_rest * square);
  const double more = cube * factor.high;
  const double more_rest = __builtin_fma(cube, factor.high, -more) + __builtin_fma(cube, factor_rest, cube_rest * factor.high);
  const Pair first = sum_of_two(k * kLn2, 2 * t), second = sum_of_two(first.high, more);
  return sum_of_two(second.high, second.low + (more_rest + (__builtin_fma(k, kLn2Rest, 2 * t_rest) + first.low)));
}
inline bool is_positive_normal(double x) noexcept { return (x >= 0x1p-1022) & (x < __builtin_inf()); }

struct DoubleLog {
  using Number = double;
  static bool fits(double x) noexcept { return is_positive_normal(x); }
  static double of(double x) noexcept {
    const Pair log = log_pair(x);
    return log.high + log.low;
  }
};

// A negative x with an integer y is computed from |x|. Results beyond the range are made in two steps, the last of which rounds.
struct DoublePower {
  using Number = double;
  static bool fits(double x, double y) noexcept {
    return is_positive_normal(__builtin_fabs(x)) & (__builtin_fabs(y) < 0x1p51) & ((x > 0) | (y == __builtin_trunc(y)));
  }
  static double of(double x, double y) noexcept {
    const Pair log = log_pair(__builtin_fabs(x));
    const double product = y * log.high, low = __builtin_fma(y, log.high, -product) + y * log.low;
    const double not_below = product < -800.0 ? -800.0 : product, bounded = not_below > 800.0 ? 800.0 : not_below;
    const Power2 parts = exp_parts({bounded, bounded == product ? low : 0.0});
    const double half = __builtin_fma(parts.n, 0.5, kWhole) - kWhole;
    const double size = (1.0 + (parts.rest.high + parts.rest.low)) * power_of_2(half) * power_of_2(parts.n - half);
    const std::uint64_t odd = double_as_bits(y + kWhole), negative = double_as_bits(x) >> 63;  // for negative x, y is an integer
    return with_sign(size, odd & negative);
  }
};

// E / (E + 2) with E = e^2|x| - 1.
struct DoubleTanh {
  using Number = double;
  static bool fits(double x) noexcept { return x == x; }
  static double of(double x) noexcept {
    const double size = __builtin_fabs(x), twice = size < 20.0 ? 2 * size : 40.0;
    const Power2 parts = exp_parts({twice, 0.0});
    // 2^n ((1 - 2^-n) + (e^r - 1)).
    const Pair sum = sum_of_two(1 - power_of_2(-parts.n), parts.rest.high);
    const double e = (sum.high + (sum.low + parts.rest.low)) * power_of_2(parts.n);
    return __builtin_copysign(e / (e + 2), x);
  }
};

// Reduce |x| by n times pi / 2, n an integer, to a pair; pi / 2 is in three parts, of which n times the first two is exact.
struct TurnedPair {
  Pair r;
  std::uint64_t quarter;  // quarter turns, in the low bits
};
inline TurnedPair turned_pair(double x) noexcept {
  const double shifted = __builtin_fma(x, 0.6366197723675814, kWhole), n = shifted - kWhole;
  const double first = __builtin_fma(-n, 0x1.921fb54400000p+0, x), second = __builtin_fma(-n, 0x1.0b4611a600000p-34, first);
  const double lost = __builtin_fma(-n, 0x1.0b4611a600000p-34, first - second);
  const double r = __builtin_fma(-n, 0x1.3198a2e037073p-69, second);
  return {{r, __builtin_fma(-n, 0x1.3198a2e037073p-69, second - r) + lost}, double_as_bits(shifted)};
}
inline double sine_of(Pair r) noexcept {
  const double square = r.high * r.high;
  double p = 1.0 / 355687428096000;
  p = __builtin_fma(p, square, -1.0 / 1307674368000);
  p = __builtin_fma(p, square, 1.0 / 6227020800);
  p = __builtin_fma(p, square, -1.0 / 39916800);
  p = __builtin_fma(p, square, 1.0 / 362880);
  p = __builtin_fma(p, square, -1.0 / 5040);
  p = __builtin_fma(p, square, 1.0 / 120);
  p = __builtin_fma(p, square, -1.0 / 6);
  return r.high + __builtin_fma(p * square, r.high, __builtin_fma(-0.5 * square, r.low, r.low));
}
inline double cosine_of(Pair r) noexcept {
  const double square = r.high * r.high, half = 0.5 * square, near = 1 - half;
  double p = 1.0 / 20922789888000;
  p = __builtin_fma(p, square, -1.0 / 87178291200);
  p = __builtin_fma(p, square, 1.0 / 479001600);
  p = __builtin_fma(p, square, -1.0 / 3628800);
  p = __builtin_fma(p, square, 1.0 / 40320);
  p = __builtin_fma(p, square, -1.0 / 720);
  p = __builtin_fma(p, square, 1.0 / 24);
  return near + (((1 - near) - half) + __builtin_fma(p, square * square, -r.high * r.low));
}
struct DoubleAngle {
  using Number = double;
  static bool fits(double x) noexcept { return __builtin_fabs(x) < 1e5; }
};
struct DoubleSin : DoubleAngle {
  static double of(double x) noexcept {
    const TurnedPair t = turned_pair(x);
    const double sine = sine_of(t.r), cosine = cosine_of(t.r), value = t.quarter & 1 ? cosine : sine;
    return x == 0 ? x : with_sign(value, (t.quarter >> 1) & 1);
  }
};
struct DoubleCos : DoubleAngle {
  static double of(double x) noexcept {
    const TurnedPair t = turned_pair(x);
    const double sine = sine_of(t.r), cosine = cosine_of(t.r), value = t.quarter & 1 ? sine : cosine;
    return with_sign(value, ((t.quarter + 1) >> 1) & 1);
  }
};

// The angle of the point (x, y): the smaller part over the larger, reduced to |t| < 7/16 around 0, atan(1/2) and pi / 4 by
// differences that are exact, and turned to its quadrant. The polynomial is fdlibm's (Sun Microsystems, 1993).
struct DoubleAtan2 {
  using Number = double;
  static bool fits(double y, double x) noexcept { return (__builtin_fabs(x) < 0x1p1000) & (__builtin_fabs(y) < 0x1p1000); }
  static double of(double y, double x) noexcept {
    const double up = __builtin_fabs(y), across = __builtin_fabs(x);
    const bool steep = across < up, behind = __builtin_copysign(1.0, x) < 0;
    const double least = steep ? across : up, most = steep ? up : across;
    const bool low = 16 * least <= 7 * most, middle = 16 * least < 11 * most;
    const double over = low ? least : middle ? 2 * least - most : least - most;
    const double under = low ? most : middle ? 2 * most + least : most + least;
    const double t = over / (under > 0 ? under : 1.0);
    const double from = low ? 0.0 : middle ? 0x1.dac670561bb4fp-2 : 0x1.921fb54442d18p-1;
    const double from_rest = low ? 0.0 : middle ? 0x1.a2b7f222f65e2p-56 : 0x1.1a62633145c07p-55;
    const double square = t * t, fourth = square * square;
    double odd = 1.62858201153657823623e-02, even = -3.65315727442169155270e-02;
    odd = __builtin_fma(odd, fourth, 4.97687799461593236017e-02);
    even = __builtin_fma(even, fourth, -5.83357013379057348645e-02);
    odd = __builtin_fma(odd, fourth, 6.66107313738753120669e-02);
    even = __builtin_fma(even, fourth, -7.69187620504482999495e-02);
    odd = __builtin_fma(odd, fourth, 9.09088713343650656196e-02);
    even = __builtin_fma(even, fourth, -1.11111104054623557880e-01);
    odd = __builtin_fma(odd, fourth, 1.42857142725034663711e-01);
    even = __builtin_fma(even, fourth, -1.99999999998764832476e-01);
    odd = __builtin_fma(odd, fourth, 3.33333333333329318027e-01);
    const double rest = __builtin_fma(odd, square, even * fourth);
    const double sign = steep != behind ? -1.0 : 1.0;
    const double base = steep ? 0x1.921fb54442d18p+0 : behind ? 0x1.921fb54442d18p+1 : 0.0;
    const double base_rest = steep ? 0x1.1a62633145c07p-54 : behind ? 0x1.1a62633145c07p-53 : 0.0;
    const Pair start = base > 0 ? sum_of_two(base, sign * from) : Pair{sign * from, 0.0};
    const Pair near = sum_of_two(start.high, sign * t);
    const double far = near.low + (start.low + (base_rest + sign * __builtin_fma(-t, rest, from_rest)));
    return __builtin_copysign(near.high + far, y);
  }
};
struct DoubleAtan {
  using Number = double;
  static bool fits(double x) noexcept { return DoubleAtan2::fits(x, 1.0); }
  static double of(double x) noexcept { return DoubleAtan2::of(x, 1.0); }
};
