// Winograd's input and output transforms over the including instruction set's vec.h (see WinogradArgs): a lane is a channel, so
// every step of both is elementwise. A point and its negative share their sums: one over the even positions and one over the odd
// ones.
//
// The tiles of a call lie in one row; each is transformed along its columns into a tile on the stack, then along its rows.

// total + factor * in, for a factor known at compile time.
[[gnu::always_inline]] inline Vec plus(Vec total, double factor, Vec in) noexcept {
  if (factor == 0.0) return total;
  if (factor == 1.0) return add(total, in);
  if (factor == -1.0) return sub(total, in);
  if (factor < 0.0) return nfma(set(static_cast<float>(-factor)), in, total);
  return fma(set(static_cast<float>(factor)), in, total);
}

template <WinogradForm kForm>
struct Minimal {
  static constexpr int kSize = kForm.size(), kUnit = kForm.unit, kPairs = kForm.pairs(), kZeros = kForm.zeros();
  static constexpr WinogradMatrices kBy = winograd_matrices(kForm);

  // Sum over every second position from `first` on; the last of the row's factors is 1.
  [[gnu::always_inline]] static Vec polynomial(const Vec* in, int row, int from, int count) noexcept {
    Vec total = in[2 * (count - 1)];
#pragma GCC unroll 4
    for (int i = count - 2; i >= 0; --i) total = plus(total, kBy.input[row][from + 2 * i], in[2 * i]);
    return total;
  }
  [[gnu::always_inline]] static void input(const Vec (&in)[kSize], Vec (&out)[kSize]) noexcept {
    if constexpr (kZeros == 1) out[0] = polynomial(in, 0, 0, kPairs + 1);
    out[kSize - 1] = polynomial(in + kZeros, kSize - 1, kZeros, kPairs + 1);
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const int row = kZeros + 2 * pair;
      const Vec lower = polynomial(in + kZeros, row, kZeros + 1, kPairs);
      const Vec upper = polynomial(in + kZeros + 1, row, kZeros + 1, kPairs);
      out[row] = plus(upper, kWinogradPoints[pair], lower);
      out[row + 1] = plus(upper, -kWinogradPoints[pair], lower);
    }
  }
  [[gnu::always_inline]] static void output(const Vec (&in)[kSize], Vec (&out)[kUnit]) noexcept {
    Vec sums[kPairs], differences[kPairs];
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const Vec above = in[kZeros + 2 * pair], below = in[kZeros + 2 * pair + 1];
      sums[pair] = add(above, below);
      differences[pair] = sub(above, below);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kUnit; ++i) {
      const Vec* terms = i % 2 == 0 ? sums : differences;
      Vec total = terms[0];  // the first point is 1
#pragma GCC unroll 4
      for (int pair = 1; pair < kPairs; ++pair) total = plus(total, kBy.output[i][kZeros + 2 * pair], terms[pair]);
      if (kZeros == 1 && i == 0) total = add(total, in[0]);
      if (i == kUnit - 1) total = add(total, in[kSize - 1]);
      out[i] = total;
    }
  }
};

template <WinogradForm kForm, bool kSquare, bool kCut>
void winograd_input_tile(const WinogradArgs& args, const float* in, float* out) noexcept {
  constexpr int kSize = kForm.size();
  alignas(64) float half[kSquare ? kSize * kSize * kLanes : 1];
  if constexpr (kSquare)
    for (int column = 0; column < kSize; ++column) {
      Vec from[kSize], to[kSize];
      const bool within = !kCut || (column >= args.column_first && column < args.column_last);
      const float* at = in + column * args.column;
#pragma GCC unroll 8
      for (int row = 0; row < kSize; ++row)
        from[row] = !kCut || (within && row >= args.row_first && row < args.row_last) ? load(at + row * args.row) : set(0.0f);
      Minimal<kForm>::input(from, to);
#pragma GCC unroll 8
      for (int row = 0; row < kSize; ++row) store(half + (row * kSize + column) * kLanes, to[row]);
    }
  for (int row = 0; row < (kSquare ? kSize : 1); ++row) {
    Vec from[kSize], to[kSize];
#pragma GCC unroll 8
    for (int column = 0; column < kSize; ++column)
      if constexpr (kSquare)
        from[column] = load(half + (row * kSize + column) * kLanes);
      else
        from[column] = !kCut || (args.row_first < args.row_last && column >= args.column_first && column < args.column_last)
                           ? load(in + column * args.column)
                           : set(0.0f);
    Minimal<kForm>::input(from, to);
#pragma GCC unroll 8
    for (int column = 0; column < kSize; ++column) {
      float* at = out + (row * kSize + column) * args.position;
      store(at, to[column]);
      __builtin_prefetch(at + 2 * kLanes, 1);  // for the tile after the next: more streams than the hardware prefetcher tracks
    }
  }
}

