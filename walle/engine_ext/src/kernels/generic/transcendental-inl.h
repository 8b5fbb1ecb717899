// Transcendental functions of float32, computed in float64 by plain code of which the compiler makes vectors: the approximations
// below are good to 1e-9 or better, so that each result is the float32 next to the exact one but for rounding (<= 1 ulp against
// float64). Arguments that a formula does not serve are done again by the scalar loop, block by block.

inline double bits_as_double(std::uint64_t x) noexcept {
  double y;
  __builtin_memcpy(&y, &x, sizeof(y));
  return y;
}
inline std::uint64_t double_as_bits(double x) noexcept {
  std::uint64_t y;
  __builtin_memcpy(&y, &x, sizeof(y));
  return y;
}

// Added to a double below 2^51 it leaves the nearest whole number in the low bits.
inline constexpr double kWhole = 0x1.8p52;

// e^x for |x| <= 700.
inline double wide_exp(double x) noexcept {
  const double shifted = __builtin_fma(x, 1.4426950408889634, kWhole);
  const double n = shifted - kWhole;
  const double r = __builtin_fma(n, -1.9082149292705877e-10, __builtin_fma(n, -0.6931471803691238, x));  // ln 2 in two pieces
  double p = 1.0 / 3628800;
  p = __builtin_fma(p, r, 1.0 / 362880);
  p = __builtin_fma(p, r, 1.0 / 40320);
  p = __builtin_fma(p, r, 1.0 / 5040);
  p = __builtin_fma(p, r, 1.0 / 720);
  p = __builtin_fma(p, r, 1.0 / 120);
  p = __builtin_fma(p, r, 1.0 / 24);
  p = __builtin_fma(p, r, 1.0 / 6);
  p = __builtin_fma(p, r, 0.5);
  p = __builtin_fma(p, r, 1.0);
  p = __builtin_fma(p, r, 1.0);
  return p * bits_as_double((double_as_bits(shifted) << 52) + 0x3ff0000000000000u);
}

// The exponent k and log(m) with x = 2^k * m and m near 1, of a positive normal x.
struct Logarithm {
  double power, rest;
};
inline Logarithm wide_log(double x) noexcept {
  constexpr std::uint64_t kHalfRoot = 0x3fe6a09e667f3bcdu;  // sqrt(1/2)
  const std::uint64_t offset = double_as_bits(x) - kHalfRoot;
  const double m = bits_as_double((offset & 0x000fffffffffffffu) + kHalfRoot);
  // The exponent as a double, without an instruction that converts 64-bit integers.
  const double power = bits_as_double(0x4330000000000000u | ((offset + (std::uint64_t{1024} << 52)) >> 52)) - (0x1p52 + 1024);
  const double t = (m - 1) / (m + 1), square = t * t;
  double p = 2.0 / 17;
  p = __builtin_fma(p, square, 2.0 / 15);
  p = __builtin_fma(p, square, 2.0 / 13);
  p = __builtin_fma(p, square, 2.0 / 11);
  p = __builtin_fma(p, square, 2.0 / 9);
  p = __builtin_fma(p, square, 2.0 / 7);
  p = __builtin_fma(p, square, 2.0 / 5);
  p = __builtin_fma(p, square, 2.0 / 3);
  p = __builtin_fma(p, square, 2.0);
  return {power, p * t};
}
inline double natural_log(double x) noexcept {
  const auto [power, rest] = wide_log(x);
  return __builtin_fma(power, 0.6931471805599453, rest);
}

