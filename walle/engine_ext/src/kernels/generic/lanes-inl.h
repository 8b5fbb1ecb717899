// Channel-wise kernels of packed layouts over the including instruction set's vec.h (see LaneArgs): depthwise convolution and
// pooling. A few pixels are processed at a time, so that they share one load of weights.

inline constexpr int kPixels = 6;

struct SumOfProducts {
  static Vec first() noexcept { return set(0.0f); }
  static Vec join(Vec total, Vec in, const float* w) noexcept { return fma(in, load(w), total); }
};
struct SumOfAll {
  static Vec first() noexcept { return set(0.0f); }
  static Vec join(Vec total, Vec in, const float*) noexcept { return add(total, in); }
};
struct Greatest {
  static Vec first() noexcept { return set(-__builtin_inff()); }
  static Vec join(Vec total, Vec in, const float*) noexcept { return MaximumOp::of(total, in); }
};

template <class Op, int kCount>
void join_taps(const LaneArgs& args, const float* in, Vec (&totals)[kCount]) noexcept {
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) totals[i] = Op::first();
  for (std::int64_t t = 0; t < args.tap_count; ++t) {
    const float* from = in + args.taps[t].offset;
    const float* w = args.w + args.taps[t].place;
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) totals[i] = Op::join(totals[i], load(from + i * args.in_step), w);
  }
}

template <int kCount>
void finish_lanes(const LaneArgs& args, std::int64_t at, Vec (&totals)[kCount]) noexcept {
  const Vec low = set(args.finish.low), high = set(args.finish.high);
  const Vec bias = args.finish.bias == nullptr ? set(0.0f) : load(args.finish.bias);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    totals[i] = add(totals[i], bias);
    if (args.finish.residual != nullptr) totals[i] = add(totals[i], load(args.finish.residual + (at + i) * kLanes));
    store(args.out + (at + i) * kLanes, min_or_second(high, max_or_second(low, totals[i])));
  }
}

inline void depthwise(const LaneArgs& args) noexcept {
  std::int64_t at = 0;
  for (; at + kPixels <= args.count; at += kPixels) {
    Vec totals[kPixels];
    join_taps<SumOfProducts>(args, args.in + at * args.in_step, totals);
    finish_lanes(args, at, totals);
  }
  for (; at < args.count; ++at) {
    Vec totals[1];
    join_taps<SumOfProducts>(args, args.in + at * args.in_step, totals);
    finish_lanes(args, at, totals);
  }
}

// The same for pooling. A sum of many taps is one of partial sums: errors grow with a block of taps, not with all.
template <class Op, bool kSum, int kCount>
void pool_taps(const LaneArgs& args, const float* in, Vec (&totals)[kCount]) noexcept {
  constexpr std::int64_t kBlock = 64;
  if (!kSum || args.tap_count <= kBlock) return join_taps<Op>(args, in, totals);
  LaneArgs part = args;
  part.tap_count = kBlock;
  join_taps<Op>(part, in, totals);
  for (std::int64_t done = kBlock; done < args.tap_count; done += kBlock) {
    part.taps = args.taps + done;
    part.tap_count = args.tap_count - done < kBlock ? args.tap_count - done : kBlock;
    Vec more[kCount];
    join_taps<Op>(part, in, more);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) totals[i] = add(totals[i], more[i]);
  }
}

template <class Op, bool kScaled>
void pool(const LaneArgs& args) noexcept {
  const Vec scale = set(kScaled ? args.w[0] : 1.0f);
  const auto put = [&](std::int64_t at, Vec total) { store(args.out + at * kLanes, kScaled ? mul(total, scale) : total); };
  std::int64_t at = 0;
  for (; at + kPixels <= args.count; at += kPixels) {
    Vec totals[kPixels];
    pool_taps<Op, kScaled>(args, args.in + at * args.in_step, totals);
#pragma GCC unroll 8
    for (int i = 0; i < kPixels; ++i) put(at + i, totals[i]);
  }
  for (; at < args.count; ++at) {
    Vec totals[1];
    pool_taps<Op, kScaled>(args, args.in + at * args.in_step, totals);
    put(at, totals[0]);
  }
}
inline void pool_max(const LaneArgs& args) noexcept { pool<Greatest, false>(args); }
inline void pool_sum(const LaneArgs& args) noexcept { pool<SumOfAll, true>(args); }
