// Depthwise sums of rows over the including instruction set's vec.h (see DepthwiseRowArgs): a line's weights and a tile's sums
// stay in registers, and each pixel of the line is loaded once for the tile. And the gradient by the weights.

// Sums of kPixels outputs from output `at` on; kWhole: all pixels that they meet exist.
template <int kTaps, int kStride, int kPixels, bool kWhole>
void depthwise_tile(const DepthwiseRowArgs& args, std::int64_t at) noexcept {
  constexpr int kWidth = (kPixels - 1) * kStride + kTaps;
  Vec totals[kPixels];
  const Vec bias = args.finish.bias == nullptr ? set(0.0f) : load(args.finish.bias);
#pragma GCC unroll 8
  for (int i = 0; i < kPixels; ++i) totals[i] = bias;
  const float* in = args.in + at * kStride * kLanes;
  const std::int64_t first = args.first - at * kStride, last = args.last - at * kStride;
  for (std::int64_t line = 0; line < args.line_count; ++line) {
    const float* from = in + args.lines[line].offset;
    const float* w = args.w + args.lines[line].place;
    Vec weights[kTaps];
#pragma GCC unroll 8
    for (int k = 0; k < kTaps; ++k) weights[k] = load(w + k * kLanes);
#pragma GCC unroll 32
    for (int x = 0; x < kWidth; ++x) {
      if (!kWhole && (x < first || x >= last)) continue;
      const Vec pixel = load(from + x * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kPixels; ++i)
        if (x >= i * kStride && x < i * kStride + kTaps) totals[i] = fma(pixel, weights[x - i * kStride], totals[i]);
    }
  }
  const Vec low = set(args.finish.low), high = set(args.finish.high);
#pragma GCC unroll 8
  for (int i = 0; i < kPixels; ++i) {
    if (args.finish.residual != nullptr) totals[i] = add(totals[i], load(args.finish.residual + (at + i) * kLanes));
    store(args.out + (at + i) * kLanes, min_or_second(high, max_or_second(low, totals[i])));
  }
}

template <int kTaps, int kStride>
void depthwise_row_of(const DepthwiseRowArgs& args) noexcept {
  constexpr int kMost = 7;  // the sides of images are often multiples of it
  const std::int64_t last = args.last - kTaps;
  std::int64_t at = 0;
  for (; at + kMost <= args.count; at += kMost) {
    if (at * kStride >= args.first && (at + kMost - 1) * kStride <= last)
      depthwise_tile<kTaps, kStride, kMost, true>(args, at);
    else
      depthwise_tile<kTaps, kStride, kMost, false>(args, at);
  }
  if (at + 4 <= args.count) depthwise_tile<kTaps, kStride, 4, false>(args, at), at += 4;
  if (at + 2 <= args.count) depthwise_tile<kTaps, kStride, 2, false>(args, at), at += 2;
  if (at < args.count) depthwise_tile<kTaps, kStride, 1, false>(args, at);
}

inline void depthwise_row(const DepthwiseRowArgs& args) noexcept {
  static constexpr void (*kRows[4][2])(const DepthwiseRowArgs&) noexcept = {{&depthwise_row_of<1, 1>, &depthwise_row_of<1, 2>},
                                                                            {&depthwise_row_of<3, 1>, &depthwise_row_of<3, 2>},
                                                                            {&depthwise_row_of<5, 1>, &depthwise_row_of<5, 2>},
                                                                            {&depthwise_row_of<7, 1>, &depthwise_row_of<7, 2>}};
  kRows[args.taps / 2][args.stride - 1](args);
}

// Sums of kTaps taps, which stay in registers, for all pixels.
template <int kTaps>
void weight_taps(const DepthwiseWeightArgs& args, const Tap* taps) noexcept {
  Vec totals[kTaps];
  const float* from[kTaps];
#pragma GCC unroll 9
  for (int t = 0; t < kTaps; ++t) totals[t] = set(0.0f);
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* g = args.gradient + row * args.gradient_row;
#pragma GCC unroll 9
    for (int t = 0; t < kTaps; ++t) from[t] = args.in + row * args.in_row + taps[t].offset;
    for (std::int64_t i = 0; i < args.count; ++i) {
      const Vec gradient = load(g + i * kLanes);
#pragma GCC unroll 9
      for (int t = 0; t < kTaps; ++t) totals[t] = fma(gradient, load(from[t] + i * args.in_step), totals[t]);
    }
  }
#pragma GCC unroll 9
  for (int t = 0; t < kTaps; ++t) store(args.sums + taps[t].place, add(load(args.sums + taps[t].place), totals[t]));
}

inline void depthwise_weights(const DepthwiseWeightArgs& args) noexcept {
  std::int64_t t = 0;
  for (; t + 9 <= args.tap_count; t += 9) weight_taps<9>(args, args.taps + t);
  for (; t + 3 <= args.tap_count; t += 3) weight_taps<3>(args, args.taps + t);
  for (; t < args.tap_count; ++t) weight_taps<1>(args, args.taps + t);
}