// atan(x), |x| any.
inline double wide_atan(double x) noexcept {
  const double size = __builtin_fabs(x);
  const bool far = size > 2.414213562373095, middle = size > 0.4142135623730951;  // tan of 3 and 1 eighths of pi
  const double over = far ? -1.0 : middle ? size - 1 : size, under = far ? size : middle ? size + 1 : 1.0;
  const double t = over / under, square = t * t;
  double p = 1.0 / 21;
  p = __builtin_fma(p, square, -1.0 / 19);
  p = __builtin_fma(p, square, 1.0 / 17);
  p = __builtin_fma(p, square, -1.0 / 15);
  p = __builtin_fma(p, square, 1.0 / 13);
  p = __builtin_fma(p, square, -1.0 / 11);
  p = __builtin_fma(p, square, 1.0 / 9);
  p = __builtin_fma(p, square, -1.0 / 7);
  p = __builtin_fma(p, square, 1.0 / 5);
  p = __builtin_fma(p, square, -1.0 / 3);
  p = __builtin_fma(p, square, 1.0);
  const double base = far ? 1.5707963267948966 : middle ? 0.7853981633974483 : 0.0;
  return __builtin_copysign(__builtin_fma(p, t, base), x);
}

// x less the nearest multiple of pi / 2, its sine and cosine, and the multiple's last two bits; |x| < 1e7.
struct Turned {
  double sine, cosine;
  std::uint64_t quarter;
};
inline Turned turned(double x) noexcept {
  const double shifted = __builtin_fma(x, 0.6366197723675814, kWhole);
  const double n = shifted - kWhole;
  const double r = __builtin_fma(n, -6.123233995736766e-17, __builtin_fma(n, -1.5707963267948966, x));
  const double square = r * r;
  double s = -1.0 / 39916800, c = -1.0 / 3628800;
  s = __builtin_fma(s, square, 1.0 / 362880);
  s = __builtin_fma(s, square, -1.0 / 5040);
  s = __builtin_fma(s, square, 1.0 / 120);
  s = __builtin_fma(s, square, -1.0 / 6);
  c = __builtin_fma(c, square, 1.0 / 40320);
  c = __builtin_fma(c, square, -1.0 / 720);
  c = __builtin_fma(c, square, 1.0 / 24);
  c = __builtin_fma(c, square, -0.5);
  return {__builtin_fma(s * square, r, r), __builtin_fma(c, square, 1.0), double_as_bits(shifted) & 3};
}
inline double with_sign(double x, std::uint64_t odd) noexcept { return bits_as_double(double_as_bits(x) ^ (odd << 63)); }

