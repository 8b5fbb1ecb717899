// Elementwise, select and conversion loops of all element types in plain code that the compiler vectorises for the
// including instruction set. Results are those of scalar/elements.h, bit for bit (except for the order of float64 sums). Outputs
// may be an operand with stride 1, which `ivdep` allows.

template <class T>
struct UnsignedOf {
  using Type = T;
};
#define WALLE_UNSIGNED(T, U) \
  template <>                \
  struct UnsignedOf<T> {     \
    using Type = U;          \
  };
WALLE_UNSIGNED(std::int8_t, unsigned)
WALLE_UNSIGNED(std::int16_t, unsigned)
WALLE_UNSIGNED(std::uint8_t, unsigned)
WALLE_UNSIGNED(std::uint16_t, unsigned)
WALLE_UNSIGNED(std::int32_t, std::uint32_t)
WALLE_UNSIGNED(std::int64_t, std::uint64_t)
#undef WALLE_UNSIGNED
// The type in which integers are computed, so that they wrap.
template <class T>
using Wraps = typename UnsignedOf<T>::Type;

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;

#define WALLE_LOOP_OP(name, expression) \
  struct name##Loop {                   \
    template <class T>                  \
    static auto of(T a, T b) noexcept { \
      return expression;                \
    }                                   \
  };
WALLE_LOOP_OP(Add, static_cast<T>(static_cast<Wraps<T>>(a) + static_cast<Wraps<T>>(b)))
WALLE_LOOP_OP(Sub, static_cast<T>(static_cast<Wraps<T>>(a) - static_cast<Wraps<T>>(b)))
WALLE_LOOP_OP(Mul, static_cast<T>(static_cast<Wraps<T>>(a) * static_cast<Wraps<T>>(b)))
WALLE_LOOP_OP(Div, static_cast<T>(a / b))
WALLE_LOOP_OP(Maximum, static_cast<T>((a > b) | (a != a) ? a : b))
WALLE_LOOP_OP(Minimum, static_cast<T>((a < b) | (a != a) ? a : b))
WALLE_LOOP_OP(BitwiseAnd, static_cast<T>(a& b))
WALLE_LOOP_OP(BitwiseOr, static_cast<T>(a | b))
WALLE_LOOP_OP(BitwiseXor, static_cast<T>(a ^ b))
// A count beyond the width, or below 0, leaves only the sign in a shift to the right.
WALLE_LOOP_OP(ShiftLeft,
              static_cast<T>(static_cast<Wraps<T>>(b) < 8 * sizeof(T) ? static_cast<Wraps<T>>(a) << (b & (8 * sizeof(T) - 1))
                                                                      : Wraps<T>{0}))
WALLE_LOOP_OP(ShiftRight, static_cast<T>(T{0} < static_cast<T>(~T{0}) && static_cast<Wraps<T>>(b) >= 8 * sizeof(T)
                                             ? T{0}
                                             : static_cast<T>(a >> (static_cast<Wraps<T>>(b) < 8 * sizeof(T)
                                                                        ? static_cast<Wraps<T>>(b)
                                                                        : static_cast<Wraps<T>>(8 * sizeof(T) - 1)))))
WALLE_LOOP_OP(Equal, static_cast<std::uint8_t>(a == b))
WALLE_LOOP_OP(NotEqual, static_cast<std::uint8_t>(a != b))
WALLE_LOOP_OP(Less, static_cast<std::uint8_t>(a < b))
WALLE_LOOP_OP(LessOrEqual, static_cast<std::uint8_t>(a <= b))
WALLE_LOOP_OP(Greater, static_cast<std::uint8_t>(a > b))
WALLE_LOOP_OP(GreaterOrEqual, static_cast<std::uint8_t>(a >= b))
#undef WALLE_LOOP_OP

