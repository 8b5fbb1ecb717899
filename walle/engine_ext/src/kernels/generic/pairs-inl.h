// Conversion of floats to pairs of bfloat16, over the including instruction set's vec.h (see Bfloat16 in kernels/bfloat16.h).

inline void narrow(const float* in, std::int64_t in_step, std::int64_t rows, std::int64_t columns, float* out,
                   std::int64_t out_step) noexcept {
  if (in_step == columns && columns % 2 == 0 && out_step * 2 == columns) {  // one row
    columns *= rows;
    rows = 1;
  }
  for (; rows > 0; --rows, in += in_step, out += out_step) {
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= columns; i += 2 * kLanes) store(out + i / 2, narrowed(load(in + i), load(in + i + kLanes)));
    const std::int64_t left = columns - i;
    if (left == 0) continue;
    const Vec first = load_first(in + i, left < kLanes ? left : kLanes);
    const Vec second = left > kLanes ? load_first(in + i + kLanes, left - kLanes) : set(0.0f);
    store_first(out + i / 2, narrowed(first, second), (left + 1) / 2);
  }
}

inline void pair(const float* low, const float* high, std::int64_t count, float* out, std::int64_t out_step) noexcept {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t width = count - i < kLanes ? count - i : kLanes;
    const Vec pairs = paired(load_first(low + i, width), high == nullptr ? set(0.0f) : load_first(high + i, width));
    store_apart(out + i * out_step, pairs, out_step, width);
  }
}