// fits(x): the formula serves; of(x): its value.
struct LogFar {
  static bool fits(float x) noexcept { return (x > 0.0f) & (x < __builtin_inff()); }
};
struct LogFast : LogFar {
  static double of(double x) noexcept { return natural_log(x); }
};
struct Log2Fast : LogFar {
  static double of(double x) noexcept {
    const auto [power, rest] = wide_log(x);
    return __builtin_fma(rest, 1.4426950408889634, power);
  }
};
struct Log10Fast : LogFar {
  static double of(double x) noexcept { return natural_log(x) * 0.4342944819032518; }
};
struct Log1pFast {
  static bool fits(float x) noexcept { return (x > -1.0f) & (x < __builtin_inff()); }
  static double of(double x) noexcept {
    const double sum = 1 + x, small = x * __builtin_fma(x, __builtin_fma(x, 1.0 / 3, -0.5), 1.0);
    const double large = natural_log(sum);
    return __builtin_fabs(x) < 1e-4 ? small : large;
  }
};
struct ModestFit {
  static bool fits(float x) noexcept { return __builtin_fabsf(x) < 120.0f; }
};
struct Exp2Fast : ModestFit {
  static bool fits(float x) noexcept { return __builtin_fabsf(x) < 160.0f; }
  static double of(double x) noexcept { return wide_exp(x * 0.6931471805599453); }
};
// x + x^2 / 2 + ... for small x, where e^x - 1 would lose digits.
struct Expm1Fast : ModestFit {
  static double of(double x) noexcept {
    double p = 1.0 / 5040;
    p = __builtin_fma(p, x, 1.0 / 720);
    p = __builtin_fma(p, x, 1.0 / 120);
    p = __builtin_fma(p, x, 1.0 / 24);
    p = __builtin_fma(p, x, 1.0 / 6);
    p = __builtin_fma(p, x, 0.5);
    const double small = __builtin_fma(p * x, x, x), large = wide_exp(x) - 1;
    return __builtin_fabs(x) < 0.03125 ? small : large;
  }
};
struct SinhFast : ModestFit {
  static double of(double x) noexcept {
    const double square = x * x, e = wide_exp(x);
    double p = 1.0 / 5040;
    p = __builtin_fma(p, square, 1.0 / 120);
    p = __builtin_fma(p, square, 1.0 / 6);
    const double small = __builtin_fma(p * square, x, x), large = 0.5 * (e - 1 / e);
    return __builtin_fabs(x) < 0.125 ? small : large;
  }
};
struct CoshFast : ModestFit {
  static double of(double x) noexcept {
    const double e = wide_exp(x);
    return 0.5 * (e + 1 / e);
  }
};
struct AngleFit {
  static bool fits(float x) noexcept { return __builtin_fabsf(x) < 1e7f; }
};
struct SinFast : AngleFit {
  static double of(double x) noexcept {
    const Turned t = turned(x);
    const double value = t.quarter & 1 ? t.cosine : t.sine;
    return with_sign(value, t.quarter >> 1);
  }
};
struct CosFast : AngleFit {
  static double of(double x) noexcept {
    const Turned t = turned(x);
    const double value = t.quarter & 1 ? t.sine : t.cosine;
    return with_sign(value, ((t.quarter + 1) >> 1) & 1);
  }
};
struct TanFast : AngleFit {
  static double of(double x) noexcept {
    const Turned t = turned(x);
    const double over = t.quarter & 1 ? -t.cosine : t.sine, under = t.quarter & 1 ? t.sine : t.cosine;
    return over / under;
  }
};
struct AllFit {
  static bool fits(float x) noexcept { return x == x; }
};
struct AtanFast : AllFit {
  static double of(double x) noexcept { return wide_atan(x); }
};
struct UnitFit {
  static bool fits(float x) noexcept { return __builtin_fabsf(x) <= 1.0f; }
};
struct AsinFast : UnitFit {
  static double of(double x) noexcept { return wide_atan(x / __builtin_sqrt((1 - x) * (1 + x))); }
};
struct AcosFast : UnitFit {
  static double of(double x) noexcept { return 2 * wide_atan(__builtin_sqrt((1 - x) / (1 + x))); }
};
struct CbrtFast {
  static bool fits(float x) noexcept { return (x != 0.0f) & (__builtin_fabsf(x) < __builtin_inff()); }
  static double of(double x) noexcept { return __builtin_copysign(wide_exp(natural_log(__builtin_fabs(x)) * (1.0 / 3)), x); }
};

inline constexpr std::int64_t kFitBlock = 512;

template <class Op, UnaryFn* plain>
void wide_unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const float*>(in);
  auto* to = static_cast<float*>(out);
  float block[kFitBlock];
  for (std::int64_t start = 0; start < count; start += kFitBlock) {
    const std::int64_t size = start + kFitBlock < count ? kFitBlock : count - start;
    const float* x = from + start;
    if (stride != 1) {
      for (std::int64_t i = 0; i < size; ++i) block[i] = from[(start + i) * stride];
      x = block;
    }
    unsigned unfit = 0;
    for (std::int64_t i = 0; i < size; ++i) unfit |= static_cast<unsigned>(!Op::fits(x[i]));
    if (unfit) {
      (*plain)(x, 1, to + start, size);
      continue;
    }
#pragma GCC ivdep
    for (std::int64_t i = 0; i < size; ++i) to[start + i] = static_cast<float>(Op::of(static_cast<double>(x[i])));
  }
}