template <class T, class Out, class Op>
void loop_binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
                 std::int64_t count) noexcept {
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* to = static_cast<Out*>(out);
  if (a_stride == 1 && b_stride == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(left[i], right[i]);
  } else if (a_stride == 1 && b_stride == 0) {
    if (count == 0) return;
    const T same = *right;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(left[i], same);
  } else if (a_stride == 0 && b_stride == 1) {
    if (count == 0) return;
    const T same = *left;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(same, right[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(left[i * a_stride], right[i * b_stride]);
  }
}

#define WALLE_LOOP_OP(name, expression) \
  struct name##Loop {                   \
    template <class T>                  \
    static T of(T x) noexcept {         \
      return expression;                \
    }                                   \
  };
WALLE_LOOP_OP(Neg, static_cast<T>(kIsFloat<T> ? -x : static_cast<T>(Wraps<T>{0} - static_cast<Wraps<T>>(x))))
WALLE_LOOP_OP(Abs, static_cast<T>(x < T{0} ? static_cast<T>(Wraps<T>{0} - static_cast<Wraps<T>>(x)) : x))  // floats: see below
WALLE_LOOP_OP(Square, static_cast<T>(static_cast<Wraps<T>>(x) * static_cast<Wraps<T>>(x)))
WALLE_LOOP_OP(Sign,
              static_cast<T>((x != x) | (x == T{0}) ? x : static_cast<T>(static_cast<T>(x > T{0}) - static_cast<T>(x < T{0}))))
WALLE_LOOP_OP(Reciprocal, static_cast<T>(T{1} / x))
WALLE_LOOP_OP(Not, static_cast<T>(x ^ T{1}))
WALLE_LOOP_OP(BitwiseNot, static_cast<T>(~x))
#undef WALLE_LOOP_OP
struct WideAbsLoop {
  static double of(double x) noexcept { return __builtin_fabs(x); }
};
struct WideSqrtLoop {
  static double of(double x) noexcept { return __builtin_sqrt(x); }
};
struct WideFloorLoop {
  static double of(double x) noexcept { return __builtin_floor(x); }
};
struct WideCeilLoop {
  static double of(double x) noexcept { return __builtin_ceil(x); }
};
struct WideTruncLoop {
  static double of(double x) noexcept { return __builtin_trunc(x); }
};
struct WideRoundLoop {
  static double of(double x) noexcept { return __builtin_nearbyint(x); }
};
struct FloatAbsLoop {
  static float of(float x) noexcept { return __builtin_fabsf(x); }
};
struct TruncLoop {
  static float of(float x) noexcept { return __builtin_truncf(x); }
};
struct IsNaNLoop {
  template <class T>
  static std::uint8_t of(T x) noexcept {
    return x != x;
  }
};
// The bits of a float, as an integer of its size.
inline std::uint32_t bits_of(float x) noexcept {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline std::uint64_t bits_of(double x) noexcept {
  std::uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float float_of(std::uint32_t bits) noexcept {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
inline double float_of(std::uint64_t bits) noexcept {
  double x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
struct SpacingLoop {
  template <class T>
  static T of(T x) noexcept {
    const auto bits = bits_of(x);
    return float_of((x == T{0} ? 0 : bits) + 1) - x;
  }
};
struct NextAfterLoop {
  template <class T>
  static T of(T a, T b) noexcept {
    using Bits = decltype(bits_of(a));
    const Bits bits = bits_of(a), up = static_cast<Bits>((b > a) == (a > T{0}) ? 1 : -1);
    const Bits sign = bits_of(b) & Bits{1} << (8 * sizeof(T) - 1);
    const T moved = float_of(a == T{0} ? sign + 1 : bits + up), same = a == b ? b : a + b;
    return (a < b) | (a > b) ? moved : same;
  }
};
// The layout of a float's exponent: shift, mask, and the field's value for 1/2.
template <class T>
struct Field {
  using Bits = decltype(bits_of(T{0}));
  static constexpr int kShift = sizeof(T) == 4 ? 23 : 52;
  static constexpr Bits kMask = sizeof(T) == 4 ? Bits{0xff} << 23 : static_cast<Bits>(std::uint64_t{0x7ff} << 52);
  static constexpr Bits kHalf = sizeof(T) == 4 ? 126 : 1022;
  static constexpr T kLeast = sizeof(T) == 4 ? T(0x1p-126) : T(0x1p-1022);
  // Subnormal numbers are multiplied by 2^64 first.
  static Bits normal(T x) noexcept { return bits_of((x < kLeast) & (x > -kLeast) ? x * T(0x1p64) : x); }
  static bool plain(T x) noexcept { return (x != T{0}) & (x - x == x - x); }
};
struct MantissaLoop {
  template <class T>
  static T of(T x) noexcept {
    using F = Field<T>;
    const T m = float_of((F::normal(x) & ~F::kMask) | F::kHalf << F::kShift);
    return F::plain(x) ? m : x;
  }
};
struct ExponentLoop {
  template <class T>
  static T of(T x) noexcept {
    using F = Field<T>;
    const auto field = static_cast<std::int32_t>((F::normal(x) & F::kMask) >> F::kShift) - static_cast<std::int32_t>(F::kHalf);
    const std::int32_t k = (x < F::kLeast) & (x > -F::kLeast) ? field - 64 : field;
    return static_cast<T>(F::plain(x) ? k : 0);
  }
};
// float32 computed in float64, which holds every product exactly: one rounding.
struct ScaleByPowerLoop {
  static float of(float a, float b) noexcept {
    const float not_below = b < -400.0f ? -400.0f : b, bounded = not_below > 400.0f ? 400.0f : not_below;
    const std::uint64_t power =
        static_cast<std::uint64_t>(static_cast<std::int64_t>(b == b ? static_cast<std::int32_t>(bounded) : 0) + 1023);
    const auto scaled = static_cast<float>(static_cast<double>(a) * float_of(power << 52));
    return b == b ? scaled : b;
  }
};
struct IsInfiniteLoop {
  template <class T>
  static std::uint8_t of(T x) noexcept {
    return bits_of(x) << 1 == bits_of(static_cast<T>(__builtin_inff())) << 1;
  }
};
struct SignBitLoop {
  template <class T>
  static std::uint8_t of(T x) noexcept {
    return static_cast<std::uint8_t>(bits_of(x) >> (8 * sizeof(T) - 1));
  }
};
struct CopySignLoop {
  static float of(float a, float b) noexcept { return __builtin_copysignf(a, b); }
  static double of(double a, double b) noexcept { return __builtin_copysign(a, b); }
};
struct IsFiniteLoop {
  template <class T>
  static std::uint8_t of(T x) noexcept {
    return x - x == x - x;
  }
};

template <class T, class Out, class Op>
void loop_unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const T*>(in);
  auto* to = static_cast<Out*>(out);
  if (stride == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(from[i * stride]);
  }
}

// Conversions without special cases.
template <class From, class To>
struct CastLoop {
  static To of(From x) noexcept { return static_cast<To>(x); }
};
template <class From>
struct TruthLoop {
  static std::uint8_t of(From x) noexcept { return x != From{0}; }
};

// Floats to integers: rounded towards zero; values beyond the range give its nearest bound, and NaN gives 0.
template <class From, class To>
struct BoundedLoop {
  static To of(From x) noexcept {
    constexpr To kLeast = std::numeric_limits<To>::min(), kMost = std::numeric_limits<To>::max();
    constexpr auto kLow = static_cast<From>(kLeast), kHigh = static_cast<From>(kMost);
    const auto inside = static_cast<To>((x > kLow) & (x < kHigh) ? x : From{0});
    return x >= kHigh ? kMost : x <= kLow ? kLeast : inside;
  }
};

template <class T>
void loop_select(const void* where, std::int64_t where_stride, const void* a, std::int64_t a_stride, const void* b,
                 std::int64_t b_stride, void* out, std::int64_t count) noexcept {
  const auto* choice = static_cast<const std::uint8_t*>(where);
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* to = static_cast<T*>(out);
  const auto run = [&](auto at_a, auto at_b) noexcept {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      const T x = at_a(i), y = at_b(i);
      to[i] = choice[i] ? x : y;
    }
  };
  if (count == 0) return;
  const auto each_a = [left](std::int64_t i) noexcept { return left[i]; };
  const auto each_b = [right](std::int64_t i) noexcept { return right[i]; };
  const T same_a = *left, same_b = *right;
  const auto one_a = [same_a](std::int64_t) noexcept { return same_a; };
  const auto one_b = [same_b](std::int64_t) noexcept { return same_b; };
  if (where_stride == 1 && a_stride == 1 && b_stride == 1) return run(each_a, each_b);
  if (where_stride == 1 && a_stride == 1 && b_stride == 0) return run(each_a, one_b);
  if (where_stride == 1 && a_stride == 0 && b_stride == 1) return run(one_a, each_b);
  if (where_stride == 1 && a_stride == 0 && b_stride == 0) return run(one_a, one_b);
  for (std::int64_t i = 0; i < count; ++i) to[i] = choice[i * where_stride] ? left[i * a_stride] : right[i * b_stride];
}

template <class T>
void loop_axpy(const void* factor, const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const T scale = *static_cast<const T*>(factor);
  const auto* from = static_cast<const T*>(in);
  auto* to = static_cast<T*>(out);
  if (stride == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = AddLoop::of(to[i], MulLoop::of(scale, from[i]));
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = AddLoop::of(to[i], MulLoop::of(scale, from[i * stride]));
  }
}

template <class From>
void fill_loop_casts(UnaryFn (&row)[kComputeCount]) noexcept {
  row[0] = &loop_unary<From, float, CastLoop<From, float>>;
  row[1] = &loop_unary<From, double, CastLoop<From, double>>;
  row[5] = &loop_unary<From, std::uint8_t, TruthLoop<From>>;
  if constexpr (!kIsFloat<From>) {
    row[2] = &loop_unary<From, std::int32_t, CastLoop<From, std::int32_t>>;
    row[3] = &loop_unary<From, std::int64_t, CastLoop<From, std::int64_t>>;
    row[4] = &loop_unary<From, std::uint8_t, CastLoop<From, std::uint8_t>>;
  } else {
    row[2] = &loop_unary<From, std::int32_t, BoundedLoop<From, std::int32_t>>;
    row[3] = &loop_unary<From, std::int64_t, BoundedLoop<From, std::int64_t>>;
  }
}

template <class T>
void fill_loops_of(Table& table, std::size_t type) noexcept {
#define WALLE_FAST(op) table.compare[static_cast<std::size_t>(CompareOp::op)][type] = &loop_binary<T, std::uint8_t, op##Loop>;
  WALLE_FAST(Equal)
  WALLE_FAST(NotEqual)
  WALLE_FAST(Less)
  WALLE_FAST(LessOrEqual)
  WALLE_FAST(Greater)
  WALLE_FAST(GreaterOrEqual)
#undef WALLE_FAST
#define WALLE_FAST(op) table.binary[static_cast<std::size_t>(BinaryOp::op)][type] = &loop_binary<T, T, op##Loop>;
  WALLE_FAST(Maximum)
  WALLE_FAST(Minimum)
#undef WALLE_FAST
}

template <class T>
void fill_arithmetic_of(Table& table, std::size_t type) noexcept {
  fill_loops_of<T>(table, type);
#define WALLE_FAST(op) table.binary[static_cast<std::size_t>(BinaryOp::op)][type] = &loop_binary<T, T, op##Loop>;
  WALLE_FAST(Add)
  WALLE_FAST(Sub)
  WALLE_FAST(Mul)
#undef WALLE_FAST
#define WALLE_FAST(op) table.unary[static_cast<std::size_t>(UnaryOp::op)][type] = &loop_unary<T, T, op##Loop>;
  WALLE_FAST(Neg)
  WALLE_FAST(Abs)
  WALLE_FAST(Square)
  WALLE_FAST(Sign)
#undef WALLE_FAST
  table.axpy[type] = &loop_axpy<T>;
}

template <class T>
void fill_integers_of(Table& table, std::size_t type) noexcept {
  fill_arithmetic_of<T>(table, type);
#define WALLE_FAST(op) table.binary[static_cast<std::size_t>(BinaryOp::op)][type] = &loop_binary<T, T, op##Loop>;
  WALLE_FAST(BitwiseAnd)
  WALLE_FAST(BitwiseOr)
  WALLE_FAST(BitwiseXor)
  WALLE_FAST(ShiftLeft)
  WALLE_FAST(ShiftRight)
#undef WALLE_FAST
  table.unary[static_cast<std::size_t>(UnaryOp::BitwiseNot)][type] = &loop_unary<T, T, BitwiseNotLoop>;
}
