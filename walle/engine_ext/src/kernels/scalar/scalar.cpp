// The scalar instruction set: plain loops over scalar/elements.h, the reference that every other instruction set is tested
// against.
#include <algorithm>
#include <cstring>

#include "kernels/scalar/elements.h"
#include "kernels/scalar/set.h"
#include "kernels/table.h"

namespace walle::scalar {

namespace {

// `f` takes and returns the types in which T and Out are computed.
template <class T, class Out, Wide<Out> (*f)(Wide<T>) noexcept>
void unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const T*>(in);
  auto* to = static_cast<Out*>(out);
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Out>(f(from[i]));
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Out>(f(from[i * stride]));
}

template <class T, class Out, Wide<Out> (*f)(Wide<T>, Wide<T>) noexcept>
void binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out, std::int64_t count) noexcept {
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* to = static_cast<Out*>(out);
  if (a_stride == 1 && b_stride == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Out>(f(left[i], right[i]));
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Out>(f(left[i * a_stride], right[i * b_stride]));
}

// Kernels of float16 and bfloat16: widened to float32 in blocks, computed by the float32 kernel, and rounded once.
inline constexpr std::int64_t kHalfBlock = 256;
template <class From, class To>
void cast_block(const From* in, std::int64_t stride, To* out, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<To>(static_cast<float>(in[i * stride]));
}
// `out` has type T, or bool.
template <class T, class Out>
void by_floats(UnaryFn f, const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  float values[kHalfBlock];
  for (std::int64_t start = 0; start < count; start += kHalfBlock) {
    const std::int64_t size = std::min(kHalfBlock, count - start);
    cast_block(static_cast<const T*>(in) + start * stride, stride, values, size);
    if constexpr (std::is_same_v<Out, bool>) {
      f(values, 1, static_cast<bool*>(out) + start, size);
    } else {
      f(values, 1, values, size);
      cast_block(values, 1, static_cast<T*>(out) + start, size);
    }
  }
}
template <class T, class Out>
void by_floats(BinaryFn f, const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
               std::int64_t count) noexcept {
  float left[kHalfBlock], right[kHalfBlock];
  for (std::int64_t start = 0; start < count; start += kHalfBlock) {
    const std::int64_t size = std::min(kHalfBlock, count - start);
    cast_block(static_cast<const T*>(a) + start * a_stride, a_stride, left, size);
    cast_block(static_cast<const T*>(b) + start * b_stride, b_stride, right, size);
    if constexpr (std::is_same_v<Out, bool>) {
      f(left, 1, right, 1, static_cast<bool*>(out) + start, size);
    } else {
      f(left, 1, right, 1, left, size);
      cast_block(left, 1, static_cast<T*>(out) + start, size);
    }
  }
}
template <class T, class Out, UnaryFn f>
void half_unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  by_floats<T, Out>(f, in, stride, out, count);
}
template <class T, class Out, BinaryFn f>
void half_binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
                 std::int64_t count) noexcept {
  by_floats<T, Out>(f, a, a_stride, b, b_stride, out, count);
}

// Elements that are added one after the other: errors grow with their number, and with that of blocks.
constexpr std::int64_t kSumBlock = 64;

template <class T, bool is_sum, T (*join)(T, T) noexcept>
void reduce(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  using Sum = std::conditional_t<std::is_same_v<T, float>, double, T>;
  const auto* from = static_cast<const T*>(in);
  if constexpr (std::is_floating_point_v<T> && is_sum) {
    Sum sum = 0;
    for (std::int64_t i = 0; i < count;) {
      Sum part = 0;
      for (const std::int64_t end = std::min(i + kSumBlock, count); i < end; ++i) part += from[i * stride];
      sum += part;
    }
    *static_cast<T*>(out) = static_cast<T>(sum);
  } else {
    T result = from[0];
    for (std::int64_t i = 1; i < count; ++i) result = join(result, from[i * stride]);
    *static_cast<T*>(out) = result;
  }
}

