// Order filters: the least, the greatest and the median of shifted rows.

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
#pragma GCC unroll 9
  for (int t = 0; t < n; ++t) tap[t] = taps[t];
#pragma GCC ivdep  // the result may alias an input or follow it
  for (std::int64_t i = 0; i < length; ++i) {
    T best = tap[0][i];
#pragma GCC unroll 9
    for (int t = 1; t < n; ++t) best = most ? greater(best, tap[t][i]) : lesser(best, tap[t][i]);
    out[i] = best;
  }
}
template <bool most, class T>
void extreme(const void* const* given, int count, void* output, std::int64_t length) noexcept {
  const auto* const* taps = reinterpret_cast<const T* const*>(given);
  T* out = static_cast<T*>(output);
  // Combine as many taps at once as the registers hold; combine the next ones with that result.
  const T* some[9];
  int used = 0;
  while (used < count || used == 0) {
    const int first = used == 0 ? 0 : 1, left = count - used + first, now = left >= 9 ? 9 : left >= 5 ? 5 : left >= 3 ? 3 : left;
    some[0] = out;
    for (int t = first; t < now; ++t) some[t] = taps[used++];
    switch (now) {
      case 9: extreme_few<most, T, 9>(some, out, length); break;
      case 5: extreme_few<most, T, 5>(some, out, length); break;
      case 3: extreme_few<most, T, 3>(some, out, length); break;
      case 2: extreme_few<most, T, 2>(some, out, length); break;
      default: extreme_few<most, T, 1>(some, out, length); break;
    }
  }
}

template <class T>
inline void order(T& a, T& b) noexcept {
  const T least = lesser(a, b), most = greater(a, b);
  a = least;
  b = most;
}

template <class T>
inline T middle(T a, T b, T c) noexcept {
  return greater(lesser(a, b), lesser(greater(a, b), c));
}
template <class T>
[[gnu::always_inline]] inline void sort_five(T (&x)[5]) noexcept {
  order(x[0], x[3]), order(x[1], x[4]), order(x[0], x[2]), order(x[1], x[3]), order(x[0], x[1]), order(x[2], x[4]);
  order(x[1], x[2]), order(x[3], x[4]), order(x[2], x[3]);
}

// Medians start from sorted columns, which neighbouring windows share.
template <class T>
void sort3(const void* const* taps, void* const* rows, std::int64_t length) noexcept {
  const T *a = static_cast<const T*>(taps[0]), *b = static_cast<const T*>(taps[1]), *c = static_cast<const T*>(taps[2]);
  T *least = static_cast<T*>(rows[0]), *mid = static_cast<T*>(rows[1]), *most = static_cast<T*>(rows[2]);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < length; ++i) {
    T x = a[i], y = b[i], z = c[i];
    order(x, y), order(y, z), order(x, y);
    least[i] = x, mid[i] = y, most[i] = z;
  }
}
template <class T>
void sort5(const void* const* taps, void* const* rows, std::int64_t length) noexcept {
  const T* in[5];
  T* out[5];
#pragma GCC unroll 5
  for (int t = 0; t < 5; ++t) in[t] = static_cast<const T*>(taps[t]), out[t] = static_cast<T*>(rows[t]);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < length; ++i) {
    T x[5] = {in[0][i], in[1][i], in[2][i], in[3][i], in[4][i]};
    sort_five(x);
    out[0][i] = x[0], out[1][i] = x[1], out[2][i] = x[2], out[3][i] = x[3], out[4][i] = x[4];
  }
}

// The median of three: the greatest of the columns' least, the least of their greatest, and the median of their medians.
template <class T>
void median9(const void* const* given, void* output, std::int64_t length) noexcept {
  const T* p[9];
#pragma GCC unroll 9
  for (int t = 0; t < 9; ++t) p[t] = static_cast<const T*>(given[t]);
  T* out = static_cast<T*>(output);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < length; ++i)
    out[i] = middle(greater(greater(p[0][i], p[1][i]), p[2][i]), middle(p[3][i], p[4][i], p[5][i]),
                    lesser(lesser(p[6][i], p[7][i]), p[8][i]));
}

// With the rows of ranks sorted as well, twelve of the 25 cannot be the median: six have more than twelve above them, six below.
// The exchanges among the other thirteen were found by search and hold for every such square (by the 0-1 principle).
template <class T>
void median25(const void* const* given, void* output, std::int64_t length) noexcept {
  const T* p[25];
#pragma GCC unroll 25
  for (int t = 0; t < 25; ++t) p[t] = static_cast<const T*>(given[t]);
  T* out = static_cast<T*>(output);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < length; ++i) {
    T a[5] = {p[0][i], p[1][i], p[2][i], p[3][i], p[4][i]}, b[5] = {p[5][i], p[6][i], p[7][i], p[8][i], p[9][i]},
      c[5] = {p[10][i], p[11][i], p[12][i], p[13][i], p[14][i]}, d[5] = {p[15][i], p[16][i], p[17][i], p[18][i], p[19][i]},
      e[5] = {p[20][i], p[21][i], p[22][i], p[23][i], p[24][i]};
    sort_five(a), sort_five(b), sort_five(c), sort_five(d), sort_five(e);
    T x[13] = {a[3], a[4], b[2], b[3], b[4], c[1], c[2], c[3], d[0], d[1], d[2], e[0], e[1]};
    order(x[0], x[8]), order(x[4], x[12]), order(x[3], x[9]), order(x[2], x[5]), order(x[1], x[11]), order(x[7], x[10]);
    order(x[1], x[5]), order(x[7], x[11]), order(x[4], x[6]), order(x[10], x[12]), order(x[4], x[8]), order(x[0], x[2]);
    order(x[6], x[9]), order(x[6], x[7]), order(x[9], x[11]), order(x[6], x[8]), order(x[3], x[5]), order(x[5], x[8]);
    out[i] = greater(x[5], x[6]);
  }
}

