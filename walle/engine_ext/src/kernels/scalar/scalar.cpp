// The scalar backend: plain loops over scalar/elements.h. It is what every other backend is tested against.
#include <cstring>

#include "kernels/scalar/elements.h"
#include "kernels/table.h"

namespace walle {

namespace scalar {

namespace {

template <class T, class Out, Out (*f)(T) noexcept>
void unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const T*>(in);
  auto* to = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = f(from[i * stride]);
}

template <class T, class Out, Out (*f)(T, T) noexcept>
void binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out, std::int64_t count) noexcept {
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* to = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = f(left[i * a_stride], right[i * b_stride]);
}

template <class T, bool is_sum, T (*join)(T, T) noexcept>
void reduce(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  using Sum = std::conditional_t<std::is_same_v<T, float>, double, T>;
  const auto* from = static_cast<const T*>(in);
  if constexpr (std::is_floating_point_v<T> && is_sum) {
    Sum sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += from[i * stride];
    *static_cast<T*>(out) = static_cast<T>(sum);
  } else {
    T result = from[0];
    for (std::int64_t i = 1; i < count; ++i) result = join(result, from[i * stride]);
    *static_cast<T*>(out) = result;
  }
}

// The first place whose element is before all others by `better`; the first NaN wins, as in NumPy.
template <class T, bool (*better)(T, T) noexcept>
void arg(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  const auto* from = static_cast<const T*>(in);
  std::int64_t best = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const T value = from[i * stride];
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
  for (std::int64_t i = 0; i < count; ++i) to[i] = convert<From, To>(from[i * stride]);
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

// WALLE_SET(op, T, index) for each type that a letter of kernels.inc stands for; index is the type's place in Compute.
#define WALLE_FILL_F(op) WALLE_SET(op, float, 0) WALLE_SET(op, double, 1)
#define WALLE_FILL_N(op) \
  WALLE_FILL_F(op) WALLE_SET(op, std::int32_t, 2) WALLE_SET(op, std::int64_t, 3) WALLE_SET(op, std::uint8_t, 4)
#define WALLE_FILL_B(op) WALLE_SET(op, bool, 5)
#define WALLE_FILL_A(op) WALLE_FILL_N(op) WALLE_FILL_B(op)
#define WALLE_EACH(op, types)                                \
  {                                                          \
    constexpr auto kOp = static_cast<std::size_t>(Enum::op); \
    WALLE_FILL_##types(op)                                   \
  }

template <class From>
void fill_casts(UnaryFn (&row)[kComputeCount]) noexcept {
#define WALLE_SET(op, T, index) row[index] = &cast<From, T>;
  WALLE_FILL_A(cast)
#undef WALLE_SET
}

}  // namespace

}  // namespace scalar

void fill_scalar(Table& table) noexcept {
  using namespace scalar;
  {
    using Enum = UnaryOp;
#define WALLE_SET(op, T, index) table.unary[kOp][index] = &unary<T, T, &op<T>>;
#define WALLE_UNARY WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_UNARY
#undef WALLE_SET
  }
  {
    using Enum = TestOp;
#define WALLE_SET(op, T, index) table.test[kOp][index] = &unary<T, bool, &op<T>>;
#define WALLE_TEST WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_TEST
#undef WALLE_SET
  }
  {
    using Enum = BinaryOp;
#define WALLE_SET(op, T, index) table.binary[kOp][index] = &binary<T, T, &op<T>>;
#define WALLE_BINARY WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_BINARY
#undef WALLE_SET
  }
  {
    using Enum = CompareOp;
#define WALLE_SET(op, T, index) table.compare[kOp][index] = &binary<T, bool, &op<T>>;
#define WALLE_COMPARE WALLE_EACH
#include "kernels/kernels.inc"
#undef WALLE_COMPARE
#undef WALLE_SET
  }
  {
    using Enum = ReduceOp;
#define WALLE_SET(op, T, index) table.reduce[kOp][index] = &reduce<T, std::string_view(#op) == "Add", &op<T>>;
#define WALLE_REDUCE(op, types, join)                        \
  {                                                          \
    constexpr auto kOp = static_cast<std::size_t>(Enum::op); \
    WALLE_FILL_##types(join)                                 \
  }
#include "kernels/kernels.inc"
#undef WALLE_REDUCE
#undef WALLE_SET
  }
  {
#define WALLE_SET(op, T, index)                                                     \
  table.arg[static_cast<std::size_t>(ArgOp::ArgMax)][index] = &arg<T, &Greater<T>>; \
  table.arg[static_cast<std::size_t>(ArgOp::ArgMin)][index] = &arg<T, &Less<T>>;
    WALLE_FILL_A(arg)
#undef WALLE_SET
  }
  fill_casts<float>(table.cast[0]);
  fill_casts<double>(table.cast[1]);
  fill_casts<std::int32_t>(table.cast[2]);
  fill_casts<std::int64_t>(table.cast[3]);
  fill_casts<std::uint8_t>(table.cast[4]);
  fill_casts<bool>(table.cast[5]);
  table.select[0] = &select<std::uint8_t>;
  table.select[1] = &select<std::uint16_t>;
  table.select[2] = &select<std::uint32_t>;
  table.select[3] = &select<std::uint64_t>;
#define WALLE_SET(op, T, index) table.gemm[index] = {&gemm<T>, &no_scratch};
  WALLE_FILL_N(gemm)
#undef WALLE_SET
#define WALLE_SET(op, T, index) table.axpy[index] = &axpy<T>;
  WALLE_FILL_N(axpy)
#undef WALLE_SET
}

}  // namespace walle