// x^y: by logarithm and exponential; a negative x with a whole y is done by its size.
struct PowerFast {
  static bool fits(float x, float y) noexcept {
    const float size = __builtin_fabsf(x);
    return (size > 0.0f) & (size < __builtin_inff()) & (__builtin_fabsf(y) < 0x1p24f) & ((x > 0.0f) | (y == __builtin_truncf(y)));
  }
  static double of(double x, double y) noexcept {
    const double product = y * natural_log(__builtin_fabs(x));
    const double low = product < -400.0 ? -400.0 : product, bounded = low > 400.0 ? 400.0 : low;
    const std::uint64_t odd = double_as_bits(y + kWhole), negative = double_as_bits(x) >> 63;  // where x is, y is whole
    return bits_as_double(double_as_bits(wide_exp(bounded)) ^ (odd & negative) << 63);
  }
};
struct HypotFast {
  static bool fits(float x, float y) noexcept {
    return (__builtin_fabsf(x) < __builtin_inff()) & (__builtin_fabsf(y) < __builtin_inff());
  }
  static double of(double x, double y) noexcept { return __builtin_sqrt(__builtin_fma(x, x, y * y)); }
};
struct Atan2Fast {
  static bool fits(float y, float x) noexcept {
    return (__builtin_fabsf(x) < __builtin_inff()) & (__builtin_fabsf(y) < __builtin_inff()) & (x != 0.0f) & (y != 0.0f);
  }
  static double of(double y, double x) noexcept {
    const double angle = wide_atan(y / x), turn = __builtin_copysign(3.141592653589793, y);
    return x < 0 ? angle + turn : angle;
  }
};

template <class Op, BinaryFn* plain>
void wide_binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
                 std::int64_t count) noexcept {
  const auto* left = static_cast<const float*>(a);
  const auto* right = static_cast<const float*>(b);
  auto* to = static_cast<float*>(out);
  float x[kFitBlock], y[kFitBlock];
  for (std::int64_t start = 0; start < count; start += kFitBlock) {
    const std::int64_t size = start + kFitBlock < count ? kFitBlock : count - start;
    for (std::int64_t i = 0; i < size; ++i) {
      x[i] = left[(start + i) * a_stride];
      y[i] = right[(start + i) * b_stride];
    }
    unsigned unfit = 0;
    for (std::int64_t i = 0; i < size; ++i) unfit |= static_cast<unsigned>(!Op::fits(x[i], y[i]));
    if (unfit) {
      (*plain)(x, 1, y, 1, to + start, size);
      continue;
    }
    for (std::int64_t i = 0; i < size; ++i)
      to[start + i] = static_cast<float>(Op::of(static_cast<double>(x[i]), static_cast<double>(y[i])));
  }
}

void fill_transcendental(Table& table) noexcept {
#define WALLE_FAST(op)                                                      \
  {                                                                         \
    UnaryFn& entry = table.unary[static_cast<std::size_t>(UnaryOp::op)][0]; \
    plain_unary<UnaryOp::op> = entry;                                       \
    entry = &wide_unary<op##Fast, &plain_unary<UnaryOp::op>>;               \
  }
  WALLE_FAST(Log)
  WALLE_FAST(Log2)
  WALLE_FAST(Log10)
  WALLE_FAST(Log1p)
  WALLE_FAST(Exp2)
  WALLE_FAST(Expm1)
  WALLE_FAST(Sinh)
  WALLE_FAST(Cosh)
  WALLE_FAST(Sin)
  WALLE_FAST(Cos)
  WALLE_FAST(Tan)
  WALLE_FAST(Atan)
  WALLE_FAST(Asin)
  WALLE_FAST(Acos)
  WALLE_FAST(Cbrt)
#undef WALLE_FAST
#define WALLE_FAST(op)                                                         \
  {                                                                            \
    BinaryFn& entry = table.binary[static_cast<std::size_t>(BinaryOp::op)][0]; \
    plain_binary<BinaryOp::op> = entry;                                        \
    entry = &wide_binary<op##Fast, &plain_binary<BinaryOp::op>>;               \
  }
  WALLE_FAST(Power)
  WALLE_FAST(Hypot)
  WALLE_FAST(Atan2)
#undef WALLE_FAST
}
