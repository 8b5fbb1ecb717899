// Functions whose vector formula covers only part of the arguments: a block with other arguments is computed by the scalar loop.
// Plain code that the compiler vectorises. Those of float32 compute in float64 to 1e-9 or better, so each result is the float32
// nearest to the exact one apart from rounding (<= 1 ulp).

// e^x for |x| <= 700.
inline double wide_exp(double x) noexcept {
  const double shifted = __builtin_fma(x, 1.4426950408889634, kWhole);
  const double n = shifted - kWhole;
  const double r = __builtin_fma(n, -1.9082149292705877e-10, __builtin_fma(n, -0.6931471803691238, x));  // ln 2 in two parts
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

// Return x less the nearest multiple of pi / 2, its sine and cosine, and the multiple's last two bits; |x| < 1e7.
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

// fits(x): whether the formula covers x; of(x): its value.
struct AngleFit {
  using Number = double;
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

inline constexpr std::int64_t kFitBlock = 512;

// Return `size` elements from `start` on, contiguous: in place, or copied to `block`.
template <class T>
const T* block_of(const T* from, std::int64_t stride, std::int64_t start, std::int64_t size, T* block) noexcept {
  if (stride == 1) return from + start;
  for (std::int64_t i = 0; i < size; ++i) block[i] = from[(start + i) * stride];
  return block;
}

// T is the type in memory; Op::of takes and returns Op::Number.
template <class T, class Op, UnaryFn* plain>
void wide_unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  using Number = typename Op::Number;
  const auto* from = static_cast<const T*>(in);
  auto* to = static_cast<T*>(out);
  T block[kFitBlock];
  for (std::int64_t start = 0; start < count; start += kFitBlock) {
    const std::int64_t size = start + kFitBlock < count ? kFitBlock : count - start;
    const T* x = block_of(from, stride, start, size, block);
    unsigned unfit = 0;
    for (std::int64_t i = 0; i < size; ++i) unfit |= static_cast<unsigned>(!Op::fits(x[i]));
    if (unfit) {
      (*plain)(x, 1, to + start, size);
      continue;
    }
#pragma GCC ivdep
    for (std::int64_t i = 0; i < size; ++i) to[start + i] = static_cast<T>(Op::of(static_cast<Number>(x[i])));
  }
}

// Angles: Op's vectors up to kMostTurned, and Far's formula for blocks with a larger one.
template <class Op, class Far, UnaryFn* plain>
void angle_unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  if (stride != 1) return wide_unary<float, Far, plain>(in, stride, out, count);
  const auto* from = static_cast<const float*>(in);
  auto* to = static_cast<float*>(out);
  for (std::int64_t start = 0; start < count; start += kFitBlock) {
    const std::int64_t size = start + kFitBlock < count ? kFitBlock : count - start;
    unsigned far = 0;
    for (std::int64_t i = start; i < start + size; ++i) far |= static_cast<unsigned>(__builtin_fabsf(from[i]) >= kMostTurned);
    if (far)
      wide_unary<float, Far, plain>(from + start, 1, to + start, size);
    else
      unary<Op, plain>(from + start, 1, to + start, size);
  }
}

// x^y by logarithm and exponential; a negative x with an integer y is computed from |x|.
struct PowerFast {
  using Number = double;
  static bool fits(float x, float y) noexcept {
    const float size = __builtin_fabsf(x);
    return (size > 0.0f) & (size < __builtin_inff()) & (__builtin_fabsf(y) < 0x1p24f) & ((x > 0.0f) | (y == __builtin_truncf(y)));
  }
  static double of(double x, double y) noexcept {
    const double product = y * natural_log(__builtin_fabs(x));
    const double low = product < -400.0 ? -400.0 : product, bounded = low > 400.0 ? 400.0 : low;
    const std::uint64_t odd = double_as_bits(y + kWhole), negative = double_as_bits(x) >> 63;  // for negative x, y is an integer
    return bits_as_double(double_as_bits(wide_exp(bounded)) ^ (odd & negative) << 63);
  }
};
struct HypotFast {
  using Number = double;
  static bool fits(float x, float y) noexcept {
    return (__builtin_fabsf(x) < __builtin_inff()) & (__builtin_fabsf(y) < __builtin_inff());
  }
  static double of(double x, double y) noexcept { return __builtin_sqrt(__builtin_fma(x, x, y * y)); }
};

