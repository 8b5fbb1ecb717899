// The tile kernel of products over the including instruction set's vec.h (see PanelArgs): rows x blocks of accumulators stay in
// registers (eq. 4's tile under the register constraint), one column of A is broadcast against one row of weights. Tiles of few
// rows use separate accumulators for every second or fourth k, which shortens the dependency chain.
//
// `Product` multiplies an element of A with a row of w; elements have 32 bits: a float, or the type that the product interprets
// them as.
//
// For floats, against exact arithmetic: |error| <= (k + 2) * eps * sum |a| |w| per element.
struct FloatProduct {
  static constexpr bool kPackedSteps = true;  // rows of A are often one vector apart; such steps have separate tiles
  static Vec add(Vec factor, Vec columns, Vec sum) noexcept { return fma(factor, columns, sum); }
  static Vec joined(Vec sum, Vec other) noexcept { return sum + other; }
  static Vec bounded(Vec sum, Vec low, Vec high) noexcept { return min_or_second(high, max_or_second(low, sum)); }
};

// Weights that fit in no cache are prefetched this many floats ahead (16 KB), which is farther than the hardware prefetches. Past
// the end of the weights the prefetch has no effect.
inline constexpr std::int64_t kAhead = 4096, kLine = 16;

template <class Product, int kTileRows, int kBlocks, bool kPackedSteps>
void panel_tile(const PanelArgs& args, const float* a, float* out) noexcept {
  const std::int64_t a_step = kPackedSteps ? kLanes : args.a_step;
  const bool cut = args.width != kLanes;
  constexpr int kParts = kTileRows * kBlocks < 4 ? 4 : kTileRows * kBlocks < 8 ? 2 : 1;
  Vec all[kParts][kTileRows][kBlocks];
  auto& sums = all[0];
  const auto at = [&](const float* first, int row, int block) { return first + row * args.out_step + block * args.out_block; };
  const auto fetch = [&](const float* p, int block) { return cut && block == kBlocks - 1 ? load_first(p, args.width) : load(p); };
  if (args.accumulate) {
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 2
      for (int block = 0; block < kBlocks; ++block) sums[row][block] = fetch(at(out, row, block), block);
  } else {
#pragma GCC unroll 2
    for (int block = 0; block < kBlocks; ++block) {
      const Vec bias = args.finish.bias == nullptr ? set(0.0f) : fetch(args.finish.bias + block * kLanes, block);
#pragma GCC unroll 16
      for (int row = 0; row < kTileRows; ++row) sums[row][block] = bias;
    }
    if (args.finish.residual != nullptr) {
      const float* residual = args.finish.residual + (out - args.out);
#pragma GCC unroll 16
      for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 2
        for (int block = 0; block < kBlocks; ++block)
          sums[row][block] = add(sums[row][block], fetch(at(residual, row, block), block));
    }
  }
#pragma GCC unroll 4
  for (int part = 1; part < kParts; ++part)
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 2
      for (int block = 0; block < kBlocks; ++block) all[part][row][block] = set(0.0f);
  const float* w = args.w;
  for (std::int64_t s = 0; s < args.segment_count; ++s) {
    const float* from = a + args.segments[s].offset;
    const auto join = [&](std::int64_t k, Vec(&into)[kTileRows][kBlocks]) {
      Vec columns[kBlocks];
#pragma GCC unroll 2
      for (int block = 0; block < kBlocks; ++block) columns[block] = load(w + (k * kBlocks + block) * kLanes);
#pragma GCC unroll 2
      for (std::int64_t line = 0; line < kBlocks * kLanes; line += kLine)
        __builtin_prefetch(w + k * kBlocks * kLanes + kAhead + line);
#pragma GCC unroll 16
      for (int row = 0; row < kTileRows; ++row) {
        const Vec factor = set(from[k + row * a_step]);
#pragma GCC unroll 2
        for (int block = 0; block < kBlocks; ++block) into[row][block] = Product::add(factor, columns[block], into[row][block]);
      }
    };
    std::int64_t k = args.segments[s].length;
    for (; k >= kParts; k -= kParts, from += kParts, w += kParts * kBlocks * kLanes)
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) join(part, all[part]);
    for (; kParts > 1 && k > 0; --k, ++from, w += kBlocks * kLanes) join(0, sums);
  }
#pragma GCC unroll 4
  for (int part = 1; part < kParts; ++part)
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 2
      for (int block = 0; block < kBlocks; ++block) sums[row][block] = Product::joined(sums[row][block], all[part][row][block]);
  const Vec low = set(args.finish.low), high = set(args.finish.high);
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 2
    for (int block = 0; block < kBlocks; ++block) {
      const Vec result = Product::bounded(sums[row][block], low, high);
      float* to = out + row * args.out_step + block * args.out_block;
      if (cut && block == kBlocks - 1)
        store_first(to, result, args.width);
      else
        store(to, result);
    }
}

using TileFn = void (*)(const PanelArgs& args, const float* a, float* out) noexcept;
template <class Product, int kBlocks, bool kPackedSteps, class Heights>
struct Tiles;
// One entry for each height from 1 on. A plain array: a library's inline function compiled here could be linked in place of the
// baseline's.
template <class Product, int kBlocks, bool kPackedSteps, int... kRowsLessOne>
struct Tiles<Product, kBlocks, kPackedSteps, std::integer_sequence<int, kRowsLessOne...>> {
  static constexpr TileFn of[] = {&panel_tile<Product, kRowsLessOne + 1, kBlocks, kPackedSteps>...};
};

template <class Product, int kBlocks, int kMost>
void panel_of(const PanelArgs& args) noexcept {
  using Heights = std::make_integer_sequence<int, kMost>;
  const TileFn* tiles = Tiles<Product, kBlocks, false, Heights>::of;
  if constexpr (Product::kPackedSteps)
    if (args.a_step == kLanes) tiles = Tiles<Product, kBlocks, true, Heights>::of;
  // As few tiles as possible, of heights as equal as possible.
  std::int64_t left = args.rows, count = (args.rows + kMost - 1) / kMost, row = 0;
  for (; count > 0; --count) {
    const std::int64_t height = (left + count - 1) / count;
    tiles[height - 1](args, args.a + row * args.a_step, args.out + row * args.out_step);
    row += height;
    left -= height;
  }
}

template <class Product>
void panel_by(const PanelArgs& args) noexcept {
  if (args.blocks == 2)
    panel_of<Product, 2, kPairRows>(args);
  else
    panel_of<Product, 1, kSingleRows>(args);
}
inline void panel(const PanelArgs& args) noexcept { panel_by<FloatProduct>(args); }
