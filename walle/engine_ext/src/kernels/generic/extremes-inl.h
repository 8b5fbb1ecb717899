// Greatest and least element of float32, its position, and float32 to bytes: vectors for what plain loops do slowly.

// float32, four vectors at once; the scalar loop combines the remainder.
template <class Op, ReduceOp op>
void reduce_extreme(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  if (stride != 1 || count < 8 * kLanes) return (*plain_reduce<op>)(in, stride, count, out);
  const auto* from = static_cast<const float*>(in);
  Vec best[4];
  for (std::int64_t j = 0; j < 4; ++j) best[j] = load(from + j * kLanes);
  std::int64_t i = 4 * kLanes;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (std::int64_t j = 0; j < 4; ++j) best[j] = Op::of(best[j], load(from + i + j * kLanes));
  float rest[8 * kLanes];
  for (std::int64_t j = 0; j < 4; ++j) store(rest + j * kLanes, best[j]);
  std::int64_t left = 4 * kLanes;
  for (; i < count; ++i) rest[left++] = from[i];
  (*plain_reduce<op>)(rest, 1, left, out);
}

template <bool greatest>
void arg_extreme(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  float best;
  greatest ? reduce_extreme<MaximumOp, ReduceOp::ReduceMax>(in, stride, count, &best)
           : reduce_extreme<MinimumOp, ReduceOp::ReduceMin>(in, stride, count, &best);
  *static_cast<std::int64_t*>(out) = find_best(static_cast<const float*>(in), stride, count, best);
}

// float32 to bytes: clamped in vectors (NaN gives 0), then converted in a plain loop.
inline void cast_bytes(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const float*>(in);
  auto* to = static_cast<std::uint8_t*>(out);
  constexpr std::int64_t kBlock = 512;
  float bounded[kBlock];
  for (std::int64_t start = 0; start < count; start += kBlock) {
    const std::int64_t size = start + kBlock < count ? kBlock : count - start;
    const float* x = from + start;
    if (stride != 1) {
      for (std::int64_t i = 0; i < size; ++i) bounded[i] = from[(start + i) * stride];
      x = bounded;
    }
    for (std::int64_t i = 0; i < size; i += kLanes) {
      const std::int64_t width = i + kLanes < size ? kLanes : size - i;
      store_first(bounded + i, min_or_second(max_or_second(load_first(x + i, width), set(0.0f)), set(255.0f)), width);
    }
    for (std::int64_t i = 0; i < size; ++i) to[start + i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(bounded[i]));
  }
}

// Call after fill(), some of whose kernels these replace.
void fill_extremes(Table& table) noexcept {
  table.arg[static_cast<std::size_t>(ArgOp::ArgMax)][0] = &arg_extreme<true>;
  table.arg[static_cast<std::size_t>(ArgOp::ArgMin)][0] = &arg_extreme<false>;
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceMax)][0] = &reduce_extreme<MaximumOp, ReduceOp::ReduceMax>;
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceMin)][0] = &reduce_extreme<MinimumOp, ReduceOp::ReduceMin>;
  table.cast[0][4] = &cast_bytes;
}