// Remainders of quotients small enough that T represents the quotient + 1/2: the integer quotient is right or one too large, and
// the remainder is exact.
template <class T>
struct FmodFast {
  using Number = T;
  static constexpr T kMost = sizeof(T) == 4 ? T(0x1p22) : T(0x1p51);
  static bool fits(T x, T y) noexcept {
    const T size = y < T{0} ? -y : y, over = x < T{0} ? -x : x, infinite = static_cast<T>(__builtin_inff());
    return (size > T{0}) & (size < infinite) & (over < size * kMost) & (over < infinite);
  }
  static float of(float x, float y) noexcept {
    const float a = __builtin_fabsf(x), b = __builtin_fabsf(y), left = __builtin_fmaf(-__builtin_truncf(a / b), b, a);
    return __builtin_copysignf(left < 0.0f ? left + b : left, x);
  }
  static double of(double x, double y) noexcept {
    const double a = __builtin_fabs(x), b = __builtin_fabs(y), left = __builtin_fma(-__builtin_trunc(a / b), b, a);
    return __builtin_copysign(left < 0.0 ? left + b : left, x);
  }
};
inline float with_sign_of(float x, float y) noexcept { return __builtin_copysignf(x, y); }
inline double with_sign_of(double x, double y) noexcept { return __builtin_copysign(x, y); }
template <class T>
struct FloorModFast : FmodFast<T> {
  static T of(T x, T y) noexcept {
    const T rest = FmodFast<T>::of(x, y), moved = (rest < T{0}) != (y < T{0}) ? rest + y : rest;
    return rest == T{0} ? with_sign_of(T{0}, y) : moved;
  }
};
inline float whole_below(float x) noexcept { return __builtin_floorf(x); }
inline double whole_below(double x) noexcept { return __builtin_floor(x); }
template <class T>
struct FloorDivFast : FmodFast<T> {
  static T of(T x, T y) noexcept {
    const T rest = FmodFast<T>::of(x, y), whole = (x - rest) / y;
    const T quotient = (rest != T{0}) & ((rest < T{0}) != (y < T{0})) ? whole - T{1} : whole;
    const T floor = whole_below(quotient);
    const T rounded = quotient - floor > T(0.5) ? floor + T{1} : floor;
    return quotient == T{0} ? with_sign_of(T{0}, x / y) : rounded;
  }
};

template <class T, class Op, BinaryFn* plain>
void wide_binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
                 std::int64_t count) noexcept {
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* to = static_cast<T*>(out);
  T left_block[kFitBlock], right_block[kFitBlock];
  for (std::int64_t start = 0; start < count; start += kFitBlock) {
    const std::int64_t size = start + kFitBlock < count ? kFitBlock : count - start;
    const T* x = block_of(left, a_stride, start, size, left_block);
    const T* y = block_of(right, b_stride, start, size, right_block);
    unsigned unfit = 0;
    for (std::int64_t i = 0; i < size; ++i) unfit |= static_cast<unsigned>(!Op::fits(x[i], y[i]));
    if (unfit) {
      (*plain)(x, 1, y, 1, to + start, size);
      continue;
    }
    using Number = typename Op::Number;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < size; ++i)
      to[start + i] = static_cast<T>(Op::of(static_cast<Number>(x[i]), static_cast<Number>(y[i])));
  }
}

void fill_transcendental(Table& table) noexcept {
#define WALLE_FAST(op)                                                      \
  {                                                                         \
    UnaryFn& entry = table.unary[static_cast<std::size_t>(UnaryOp::op)][0]; \
    plain_unary<UnaryOp::op> = entry;                                       \
    entry = &angle_unary<op##Op, op##Fast, &plain_unary<UnaryOp::op>>;      \
  }
  WALLE_FAST(Sin)
  WALLE_FAST(Cos)
  WALLE_FAST(Tan)
#undef WALLE_FAST
#define WALLE_FAST(op)                                                         \
  {                                                                            \
    BinaryFn& entry = table.binary[static_cast<std::size_t>(BinaryOp::op)][0]; \
    plain_binary<BinaryOp::op> = entry;                                        \
    entry = &wide_binary<float, op##Fast, &plain_binary<BinaryOp::op>>;        \
  }
  WALLE_FAST(Power)
  WALLE_FAST(Hypot)
#undef WALLE_FAST
#define WALLE_FAST(op, T, type)                                                   \
  {                                                                               \
    BinaryFn& entry = table.binary[static_cast<std::size_t>(BinaryOp::op)][type]; \
    plain_binary<BinaryOp::op, type> = entry;                                     \
    entry = &wide_binary<T, op##Fast<T>, &plain_binary<BinaryOp::op, type>>;      \
  }
  WALLE_FAST(Fmod, float, 0)
  WALLE_FAST(FloorMod, float, 0)
  WALLE_FAST(FloorDiv, float, 0)
  WALLE_FAST(Fmod, double, 1)
  WALLE_FAST(FloorMod, double, 1)
  WALLE_FAST(FloorDiv, double, 1)
#undef WALLE_FAST
#define WALLE_FAST(op)                                                      \
  {                                                                         \
    UnaryFn& entry = table.unary[static_cast<std::size_t>(UnaryOp::op)][1]; \
    plain_unary<UnaryOp::op, 1> = entry;                                    \
    entry = &wide_unary<double, Double##op, &plain_unary<UnaryOp::op, 1>>;  \
  }
  WALLE_FAST(Exp)
  WALLE_FAST(Log)
  WALLE_FAST(Tanh)
  WALLE_FAST(Sin)
  WALLE_FAST(Cos)
  WALLE_FAST(Atan)
#undef WALLE_FAST
#define WALLE_FAST(op)                                                         \
  {                                                                            \
    BinaryFn& entry = table.binary[static_cast<std::size_t>(BinaryOp::op)][1]; \
    plain_binary<BinaryOp::op, 1> = entry;                                     \
    entry = &wide_binary<double, Double##op, &plain_binary<BinaryOp::op, 1>>;  \
  }
  WALLE_FAST(Power)
  WALLE_FAST(Atan2)
#undef WALLE_FAST
}
