// Function that replaces scalar kernels in a table by the vector kernels of the including instruction set.

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
  WALLE_FAST(Softplus)
  WALLE_FAST(Erf)
  WALLE_FAST(Floor)
  WALLE_FAST(Ceil)
  WALLE_FAST(Round)
  WALLE_FAST(Log)
  WALLE_FAST(Log2)
  WALLE_FAST(Log10)
  WALLE_FAST(Log1p)
  WALLE_FAST(Asinh)
  WALLE_FAST(Acosh)
  WALLE_FAST(Atanh)
  WALLE_FAST(Expm1)
  WALLE_FAST(Sinh)
  WALLE_FAST(Cosh)
  WALLE_FAST(Exp2)
  WALLE_FAST(Atan)
  WALLE_FAST(Asin)
  WALLE_FAST(Acos)
  WALLE_FAST(Cbrt)
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
  WALLE_FAST(Atan2)
  WALLE_FAST(LogAddExp)
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
  table.gemm[0] = {&gemm, &gemm_scratch_bytes, true, true};
  table.gemm[1] = {&double_gemm, &double_gemm_scratch, true};
  table.axpy[0] = &axpy;
  table.channels[0] = &kChannels;
#define WALLE_MAP(op, ...) table.map[static_cast<std::size_t>(MapOp::op)] = &map<op##Map>;
#include "kernels/kernels.inc"
#undef WALLE_MAP
  table.prelu = &prelu;
  table.softmax = &softmax<false>;
  table.log_softmax = &softmax<true>;
  table.layer_norm = &normalise<true>;
  table.rms_norm = &normalise<false>;
  table.sum_rows = &sum_rows;
  table.transpose = &transpose;
  table.permute_lanes = &permute_lanes;
  table.lanes = kLanes;
  table.pack = kLanes;
  table.panel = &panel;
  table.depthwise = &depthwise;
  table.depthwise_row = &depthwise_row;
  table.depthwise_weights = &depthwise_weights;
  table.pool_max = &pool_max;
  table.pool_sum = &pool_sum;
  table.peak = &peak;
  fill_winograd<0>(table);
}