// The first position whose element precedes all others by `better`; the first NaN wins, as in NumPy.
template <class T, bool (*better)(Wide<T>, Wide<T>) noexcept>
void arg(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  const auto* from = static_cast<const T*>(in);
  std::int64_t best = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Wide<T> value = from[i * stride];
    if (value != value) {
      best = i;
      break;
    }
    if (better(value, from[best * stride])) best = i;
  }
  *static_cast<std::int64_t*>(out) = best;
}

template <class From, class To>
void cast(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const From*>(in);
  auto* to = static_cast<To*>(out);
  if constexpr (kIsHalf<From> && !std::is_same_v<From, To> && !std::is_same_v<To, float>) {
    // In two steps: a decoder for each of the result's types would be most of the code of casts.
    float values[kHalfBlock];
    for (std::int64_t start = 0; start < count; start += kHalfBlock) {
      const std::int64_t size = std::min(kHalfBlock, count - start);
      cast<From, float>(from + start * stride, stride, values, size);
      cast<float, To>(values, 1, to + start, size);
    }
    return;
  }
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<From, To>(from[i]);
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<From, To>(from[i * stride]);
}

template <class From>
void odd(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const From*>(in);
  auto* to = static_cast<float*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_odd(from[i * stride]);
}

// Storage-only types. `f` is a type's decode and encode.
template <auto f>
void decode_stored(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const std::uint8_t*>(in);
  auto* to = static_cast<float*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = f(from[i * stride]);
}
template <class From, auto f>
void encode_stored(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const From*>(in);
  auto* to = static_cast<std::uint8_t*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(f(from[i * stride]));
}
template <class Format>
void fill_format(Table& table, DType dtype) noexcept {
  const auto at = static_cast<std::size_t>(stored_index(dtype));
  table.decode[at] = &decode_stored<&decode<Format>>;
  table.encode[at][0] = &encode_stored<float, [](float x) noexcept { return encode<Format>(x, true); }>;
  table.encode[at][1] = &encode_stored<float, [](float x) noexcept { return encode<Format>(x, false); }>;
}
template <Rounding rounding>
void fill_e8m0(Table& table) noexcept {
  const auto at = static_cast<std::size_t>(stored_index(DType::f8e8m0));
  table.encode[at][2 * static_cast<std::size_t>(rounding)] =
      &encode_stored<float, [](float x) noexcept { return encode_e8m0(x, rounding, true); }>;
  table.encode[at][2 * static_cast<std::size_t>(rounding) + 1] =
      &encode_stored<float, [](float x) noexcept { return encode_e8m0(x, rounding, false); }>;
}
// Integers of a few bits, held in the low bits of a byte; signed ones are sign-extended.
template <int bits, bool is_signed>
std::int32_t low_bits(std::int32_t x) noexcept {
  const std::int32_t low = x & ((1 << bits) - 1);
  return is_signed && low >> (bits - 1) ? low - (1 << bits) : low;
}
template <int bits, bool is_signed>
float decode_bits(std::uint8_t x) noexcept {
  return static_cast<float>(low_bits<bits, is_signed>(x));
}
template <int bits, bool is_signed>
void fill_small_int(Table& table, DType dtype) noexcept {
  const auto at = static_cast<std::size_t>(stored_index(dtype));
  table.decode[at] = &decode_stored<&decode_bits<bits, is_signed>>;
  table.encode[at][0] = table.encode[at][1] = &encode_stored<std::int32_t, &low_bits<bits, is_signed>>;
}

template <class T>
void select(const void* where, std::int64_t where_stride, const void* a, std::int64_t a_stride, const void* b,
            std::int64_t b_stride, void* out, std::int64_t count) noexcept {
  const auto* choice = static_cast<const bool*>(where);
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* to = static_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = choice[i * where_stride] ? left[i * a_stride] : right[i * b_stride];
}

