// Filters that order: the least, the greatest and the median of shifted rows.

template <class T>
inline T lesser(T a, T b) noexcept {
  return a < b ? a : b;
}
template <class T>
inline T greater(T a, T b) noexcept {
  return a > b ? a : b;
}

template <bool most, class T, int n>
inline void extreme_few(const T* const* taps, T* out, std::int64_t length) noexcept {
  const T* tap[n];
  for (int t = 0; t < n; ++t) tap[t] = taps[t];
  for (std::int64_t i = 0; i < length; ++i) {
    T best = tap[0][i];
    for (int t = 1; t < n; ++t) best = most ? greater(best, tap[t][i]) : lesser(best, tap[t][i]);
    out[i] = best;
  }
}
template <bool most, class T>
void extreme(const void* const* given, int count, void* output, std::int64_t length) noexcept {
  const auto* const* taps = reinterpret_cast<const T* const*>(given);
  T* out = static_cast<T*>(output);
  switch (count) {
    case 1: return extreme_few<most, T, 1>(taps, out, length);
    case 2: return extreme_few<most, T, 2>(taps, out, length);
    case 3: return extreme_few<most, T, 3>(taps, out, length);
    case 5: return extreme_few<most, T, 5>(taps, out, length);
    default: break;
  }
  for (std::int64_t first = 0; first < length; first += kBlock) {
    const std::int64_t block = length - first < kBlock ? length - first : kBlock;
    T best[kBlock];
    for (std::int64_t i = 0; i < block; ++i) best[i] = taps[0][first + i];
    int t = 1;
    for (; t + 2 <= count; t += 2) {
      const T *a = taps[t] + first, *b = taps[t + 1] + first;
      for (std::int64_t i = 0; i < block; ++i)
        best[i] = most ? greater(best[i], greater(a[i], b[i])) : lesser(best[i], lesser(a[i], b[i]));
    }
    for (; t < count; ++t) {
      const T* a = taps[t] + first;
      for (std::int64_t i = 0; i < block; ++i) best[i] = most ? greater(best[i], a[i]) : lesser(best[i], a[i]);
    }
    for (std::int64_t i = 0; i < block; ++i) out[first + i] = best[i];
  }
}

template <class T>
inline void order(T& a, T& b) noexcept {
  const T least = lesser(a, b), most = greater(a, b);
  a = least;
  b = most;
}

template <class T>
void median9(const void* const* given, void* output, std::int64_t length) noexcept {
  const T* p[9];
  for (int t = 0; t < 9; ++t) p[t] = static_cast<const T*>(given[t]);
  T* out = static_cast<T*>(output);
  for (std::int64_t i = 0; i < length; ++i) {
    T a = p[0][i], b = p[1][i], c = p[2][i], d = p[3][i], e = p[4][i], f = p[5][i], g = p[6][i], h = p[7][i], k = p[8][i];
    order(b, c), order(e, f), order(h, k), order(a, b), order(d, e), order(g, h), order(b, c), order(e, f), order(h, k);
    d = greater(a, d), f = lesser(f, k), order(e, h), g = greater(d, g), e = greater(b, e), c = lesser(c, f), e = lesser(e, h);
    order(e, c);
    e = greater(g, e);
    out[i] = lesser(e, c);
  }
}

