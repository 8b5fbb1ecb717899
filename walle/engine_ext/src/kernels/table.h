// The kernel table: what an instruction set's folder fills and everything above calls. Kernels never throw or allocate.
// Strides are in elements; lengths may be 0; outputs alias no input unless a kernel says otherwise.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"

namespace walle {

// The types that kernels take; the others are stored and converted. float16 and bfloat16 are computed in float32, rounded once.
enum class Compute : std::uint8_t { f32, f64, i32, i64, u8, b8, i8, i16, u16, u32, u64, f16, bf16 };
inline constexpr int kComputeCount = 13;
inline constexpr DType kComputeTypes[kComputeCount] = {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8,
                                                       DType::b8,  DType::i8,  DType::i16, DType::u16, DType::u32,
                                                       DType::u64, DType::f16, DType::bf16};
// -1 for a dtype that no kernel computes in.
constexpr int compute_index(DType dtype) noexcept {
  for (int i = 0; i < kComputeCount; ++i)
    if (kComputeTypes[i] == dtype) return i;
  return -1;
}
// The types that are stored only, from float8e4m3fn on; -1 for one that kernels compute in.
inline constexpr int kStoredCount = kDTypeCount - kComputeCount;
constexpr int stored_index(DType dtype) noexcept {
  return dtype < DType::f8e4m3fn ? -1 : static_cast<int>(dtype) - kComputeCount;
}
// How a float becomes one of them: [0] saturating, [1] not; for float8e8m0 these two for each Rounding in turn.
inline constexpr int kEncodings = 6;

#define WALLE_NAME1(op, types) op,
#define WALLE_NAME2(op, types, join) op,
enum class UnaryOp : std::uint8_t {
#define WALLE_UNARY WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_UNARY
  kCount
};
enum class BinaryOp : std::uint8_t {
#define WALLE_BINARY WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_BINARY
  kCount
};
enum class CompareOp : std::uint8_t {
#define WALLE_COMPARE WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_COMPARE
  kCount
};
enum class TestOp : std::uint8_t {
#define WALLE_TEST WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_TEST
  kCount
};
enum class ReduceOp : std::uint8_t {
#define WALLE_REDUCE WALLE_NAME2
#include "kernels/kernels.inc"
#undef WALLE_REDUCE
  kCount
};
enum class ArgOp : std::uint8_t {
#define WALLE_ARG WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_ARG
  kCount
};
#undef WALLE_NAME1
#undef WALLE_NAME2

// out[i] = f(in[i * stride]) for i < count; out is contiguous and may be `in` where stride is 1.
using UnaryFn = void (*)(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept;
// out[i] = f(a[i * a_stride], b[i * b_stride]); out is contiguous and may be `a` or `b` where that stride is 1.
using BinaryFn = void (*)(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
                          std::int64_t count) noexcept;
// out[0] = f over in[i * stride], count >= 1. Floating sums go over to float64 at least every
// 1024 elements and are rounded once at the end.
using ReduceFn = void (*)(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept;
// out[i] = where[i] ? a[i] : b[i], by item size.
using SelectFn = void (*)(const void* where, std::int64_t where_stride, const void* a, std::int64_t a_stride, const void* b,
                          std::int64_t b_stride, void* out, std::int64_t count) noexcept;

// out[i] += factor[0] * in[i * stride]; in and out do not overlap.
using AxpyFn = void (*)(const void* factor, const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept;

// out[m, n] = sum_k a[m, k] * b[k, n]; a and b with any strides, out with rows `out_row` apart; m, n, k >= 0.
struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  std::int64_t a_row = 0, a_col = 0;
  const void* b = nullptr;
  std::int64_t b_row = 0, b_col = 0;
  void* out = nullptr;
  std::int64_t out_row = 0;
  void* scratch = nullptr;  // scratch_bytes(m, n, k), aligned to 64
};
struct Gemm {
  // Against exact arithmetic: |error| <= 2 * k * eps * (|a| @ |b|) per element.
  void (*run)(const GemmArgs& args) noexcept;
  std::size_t (*scratch_bytes)(std::int64_t m, std::int64_t n, std::int64_t k) noexcept;
};

template <class Op>
inline constexpr std::size_t kCountOf = static_cast<std::size_t>(Op::kCount);

struct ImageTable;  // kernels/image.h

// A null entry means: no kernel for that element type.
struct Table {
  std::string_view name;
  int lanes = 1;  // floats in one vector
  UnaryFn unary[kCountOf<UnaryOp>][kComputeCount] = {};
  UnaryFn test[kCountOf<TestOp>][kComputeCount] = {};
  BinaryFn binary[kCountOf<BinaryOp>][kComputeCount] = {};
  BinaryFn compare[kCountOf<CompareOp>][kComputeCount] = {};
  ReduceFn reduce[kCountOf<ReduceOp>][kComputeCount] = {};
  ReduceFn arg[kCountOf<ArgOp>][kComputeCount] = {};
  UnaryFn cast[kComputeCount][kComputeCount] = {};  // [from][to]
  UnaryFn to_odd[kComputeCount] = {};               // to float32, rounded so that rounding again is rounding once (round_to_odd)
  UnaryFn decode[kStoredCount] = {};                // to float32
  UnaryFn encode[kStoredCount][kEncodings] = {};    // from float32; to whole numbers from int32, of which the low bits are kept
  SelectFn select[4] = {};                          // [log2 of the item size]
  Gemm gemm[kComputeCount] = {};
  AxpyFn axpy[kComputeCount] = {};
  const ImageTable* image = nullptr;
};

// Filled by each instruction set's folder, in the order of preference that dispatch.cpp gives.
void fill_scalar(Table& table) noexcept;
void fill_avx2(Table& table) noexcept;
void fill_avx512(Table& table) noexcept;

struct Backend {
  std::string_view name;
  bool available;  // on this CPU
};
std::span<const Backend> backends() noexcept;

// The table of the best instruction set of this CPU, or of the one that WALLE_FORCE_ISA names; decided once a process.
// Throws Error (backend) for a forced name that is unknown or that the CPU lacks.
const Table& kernels();
// The table of one backend; "auto" means kernels(). Throws Error (backend) as above.
const Table& kernels(std::string_view backend);

}  // namespace walle
