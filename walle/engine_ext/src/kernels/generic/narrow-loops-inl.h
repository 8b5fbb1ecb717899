// Kernels of elements of one and two bytes, from loops-inl.h.

void fill_narrow_loops(Table& table) noexcept {
  fill_integers_of<std::uint8_t>(table, 4);
  fill_integers_of<std::int8_t>(table, 6);
  fill_integers_of<std::int16_t>(table, 7);
  fill_integers_of<std::uint16_t>(table, 8);
  fill_loops_of<std::uint8_t>(table, 5);  // a bool is a byte of 0 or 1
#define WALLE_FAST(op, loop) \
  table.binary[static_cast<std::size_t>(BinaryOp::op)][5] = &loop_binary<std::uint8_t, std::uint8_t, loop##Loop>;
  WALLE_FAST(And, BitwiseAnd)
  WALLE_FAST(Or, BitwiseOr)
  WALLE_FAST(Xor, BitwiseXor)
#undef WALLE_FAST
  table.unary[static_cast<std::size_t>(UnaryOp::Not)][5] = &loop_unary<std::uint8_t, std::uint8_t, NotLoop>;
  table.select[0] = &loop_select<std::uint8_t>;
  table.select[1] = &loop_select<std::uint16_t>;
}