template <WinogradForm kForm, bool kSquare>
void winograd_input(const WinogradArgs& args) noexcept {
  constexpr int kSize = kForm.size();
  const bool whole =
      args.row_first == 0 && args.row_last == (kSquare ? kSize : 1) && args.column_first == 0 && args.column_last == kSize;
  const auto tile = whole ? &winograd_input_tile<kForm, kSquare, false> : &winograd_input_tile<kForm, kSquare, true>;
  for (std::int64_t i = 0; i < args.count; ++i) tile(args, args.in + i * args.tile, args.out + i * kLanes);
}

template <WinogradForm kForm, bool kSquare, bool kCut>
void winograd_output_tile(const WinogradArgs& args, const float* in, float* out) noexcept {
  constexpr int kSize = kForm.size(), kUnit = kForm.unit;
  alignas(64) float half[kSquare ? kUnit * kSize * kLanes : 1];
  if constexpr (kSquare)
    for (int column = 0; column < kSize; ++column) {
      Vec from[kSize], to[kUnit];
#pragma GCC unroll 8
      for (int row = 0; row < kSize; ++row) from[row] = load(in + (row * kSize + column) * args.position);
      Minimal<kForm>::output(from, to);
#pragma GCC unroll 8
      for (int row = 0; row < kUnit; ++row) store(half + (row * kSize + column) * kLanes, to[row]);
    }
  const Vec low = set(args.finish.low), high = set(args.finish.high);
  const Vec bias = args.finish.bias == nullptr ? set(0.0f) : load(args.finish.bias);
  const std::int64_t rows = kCut ? args.row_last : kSquare ? kUnit : 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    Vec from[kSize], to[kUnit];
#pragma GCC unroll 8
    for (int column = 0; column < kSize; ++column)
      from[column] = kSquare ? load(half + (row * kSize + column) * kLanes) : load(in + column * args.position);
    Minimal<kForm>::output(from, to);
    float* at = out + row * args.row;
#pragma GCC unroll 8
    for (int column = 0; column < kUnit; ++column) {
      if (kCut && column >= args.column_last) break;
      Vec result = add(to[column], bias);
      if (args.finish.residual != nullptr)
        result = add(result, load(args.finish.residual + (at - args.out) + column * args.column));
      store(at + column * args.column, min_or_second(high, max_or_second(low, result)));
    }
  }
}

template <WinogradForm kForm, bool kSquare>
void winograd_output(const WinogradArgs& args) noexcept {
  const bool whole = args.row_last == (kSquare ? kForm.unit : 1) && args.column_last == kForm.unit;
  const auto tile = whole ? &winograd_output_tile<kForm, kSquare, false> : &winograd_output_tile<kForm, kSquare, true>;
  for (std::int64_t i = 0; i < args.count; ++i) tile(args, args.in + i * kLanes, args.out + i * args.tile);
}

template <int kForm>
void fill_winograd(Table& table) noexcept {
  constexpr WinogradForm form = kWinogradForms[kForm];
  table.winograd[kForm][0] = {&winograd_input<form, false>, &winograd_output<form, false>};
  table.winograd[kForm][1] = {&winograd_input<form, true>, &winograd_output<form, true>};
  if constexpr (kForm + 1 < kWinogradFormCount) fill_winograd<kForm + 1>(table);
}