template <class T>
void fill_order(ImageTable& table, int at) noexcept {
  WALLE_ANY_WIDTH(table.least[at] = &extreme<false, T>;)
  WALLE_ANY_WIDTH(table.greatest[at] = &extreme<true, T>;)
  WALLE_ANY_WIDTH(table.sort3[at] = &sort3<T>;)
  WALLE_ANY_WIDTH(table.median9[at] = &median9<T>;)
  table.sort5[at] = &sort5<T>;
  table.median25[at] = &median25<T>;
}

void fill_filters(ImageTable& table) noexcept {
  using i16 = std::int16_t;
  using i32 = std::int32_t;
  using u8 = std::uint8_t;
  using u16 = std::uint16_t;
  [[maybe_unused]] typedef std::uint32_t u32;  // for pixels of 16 bits
  [[maybe_unused]] typedef std::uint64_t u64;
  const auto at = [&](Combine which) -> CombineFn& { return table.combine[static_cast<int>(which)]; };
  at(Combine::u8_u16) = &combine<u8, i16, u16, u16>;
  at(Combine::u16_u8) = &combine<u16, i16, i32, u8>;
  at(Combine::u16_u8_short) = &combine<u16, i16, u16, u8>;
  at(Combine::u8_i16) = &combine<u8, i16, i16, i16>;
  at(Combine::i16_i16) = &combine<i16, i16, i16, i16>;
  at(Combine::i16_u8) = &combine<i16, i16, i16, u8>;
  at(Combine::i16_f32) = &combine<i16, i16, i16, float>;
  at(Combine::u8_i32) = &combine<u8, i32, i32, i32>;
  WALLE_WORDS(at(Combine::u16_u32) = &combine<u16, i32, u32, u32>;)
  WALLE_WORDS(at(Combine::u32_u16) = &combine<u32, i32, u64, u16>;)
  at(Combine::i32_u8) = &combine<i32, i32, i32, u8>;
  at(Combine::i32_i16) = &combine<i32, i32, i32, i16>;
  at(Combine::i32_f32) = &combine<i32, i32, i32, float>;
  WALLE_ANY_WIDTH(at(Combine::u8_f32) = &combine<u8, float, float, float>;)
  WALLE_WORDS(at(Combine::u16_f32) = &combine<u16, float, float, float>;)
  WALLE_ANY_WIDTH(at(Combine::i16_f32_wide) = &combine<i16, float, float, float>;)
  WALLE_ANY_WIDTH(at(Combine::f32_u8) = &combine<float, float, float, u8>;)
  WALLE_WORDS(at(Combine::f32_u16) = &combine<float, float, float, u16>;)
  WALLE_ANY_WIDTH(at(Combine::f32_i16) = &combine<float, float, float, i16>;)
  WALLE_ANY_WIDTH(at(Combine::f32_f32) = &combine<float, float, float, float>;)
  fill_order<u8>(table, 0);
  WALLE_WORDS(fill_order<u16>(table, 1);)
  WALLE_WORDS(fill_order<i16>(table, 2);)
  WALLE_ANY_WIDTH(fill_order<float>(table, 3);)
  table.box_row[0] = &box_row<u8, i32>;
  WALLE_WORDS(table.box_row[1] = &box_row<u16, i32>;)
  table.box_row[2] = &box_row<float, double>;
  table.box_row_words = &box_row<u8, u16>;
  table.slide_words = &slide<u16>;
  table.scale_words[0] = &scale_sums<u16, u8>;
  table.scale_words[1] = &scale_sums<u16, float>;
  table.slide[0] = &slide<i32>;
  table.slide[1] = &slide<double>;
  table.scale_sums[0] = &scale_sums<i32, u8>;
  WALLE_WORDS(table.scale_sums[1] = &scale_sums<i32, u16>;)
  table.scale_sums[2] = &scale_sums<double, float>;
  table.float_sums[0] = &scale_sums<i32, float>;
  table.float_sums[1] = &scale_sums<double, float>;
  table.unpack[0] = &unpack<u8>;
  WALLE_WORDS(table.unpack[1] = &unpack<u16>;)
  table.unpack[2] = &unpack<float>;
  table.pack[0] = &pack<u8>;
  WALLE_WORDS(table.pack[1] = &pack<u16>;)
  table.pack[2] = &pack<float>;
  WALLE_ANY_WIDTH(table.bilateral = &bilateral;)
}
