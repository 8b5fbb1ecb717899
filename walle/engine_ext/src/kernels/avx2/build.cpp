// The avx2 backend: generic/ compiled over avx2/vec.h inside one target region and namespace, so that no inline function
// built with these instructions can stand in for the baseline's at link time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace walle::avx2 {
namespace {
// The scalar loops, for the strides that vectors do not serve; filled before any kernel runs.
template <UnaryOp op>
UnaryFn plain_unary = nullptr;
template <BinaryOp op>
BinaryFn plain_binary = nullptr;
template <ReduceOp op>
ReduceFn plain_reduce = nullptr;

#include "kernels/avx2/vec.h"
#include "kernels/generic/axpy-inl.h"
#include "kernels/generic/elementwise-inl.h"
#include "kernels/generic/gemm-inl.h"

}  // namespace

void fill(Table& table) noexcept {
#define WALLE_FAST(op)                                                      \
  {                                                                         \
    UnaryFn& entry = table.unary[static_cast<std::size_t>(UnaryOp::op)][0]; \
    plain_unary<UnaryOp::op> = entry;                                       \
    entry = &unary<op##Op, &plain_unary<UnaryOp::op>>;                      \
  }
  WALLE_FAST(Neg)
  WALLE_FAST(Abs)
  WALLE_FAST(Square)
  WALLE_FAST(Relu)
  WALLE_FAST(Exp)
  WALLE_FAST(Sqrt)
  WALLE_FAST(Rsqrt)
  WALLE_FAST(Reciprocal)
  WALLE_FAST(Tanh)
  WALLE_FAST(Sigmoid)
  WALLE_FAST(Floor)
  WALLE_FAST(Ceil)
  WALLE_FAST(Round)
#undef WALLE_FAST
#define WALLE_FAST(op)                                                         \
  {                                                                            \
    BinaryFn& entry = table.binary[static_cast<std::size_t>(BinaryOp::op)][0]; \
    plain_binary<BinaryOp::op> = entry;                                        \
    entry = &binary<op##Op, &plain_binary<BinaryOp::op>>;                      \
  }
  WALLE_FAST(Add)
  WALLE_FAST(Sub)
  WALLE_FAST(Mul)
  WALLE_FAST(Div)
  WALLE_FAST(Maximum)
  WALLE_FAST(Minimum)
#undef WALLE_FAST
  ReduceFn& sum_entry = table.reduce[static_cast<std::size_t>(ReduceOp::ReduceSum)][0];
  plain_reduce<ReduceOp::ReduceSum> = sum_entry;
  sum_entry = &reduce_sum<&plain_reduce<ReduceOp::ReduceSum>>;
  ReduceFn& max_entry = table.reduce[static_cast<std::size_t>(ReduceOp::ReduceMax)][0];
  plain_reduce<ReduceOp::ReduceMax> = max_entry;
  max_entry = &reduce_lanes<MaximumOp, &plain_reduce<ReduceOp::ReduceMax>>;
  ReduceFn& min_entry = table.reduce[static_cast<std::size_t>(ReduceOp::ReduceMin)][0];
  plain_reduce<ReduceOp::ReduceMin> = min_entry;
  min_entry = &reduce_lanes<MinimumOp, &plain_reduce<ReduceOp::ReduceMin>>;
  table.gemm[0] = {&gemm, &gemm_scratch_bytes};
  table.axpy[0] = &axpy;
  table.lanes = kLanes;
}

}  // namespace walle::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace walle {
void fill_avx2(Table& table) noexcept { avx2::fill(table); }
}  // namespace walle
#endif
