// Kernels of elements of four and eight bytes, and conversions, from loops-inl.h.

// Call before fill_all, which replaces some of these by float32's own kernels.
void fill_wide_loops(Table& table) noexcept {
  fill_arithmetic_of<float>(table, 0);
  fill_arithmetic_of<double>(table, 1);
  fill_integers_of<std::int32_t>(table, 2);
  fill_integers_of<std::int64_t>(table, 3);
  table.binary[static_cast<std::size_t>(BinaryOp::Div)][1] = &loop_binary<double, double, DivLoop>;
  table.binary[static_cast<std::size_t>(BinaryOp::CopySign)][0] = &loop_binary<float, float, CopySignLoop>;
  table.binary[static_cast<std::size_t>(BinaryOp::CopySign)][1] = &loop_binary<double, double, CopySignLoop>;
#define WALLE_FAST(op, loop) table.unary[static_cast<std::size_t>(UnaryOp::op)][1] = &loop_unary<double, double, loop##Loop>;
  WALLE_FAST(Abs, WideAbs)
  WALLE_FAST(Sqrt, WideSqrt)
  WALLE_FAST(Floor, WideFloor)
  WALLE_FAST(Ceil, WideCeil)
  WALLE_FAST(Trunc, WideTrunc)
  WALLE_FAST(Round, WideRound)
  WALLE_FAST(Reciprocal, Reciprocal)
#undef WALLE_FAST
  table.unary[static_cast<std::size_t>(UnaryOp::Abs)][0] = &loop_unary<float, float, FloatAbsLoop>;
  table.unary[static_cast<std::size_t>(UnaryOp::Trunc)][0] = &loop_unary<float, float, TruncLoop>;
#define WALLE_FAST(op)                                                                         \
  table.unary[static_cast<std::size_t>(UnaryOp::op)][0] = &loop_unary<float, float, op##Loop>; \
  table.unary[static_cast<std::size_t>(UnaryOp::op)][1] = &loop_unary<double, double, op##Loop>;
  WALLE_FAST(Mantissa)
  WALLE_FAST(Exponent)
  WALLE_FAST(Spacing)
#undef WALLE_FAST
  table.binary[static_cast<std::size_t>(BinaryOp::NextAfter)][0] = &loop_binary<float, float, NextAfterLoop>;
  table.binary[static_cast<std::size_t>(BinaryOp::NextAfter)][1] = &loop_binary<double, double, NextAfterLoop>;
  table.binary[static_cast<std::size_t>(BinaryOp::ScaleByPower)][0] = &loop_binary<float, float, ScaleByPowerLoop>;
#define WALLE_FAST(op)                                                                              \
  table.test[static_cast<std::size_t>(TestOp::op)][0] = &loop_unary<float, std::uint8_t, op##Loop>; \
  table.test[static_cast<std::size_t>(TestOp::op)][1] = &loop_unary<double, std::uint8_t, op##Loop>;
  WALLE_FAST(IsNaN)
  WALLE_FAST(IsInfinite)
  WALLE_FAST(IsFinite)
  WALLE_FAST(SignBit)
#undef WALLE_FAST
  fill_loop_casts<float>(table.cast[0]);
  fill_loop_casts<double>(table.cast[1]);
  fill_loop_casts<std::int32_t>(table.cast[2]);
  fill_loop_casts<std::int64_t>(table.cast[3]);
  fill_loop_casts<std::uint8_t>(table.cast[4]);  // most become wide
  fill_loop_casts<std::uint8_t>(table.cast[5]);
  table.select[2] = &loop_select<std::uint32_t>;
  table.select[3] = &loop_select<std::uint64_t>;
}
