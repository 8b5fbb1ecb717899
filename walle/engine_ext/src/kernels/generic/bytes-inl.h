// Kernels of bytes over the including instruction set's vec.h and bytes-vec.h (see Bytes in kernels/bytes.h); the tile kernel is
// in panel-inl.h. Vectors of floats hold 32-bit integers by their bits.

// Channel-wise steps: a tile of pixels shares each tap's weights.
template <int kTileRows, int kBlocks>
void depth_tile(const PanelArgs& args, std::int64_t row) noexcept {
  Vec sums[kTileRows][kBlocks];
#pragma GCC unroll 2
  for (int block = 0; block < kBlocks; ++block) {
    const Vec bias = args.finish.bias == nullptr ? set(0.0f) : load(args.finish.bias + block * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) sums[i][block] = bias;
  }
  const float *a = args.a + row * args.a_step, *w = args.w;
  for (std::int64_t s = 0; s < args.segment_count; ++s, w += kBlocks * kLanes) {
    Vec weights[kBlocks];
#pragma GCC unroll 2
    for (int block = 0; block < kBlocks; ++block) weights[block] = load(w + block * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(a + i * args.a_step + args.segments[s].offset);
#pragma GCC unroll 2
      for (int block = 0; block < kBlocks; ++block)
        sums[i][block] = plus_product(sums[i][block], widened(from + block * kLanes), weights[block]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 2
    for (int block = 0; block < kBlocks; ++block)
      store(args.out + (row + i) * args.out_step + block * args.out_block, sums[i][block]);
}

template <int kBlocks>
void depth_rows(const PanelArgs& args) noexcept {
  constexpr int kTileRows = 4;
  std::int64_t row = 0;
  for (; row + kTileRows <= args.rows; row += kTileRows) depth_tile<kTileRows, kBlocks>(args, row);
  for (; row < args.rows; ++row) depth_tile<1, kBlocks>(args, row);
}
inline void depthwise(const PanelArgs& args) noexcept {
  if (args.blocks == 2)
    depth_rows<2>(args);
  else
    depth_rows<1>(args);
}

// The bounds keep the rounded value within int32.
struct ByteMaker {
  Vec low, high, zero;
  explicit ByteMaker(const ByteRange& range) noexcept : low(set(range.low)), high(set(range.high)), zero(whole(range.zero)) {}
  Vec operator()(Vec value) const noexcept { return add_whole(rounded(min_or_second(max_or_second(value, low), high)), zero); }
};

inline void finish_bytes(const BytesFinish& args) noexcept {
  const ByteMaker made(args.range);
  for (std::int64_t column = 0; column < args.columns; column += kLanes) {
    const std::int64_t width = args.columns - column < kLanes ? args.columns - column : kLanes;
    const float* sums = args.sums + column;
    if (args.scale == nullptr) {
      float* out = static_cast<float*>(args.out) + column;
      for (std::int64_t row = 0; row < args.rows; ++row)
        store_first(out + row * args.row_step, load(sums + row * 2 * kLanes), width);
      continue;
    }
    const Vec scale = load(args.scale + column);
    auto* out = static_cast<std::uint8_t*>(args.out) + column;
    for (std::int64_t row = 0; row < args.rows; ++row)
      store_bytes(out + row * args.row_step, made(mul(to_floats(load(sums + row * 2 * kLanes)), scale)), width);
  }
}

inline void sum_bytes(const BytesSum& args) noexcept {
  const ByteMaker made(args.range);
  const Vec first = set(args.scale[0]), second = set(args.scale[1]);
  const auto centred = [&](int k, std::int64_t i, std::int64_t width) {
    const Vec bytes = flipped(width == kLanes ? widened(args.in[k] + i) : widened_first(args.in[k] + i, width), args.flip[k]);
    return to_floats(add_whole(bytes, whole(-args.zero[k])));
  };
  for (std::int64_t i = 0; i < args.count; i += kLanes) {
    const std::int64_t width = args.count - i < kLanes ? args.count - i : kLanes;
    store_bytes(args.out + i, made(fma(centred(0, i, width), first, mul(centred(1, i, width), second))), width);
  }
}

inline void round_bytes(const BytesRound& args) noexcept {
  const ByteMaker made(args.range);
  const Vec scale = set(args.scale);
  for (std::int64_t i = 0; i < args.count; i += kLanes) {
    const std::int64_t width = args.count - i < kLanes ? args.count - i : kLanes;
    const Vec value = div(width == kLanes ? load(args.in + i) : load_first(args.in + i, width), scale);
    store_bytes(args.out + i, choose(is_nan(value), set(0.0f), made(value)), width);
  }
}

void panel_quads(const PanelArgs& args) noexcept { panel_by<QuadProduct>(args); }

constexpr Bytes bytes_named(std::string_view name) noexcept {
  return {name, kLanes, &panel_quads, &depthwise, &finish_bytes, &sum_bytes, &round_bytes};
}