template <class T>
void gemm(const GemmArgs& args) noexcept {
  const auto* a = static_cast<const T*>(args.a);
  const auto* b = static_cast<const T*>(args.b);
  auto* out = static_cast<T*>(args.out);
  for (std::int64_t m = 0; m < args.m; ++m) {
    T* row = out + m * args.out_row;
    if (!args.accumulate)
      for (std::int64_t n = 0; n < args.n; ++n) row[n] = T{0};
    for (std::int64_t k = 0; k < args.k; ++k) {
      const T factor = a[m * args.a_row + k * args.a_col];
      for (std::int64_t n = 0; n < args.n; ++n) row[n] = Add(row[n], Mul(factor, b[k * args.b_row + n * args.b_col]));
    }
  }
}

template <class T>
void axpy(const void* factor, const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const T scale = *static_cast<const T*>(factor);
  const auto* from = static_cast<const T*>(in);
  auto* to = static_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = Add(to[i], Mul(scale, from[i * stride]));
}

std::size_t no_scratch(std::int64_t, std::int64_t, std::int64_t) noexcept { return 0; }

// WALLE_SET(op, T, index) for each type that a letter of kernels.inc denotes; index is the type's position in Compute.
// WALLE_SET_HALF does the same for the two that are computed in float32.
#define WALLE_FILL_U(op) \
  WALLE_SET(op, std::uint8_t, 4) WALLE_SET(op, std::uint16_t, 8) WALLE_SET(op, std::uint32_t, 9) WALLE_SET(op, std::uint64_t, 10)
#define WALLE_FILL_I(op) \
  WALLE_FILL_U(op)       \
  WALLE_SET(op, std::int32_t, 2) WALLE_SET(op, std::int64_t, 3) WALLE_SET(op, std::int8_t, 6) WALLE_SET(op, std::int16_t, 7)
#define WALLE_FILL_D(op) WALLE_SET(op, float, 0) WALLE_SET(op, double, 1)
#define WALLE_FILL_F(op) WALLE_FILL_D(op) WALLE_SET_HALF(op, Half, 11) WALLE_SET_HALF(op, BFloat, 12)
#define WALLE_FILL_N(op) WALLE_FILL_F(op) WALLE_FILL_I(op)
#define WALLE_FILL_B(op) WALLE_SET(op, bool, 5)
#define WALLE_FILL_A(op) WALLE_FILL_N(op) WALLE_FILL_B(op)
// Complex numbers have their own kernels (complex.cpp).
#define WALLE_FILL_C(op)
#define WALLE_FILL_FC WALLE_FILL_F
#define WALLE_FILL_NC WALLE_FILL_N
#define WALLE_FILL_AC WALLE_FILL_A
#define WALLE_EACH(op, types)                                \
  {                                                          \
    constexpr auto kOp = static_cast<std::size_t>(Enum::op); \
    WALLE_FILL_##types(op)                                   \
  }

template <class From>
void fill_casts(UnaryFn (&row)[kComputeCount]) noexcept {
#define WALLE_SET(op, T, index) row[index] = &cast<From, T>;
#define WALLE_SET_HALF WALLE_SET
  WALLE_FILL_A(cast)
#undef WALLE_SET_HALF
#undef WALLE_SET
}

}  // namespace

