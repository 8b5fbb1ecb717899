// Reductions of elements of all types, and the position of the best, in plain code that the compiler vectorises; built with -O3,
// which keeps the partial results in registers. Included after find-best-inl.h and loops-inl.h, whose functions it needs.

// Number of partial results, enough to fill a few vectors.
template <class T>
inline constexpr std::int64_t kPartials = 256 / static_cast<std::int64_t>(sizeof(T));

template <class T, class Op>
void loop_reduce(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  const auto* from = static_cast<const T*>(in);
  constexpr std::int64_t n = kPartials<T>;
  T result = from[0];
  std::int64_t i = 1;
  if (stride == 1 && count >= 2 * n) {
    T part[n];
    for (std::int64_t j = 0; j < n; ++j) part[j] = from[j];
    for (i = n; i + n <= count; i += n)
      for (std::int64_t j = 0; j < n; ++j) part[j] = Op::of(part[j], from[i + j]);
    for (std::int64_t half = n / 2; half > 0; half /= 2)
      for (std::int64_t j = 0; j < half; ++j) part[j] = Op::of(part[j], part[j + half]);
    result = part[0];
  }
  for (; i < count; ++i) result = Op::of(result, from[i * stride]);
  *static_cast<T*>(out) = result;
}

// The best value is found first, then its position.
template <class T, bool greatest>
void loop_arg(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  T best;
  loop_reduce<T, std::conditional_t<greatest, MaximumLoop, MinimumLoop>>(in, stride, count, &best);
  *static_cast<std::int64_t*>(out) = find_best(static_cast<const T*>(in), stride, count, best);
}

template <class T>
void fill_extremes_of(Table& table, std::size_t type) noexcept {
  table.arg[static_cast<std::size_t>(ArgOp::ArgMax)][type] = &loop_arg<T, true>;
  table.arg[static_cast<std::size_t>(ArgOp::ArgMin)][type] = &loop_arg<T, false>;
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceMax)][type] = &loop_reduce<T, MaximumLoop>;
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceMin)][type] = &loop_reduce<T, MinimumLoop>;
}

template <class T>
void fill_reductions_of(Table& table, std::size_t type) noexcept {
  fill_extremes_of<T>(table, type);
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceProd)][type] = &loop_reduce<T, MulLoop>;
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceSum)][type] = &loop_reduce<T, AddLoop>;
}

// Elements of one and two bytes.
inline void fill_narrow_reductions(Table& table) noexcept {
  fill_reductions_of<std::uint8_t>(table, 4);
  fill_extremes_of<std::uint8_t>(table, 5);  // a bool is a byte of 0 or 1
  fill_reductions_of<std::int8_t>(table, 6);
  fill_reductions_of<std::int16_t>(table, 7);
  fill_reductions_of<std::uint16_t>(table, 8);
}

// Elements of four and eight bytes. Call before fill_all, which replaces float32's.
inline void fill_wide_reductions(Table& table) noexcept {
  fill_extremes_of<float>(table, 0);
  fill_extremes_of<double>(table, 1);
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceSum)][1] = &loop_reduce<double, AddLoop>;
  fill_reductions_of<std::int32_t>(table, 2);
  fill_reductions_of<std::int64_t>(table, 3);
  fill_reductions_of<std::uint32_t>(table, 9);
  fill_reductions_of<std::uint64_t>(table, 10);
}