// The middle of 25 by forgetting: of the 14 in hand the least and the greatest cannot be the middle and go, one more comes in.
template <class T>
void median25(const void* const* given, void* output, std::int64_t length) noexcept {
  const T* p[25];
  for (int t = 0; t < 25; ++t) p[t] = static_cast<const T*>(given[t]);
  T* out = static_cast<T*>(output);
  constexpr std::int64_t kWide = 64;
  T in[14][kWide];
  for (std::int64_t first = 0; first < length; first += kWide) {
    const std::int64_t block = length - first < kWide ? length - first : kWide;
    for (int t = 0; t < 14; ++t)
      for (std::int64_t i = 0; i < block; ++i) in[t][i] = p[t][first + i];
    int hand = 14;
    for (int next = 14;; ++next) {
      const auto swap = [&](int a, int b) {
        for (std::int64_t i = 0; i < block; ++i) order(in[a][i], in[b][i]);
      };
      // The least to the front, the greatest to the end.
      for (int t = 0; t < hand / 2; ++t) swap(t, hand - 1 - t);
      for (int t = 1; t < (hand + 1) / 2; ++t) swap(0, t);
      for (int t = hand / 2; t < hand - 1; ++t) swap(t, hand - 1);
      if (hand == 3) break;
      --hand;
      if (next < 25)
        for (std::int64_t i = 0; i < block; ++i) in[0][i] = p[next][first + i];
    }
    for (std::int64_t i = 0; i < block; ++i) out[first + i] = in[1][i];
  }
}

template <class T>
void fill_order(ImageTable& table, int at) noexcept {
  table.least[at] = &extreme<false, T>;
  table.greatest[at] = &extreme<true, T>;
  table.median9[at] = &median9<T>;
  table.median25[at] = &median25<T>;
}

void fill_filters(ImageTable& table) noexcept {
  using i16 = std::int16_t;
  using i32 = std::int32_t;
  using u8 = std::uint8_t;
  using u16 = std::uint16_t;
  const auto at = [&](Combine which) -> CombineFn& { return table.combine[static_cast<int>(which)]; };
  at(Combine::u8_u16) = &combine<u8, i16, u16, u16>;
  at(Combine::u16_u8) = &combine<u16, i16, i32, u8>;
  at(Combine::u8_i16) = &combine<u8, i16, i16, i16>;
  at(Combine::i16_i16) = &combine<i16, i16, i16, i16>;
  at(Combine::i16_u8) = &combine<i16, i16, i16, u8>;
  at(Combine::i16_f32) = &combine<i16, i16, i16, float>;
  at(Combine::u8_i32) = &combine<u8, i32, i32, i32>;
  at(Combine::i32_u8) = &combine<i32, i32, i32, u8>;
  at(Combine::i32_i16) = &combine<i32, i32, i32, i16>;
  at(Combine::i32_f32) = &combine<i32, i32, i32, float>;
  at(Combine::u8_f32) = &combine<u8, float, float, float>;
  at(Combine::u16_f32) = &combine<u16, float, float, float>;
  at(Combine::i16_f32_wide) = &combine<i16, float, float, float>;
  at(Combine::f32_u8) = &combine<float, float, float, u8>;
  at(Combine::f32_u16) = &combine<float, float, float, u16>;
  at(Combine::f32_i16) = &combine<float, float, float, i16>;
  at(Combine::f32_f32) = &combine<float, float, float, float>;
  fill_order<u8>(table, 0);
  fill_order<u16>(table, 1);
  fill_order<i16>(table, 2);
  fill_order<float>(table, 3);
  table.box_row[0] = &box_row<u8, i32>;
  table.box_row[1] = &box_row<u16, i32>;
  table.box_row[2] = &box_row<float, double>;
  table.box_row_words = &box_row<u8, u16>;
  table.slide_words = &slide<u16>;
  table.scale_words[0] = &scale_sums<u16, u8>;
  table.scale_words[1] = &scale_sums<u16, float>;
  table.slide[0] = &slide<i32>;
  table.slide[1] = &slide<double>;
  table.scale_sums[0] = &scale_sums<i32, u8>;
  table.scale_sums[1] = &scale_sums<i32, u16>;
  table.scale_sums[2] = &scale_sums<double, float>;
  table.float_sums[0] = &scale_sums<i32, float>;
  table.float_sums[1] = &scale_sums<double, float>;
  table.unpack[0] = &unpack<u8>;
  table.unpack[1] = &unpack<u16>;
  table.unpack[2] = &unpack<float>;
  table.pack[0] = &pack<u8>;
  table.pack[1] = &pack<u16>;
  table.pack[2] = &pack<float>;
  table.bilateral = &bilateral;
}
