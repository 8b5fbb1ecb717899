// Kernels of bytes over the including instruction set's vec.h (see Bytes in kernels/bytes.h); the tile kernel is panel-inl.h's.

inline void quads(const std::uint8_t* const (&planes)[4], std::uint8_t flip, std::int64_t count, float* out,
                  std::int64_t out_step) noexcept {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t width = count - i < kLanes ? count - i : kLanes;
    store_apart(out + i * out_step, quad(planes[0] + i, planes[1] + i, planes[2] + i, planes[3] + i, flip, width), out_step,
                width);
  }
}

template <bool kScaled>
inline void put_sums(const BytesFinish& args, std::int64_t at, Vec v, std::int64_t count) noexcept {
  if constexpr (kScaled)
    store_bytes(static_cast<std::uint8_t*>(args.out) + at, v, count);
  else
    store_first(static_cast<float*>(args.out) + at, v, count);
}

// Lanes are columns; where the rows of a column are neighbours in `out`, a square of sums is turned first.
template <bool kScaled>
void finish_block(const BytesFinish& args, std::int64_t column, Vec scale) noexcept {
  const std::int64_t width = args.columns - column < kLanes ? args.columns - column : kLanes;
  const auto made = [&](std::int64_t row) {
    const Vec sums = load(args.sums + row * 2 * kLanes + column);
    return kScaled ? quantised(sums, scale, args.zero, args.low, args.high) : sums;
  };
  if (args.column_step == 1) {
    for (std::int64_t row = 0; row < args.rows; ++row) put_sums<kScaled>(args, row * args.row_step + column, made(row), width);
    return;
  }
  for (std::int64_t row = 0; row < args.rows; row += kLanes) {
    const std::int64_t height = args.rows - row < kLanes ? args.rows - row : kLanes;
    Vec tile[kLanes];
    for (std::int64_t i = 0; i < kLanes; ++i) tile[i] = made(row + (i < height ? i : 0));
    transpose_lanes(tile);
    for (std::int64_t j = 0; j < width; ++j)
      put_sums<kScaled>(args, row * args.row_step + (column + j) * args.column_step, tile[j], height);
  }
}

inline void finish_bytes(const BytesFinish& args) noexcept {
  for (std::int64_t column = 0; column < args.columns; column += kLanes) {
    if (args.scale == nullptr)
      finish_block<false>(args, column, set(0.0f));
    else
      finish_block<true>(args, column, load(args.scale + column));
  }
}