void fill_kernels(Table& table) noexcept {
  {
    using Enum = UnaryOp;
#define WALLE_SET(op, T, index) table.unary[kOp][index] = &unary<T, T, &op<Wide<T>>>;
#define WALLE_SET_HALF(op, T, index) table.unary[kOp][index] = &half_unary<T, T, &unary<float, float, &op<float>>>;
#define WALLE_UNARY WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_UNARY
#undef WALLE_SET_HALF
#undef WALLE_SET
  }
  {
    using Enum = TestOp;
#define WALLE_SET(op, T, index) table.test[kOp][index] = &unary<T, bool, &op<Wide<T>>>;
#define WALLE_SET_HALF(op, T, index) table.test[kOp][index] = &half_unary<T, bool, &unary<float, bool, &op<float>>>;
#define WALLE_TEST WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_TEST
#undef WALLE_SET_HALF
#undef WALLE_SET
  }
  {
    using Enum = BinaryOp;
#define WALLE_SET(op, T, index) table.binary[kOp][index] = &binary<T, T, &op<Wide<T>>>;
#define WALLE_SET_HALF(op, T, index) table.binary[kOp][index] = &half_binary<T, T, &binary<float, float, &op<float>>>;
#define WALLE_BINARY WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_BINARY
#undef WALLE_SET_HALF
#undef WALLE_SET
  }
  {
    using Enum = CompareOp;
#define WALLE_SET(op, T, index) table.compare[kOp][index] = &binary<T, bool, &op<Wide<T>>>;
#define WALLE_SET_HALF(op, T, index) table.compare[kOp][index] = &half_binary<T, bool, &binary<float, bool, &op<float>>>;
#define WALLE_COMPARE WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_COMPARE
#undef WALLE_SET_HALF
#undef WALLE_SET
  }
  {
    using Enum = ReduceOp;
#define WALLE_SET(op, T, index) table.reduce[kOp][index] = &reduce<T, std::string_view(#op) == "Add", &op<T>>;
#define WALLE_SET_HALF(op, T, index)
#define WALLE_REDUCE(op, types, join)                        \
  {                                                          \
    constexpr auto kOp = static_cast<std::size_t>(Enum::op); \
    WALLE_FILL_##types(join)                                 \
  }
#include "kernels/kernels.inc"
#undef WALLE_REDUCE
#undef WALLE_SET_HALF
#undef WALLE_SET
  }
  {
#define WALLE_SET(op, T, index)                                                           \
  table.arg[static_cast<std::size_t>(ArgOp::ArgMax)][index] = &arg<T, &Greater<Wide<T>>>; \
  table.arg[static_cast<std::size_t>(ArgOp::ArgMin)][index] = &arg<T, &Less<Wide<T>>>;    \
  table.to_odd[index] = &odd<T>;                                                          \
  fill_casts<T>(table.cast[index]);
#define WALLE_SET_HALF WALLE_SET
    WALLE_FILL_A(arg)
#undef WALLE_SET_HALF
#undef WALLE_SET
  }
  fill_format<E4M3Format>(table, DType::f8e4m3fn);
  fill_format<E4M3UzFormat>(table, DType::f8e4m3fnuz);
  fill_format<E5M2Format>(table, DType::f8e5m2);
  fill_format<E5M2UzFormat>(table, DType::f8e5m2fnuz);
  fill_format<E2M1Format>(table, DType::f4e2m1);
  table.decode[static_cast<std::size_t>(stored_index(DType::f8e8m0))] = &decode_stored<&decode_e8m0>;
  fill_e8m0<Rounding::up>(table);
  fill_e8m0<Rounding::down>(table);
  fill_e8m0<Rounding::nearest>(table);
  fill_small_int<4, true>(table, DType::i4);
  fill_small_int<4, false>(table, DType::u4);
  fill_small_int<2, true>(table, DType::i2);
  fill_small_int<2, false>(table, DType::u2);
  table.select[0] = &select<std::uint8_t>;
  table.select[1] = &select<std::uint16_t>;
  table.select[2] = &select<std::uint32_t>;
  table.select[3] = &select<std::uint64_t>;
#define WALLE_SET(op, T, index) table.gemm[index] = {&gemm<T>, &no_scratch, true};
#define WALLE_SET_HALF(op, T, index)
  WALLE_FILL_N(gemm)
#undef WALLE_SET_HALF
#undef WALLE_SET
#define WALLE_SET(op, T, index) table.axpy[index] = &axpy<T>;
#define WALLE_SET_HALF(op, T, index)
  WALLE_FILL_N(axpy)
#undef WALLE_SET_HALF
#undef WALLE_SET
}

}  // namespace walle::scalar
