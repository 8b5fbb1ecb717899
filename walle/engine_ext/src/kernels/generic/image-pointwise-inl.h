// Pixel arithmetic: saturating operations, thresholds, ranges, sums, and Canny's non-maximum suppression.

template <class T>
struct Bounds {
  static constexpr std::int32_t kLow = std::is_same_v<T, std::int16_t> ? -32768 : 0;
  static constexpr std::int32_t kHigh = std::is_same_v<T, std::int16_t> ? 32767 : sizeof(T) == 1 ? 255 : 65535;
};
template <class T>
inline constexpr bool kFloating = std::is_same_v<T, float>;

template <class T>
inline T saturated(std::int32_t x) noexcept {
  return static_cast<T>(clamped(x, Bounds<T>::kLow, Bounds<T>::kHigh));
}
template <class T>
inline T saturated_round(float x) noexcept {
  if constexpr (kFloating<T>)
    return x;
  else
    return static_cast<T>(whole_small(clamped(x, static_cast<float>(Bounds<T>::kLow), static_cast<float>(Bounds<T>::kHigh))));
}

template <Pointwise op, class T>
void pointwise(const void* left, const void* right, const double* numbers, void* output, std::int64_t length) noexcept {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
  T* out = static_cast<T*>(output);
  using Wide = std::conditional_t<kFloating<T>, float, std::int32_t>;
  const auto each = [&](const auto& f) {
    for (std::int64_t i = 0; i < length; ++i) out[i] = f(a[i], b[i]);
  };
  const auto alone = [&](const auto& f) {
    for (std::int64_t i = 0; i < length; ++i) out[i] = f(a[i]);
  };
  const auto bounded = [](Wide x) {
    if constexpr (kFloating<T>)
      return x;
    else
      return saturated<T>(x);
  };
  const auto f0 = static_cast<float>(numbers[0]), f1 = static_cast<float>(numbers[1]), f2 = static_cast<float>(numbers[2]);
  if constexpr (op == Pointwise::add) each([&](T x, T y) { return bounded(static_cast<Wide>(x) + static_cast<Wide>(y)); });
  if constexpr (op == Pointwise::subtract) each([&](T x, T y) { return bounded(static_cast<Wide>(x) - static_cast<Wide>(y)); });
  if constexpr (op == Pointwise::difference) {
    if constexpr (std::is_unsigned_v<T>)
      each([](T x, T y) { return static_cast<T>(greater(x, y) - lesser(x, y)); });
    else
      each([&](T x, T y) {
        return bounded(static_cast<Wide>(x) > static_cast<Wide>(y) ? static_cast<Wide>(x) - static_cast<Wide>(y)
                                                                   : static_cast<Wide>(y) - static_cast<Wide>(x));
      });
  }
  if constexpr (op == Pointwise::least) each([](T x, T y) { return lesser(x, y); });
  if constexpr (op == Pointwise::greatest) each([](T x, T y) { return greater(x, y); });
  if constexpr (op == Pointwise::bit_and || op == Pointwise::bit_or || op == Pointwise::bit_xor) {
    using Bits =
        std::conditional_t<sizeof(T) == 1, std::uint8_t, std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
    const auto *x = static_cast<const Bits*>(left), *y = static_cast<const Bits*>(right);
    auto* to = static_cast<Bits*>(output);
    for (std::int64_t i = 0; i < length; ++i)
      to[i] = static_cast<Bits>(op == Pointwise::bit_and ? x[i] & y[i] : op == Pointwise::bit_or ? x[i] | y[i] : x[i] ^ y[i]);
  }
  if constexpr (op == Pointwise::weighted && sizeof(T) == 1) {
    const std::int64_t done = weighted_bytes(a, b, f0, f1, f2, out, length);
    a += done, b += done, out += done, length -= done;
  }
  if constexpr (op == Pointwise::weighted)
    each([&](T x, T y) { return saturated_round<T>(static_cast<float>(x) * f0 + static_cast<float>(y) * f1 + f2); });
  if constexpr (op == Pointwise::multiply)
    each([&](T x, T y) { return saturated_round<T>(f0 * static_cast<float>(x) * static_cast<float>(y)); });
  if constexpr (op >= Pointwise::binary && op <= Pointwise::to_zero_inv) {
    // A bound outside the type's range is clamped to it, which does not change any result.
    T bound, most = saturated_round<T>(f1);
    bool all = false;
    if constexpr (kFloating<T>) {
      bound = f0;
    } else {
      const double whole = __builtin_floor(numbers[0]);
      all = whole < Bounds<T>::kLow;
      bound = static_cast<T>(whole > Bounds<T>::kHigh ? Bounds<T>::kHigh
                             : all                    ? Bounds<T>::kLow
                                                      : static_cast<std::int32_t>(whole));
    }
    if (all) {
      const T cut = saturated_round<T>(static_cast<float>(__builtin_floor(numbers[0])));
      alone([&](T x) {
        return op == Pointwise::binary ? most : op == Pointwise::truncate ? cut : op == Pointwise::to_zero ? x : T(0);
      });
    } else {
      alone([=](T x) {
        if constexpr (op == Pointwise::binary) return x > bound ? most : T(0);
        if constexpr (op == Pointwise::binary_inv) return x > bound ? T(0) : most;
        if constexpr (op == Pointwise::truncate) return x > bound ? bound : x;
        if constexpr (op == Pointwise::to_zero) return x > bound ? x : T(0);
        return x > bound ? T(0) : x;
      });
    }
  }
  if constexpr (op == Pointwise::absolute_scale) {
    auto* to = static_cast<std::uint8_t*>(output);
    for (std::int64_t i = 0; i < length; ++i) {
      const float x = static_cast<float>(a[i]) * f0 + f1;
      to[i] = saturated_round<std::uint8_t>(x < 0 ? -x : x);
    }
  }
  if constexpr (op == Pointwise::above || op == Pointwise::not_above) {
    auto* to = static_cast<std::uint8_t*>(output);
    const auto most = saturated_round<std::uint8_t>(f1);
    const auto more = static_cast<Wide>(f0);
    for (std::int64_t i = 0; i < length; ++i)
      to[i] = (static_cast<Wide>(a[i]) > static_cast<Wide>(b[i]) + more) == (op == Pointwise::above) ? most : std::uint8_t{0};
  }
}

template <class T>
void in_range(const void* input, int channels, const double* low, const double* high, std::uint8_t* out,
              std::int64_t pixels) noexcept {
  const T* in = static_cast<const T*>(input);
  Planes<T> block;
  for (std::int64_t start = 0; start < pixels; start += kBlock) {
    const std::int64_t count = pixels - start < kBlock ? pixels - start : kBlock;
    split(in + start * channels, channels, block.at, count);
    std::uint8_t* to = out + start;
    for (std::int64_t i = 0; i < count; ++i) to[i] = 255;
    for (int c = 0; c < channels; ++c) {
      const T* from = block.p[c];
      if constexpr (kFloating<T>) {
        const auto least = static_cast<float>(low[c]), most = static_cast<float>(high[c]);
        for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] >= least && from[i] <= most ? to[i] : std::uint8_t{0};
      } else {
        const double first = __builtin_ceil(low[c]), last = __builtin_floor(high[c]);
        const bool none = first > Bounds<T>::kHigh || last < Bounds<T>::kLow || first > last;
        const T least = static_cast<T>(first < Bounds<T>::kLow ? Bounds<T>::kLow : none ? 0 : static_cast<std::int32_t>(first));
        const T most = static_cast<T>(last > Bounds<T>::kHigh ? Bounds<T>::kHigh : none ? 0 : static_cast<std::int32_t>(last));
        const std::uint8_t some = none ? 0 : 255;
        for (std::int64_t i = 0; i < count; ++i)
          to[i] = static_cast<std::uint8_t>(to[i] & (from[i] >= least ? some : 0) & (from[i] <= most ? some : 0));
      }
    }
  }
}

// Sums of bytes without unpacking pixels: every sixteen pixels are added to the same lanes, which hold 256 of them.
template <int channels, bool squared>
inline std::int64_t sum_bytes(const std::uint8_t* in, double* sums, double* squares, std::int64_t pixels) noexcept {
  constexpr int kSpan = 16 * channels;
  constexpr std::int64_t kMost = 256;
  const std::int64_t spans = pixels / 16;
  for (std::int64_t start = 0; start < spans; start += kMost) {
    const std::int64_t end = start + kMost < spans ? start + kMost : spans;
    std::uint16_t part[kSpan] = {};
    std::uint32_t square[kSpan] = {};
    for (std::int64_t s = start; s < end; ++s) {
      const std::uint8_t* at = in + s * kSpan;
      for (int j = 0; j < kSpan; ++j) part[j] = static_cast<std::uint16_t>(part[j] + at[j]);
      if constexpr (squared)
        for (int j = 0; j < kSpan; ++j) square[j] += std::uint32_t{at[j]} * at[j];
    }
    for (int j = 0; j < kSpan; ++j) sums[j % channels] += part[j];
    if constexpr (squared)
      for (int j = 0; j < kSpan; ++j) squares[j % channels] += square[j];
  }
  return 16 * spans;
}
inline std::int64_t sum_bytes(const std::uint8_t* in, int channels, double* sums, double* squares, std::int64_t pixels) noexcept {
  const bool squared = squares != nullptr;
  switch (channels) {
    case 1: return squared ? sum_bytes<1, true>(in, sums, squares, pixels) : sum_bytes<1, false>(in, sums, squares, pixels);
    case 2: return squared ? sum_bytes<2, true>(in, sums, squares, pixels) : sum_bytes<2, false>(in, sums, squares, pixels);
    case 3: return squared ? sum_bytes<3, true>(in, sums, squares, pixels) : sum_bytes<3, false>(in, sums, squares, pixels);
    case 4: return squared ? sum_bytes<4, true>(in, sums, squares, pixels) : sum_bytes<4, false>(in, sums, squares, pixels);
    default: return 0;
  }
}

template <class T>
void sum(const void* input, int channels, const std::uint8_t* mask, double* sums, double* squares, std::int64_t pixels) noexcept {
  const T* in = static_cast<const T*>(input);
  Planes<T> block;
  using Part = std::conditional_t<kFloating<T>, double, std::conditional_t<sizeof(T) == 1, std::int32_t, std::int64_t>>;
  std::int64_t done = 0;
  if constexpr (sizeof(T) == 1)
    if (mask == nullptr) done = sum_bytes(in, channels, sums, squares, pixels);
  for (std::int64_t start = done; start < pixels; start += kBlock) {
    const std::int64_t count = pixels - start < kBlock ? pixels - start : kBlock;
    split(in + start * channels, channels, block.at, count);
    for (int c = 0; c < channels; ++c) {
      T* from = block.p[c];
      if (mask != nullptr)
        for (std::int64_t i = 0; i < count; ++i) from[i] = mask[start + i] != 0 ? from[i] : T(0);
      Part part = 0;
      for (std::int64_t i = 0; i < count; ++i) part += static_cast<Part>(from[i]);
      sums[c] += static_cast<double>(part);
      if (squares == nullptr) continue;
      Part square = 0;
      for (std::int64_t i = 0; i < count; ++i) square += static_cast<Part>(from[i]) * static_cast<Part>(from[i]);
      squares[c] += static_cast<double>(square);
    }
  }
}

// A row of the integral image (sums of all pixels above and to the left), of one channel.
void integral_row(const std::uint8_t* in, const std::int32_t* above, std::int32_t* out, std::int64_t length) noexcept {
  std::int32_t carry = 0;
  for (std::int64_t i = running_sums(in, above, out, length, &carry); i < length; ++i) {
    carry += in[i];
    out[i] = above[i] + carry;
  }
}

void magnitude(const std::int16_t* dx, const std::int16_t* dy, bool squared, std::int32_t* out, std::int64_t length) noexcept {
  if (squared)
    for (std::int64_t i = 0; i < length; ++i) out[i] = std::int32_t{dx[i]} * dx[i] + std::int32_t{dy[i]} * dy[i];
  else
    for (std::int64_t i = 0; i < length; ++i) out[i] = (dx[i] < 0 ? -dx[i] : dx[i]) + (dy[i] < 0 ? -dy[i] : dy[i]);
}

void thin(const std::int16_t* dx, const std::int16_t* dy, const std::int32_t* above, const std::int32_t* here,
          const std::int32_t* below, std::int32_t low, std::int32_t high, std::uint8_t* out, std::int64_t length) noexcept {
  constexpr std::int32_t kTan = 13573;  // tan(22.5 degrees) * 2^15
  for (std::int64_t i = 0; i < length; ++i) {
    // All nine are read at once, so that only selections remain and no branches.
    const std::int32_t al = above[i - 1], ac = above[i], ar = above[i + 1], left = here[i - 1], size = here[i],
                       right = here[i + 1], bl = below[i - 1], bc = below[i], br = below[i + 1];
    const std::int32_t x = dx[i] < 0 ? -dx[i] : dx[i], y = (dy[i] < 0 ? -dy[i] : dy[i]) << 15;
    const std::int32_t flat = x * kTan, steep = flat + (x << 16);
    const bool opposite = (dx[i] ^ dy[i]) < 0, along_x = y<flat, along_y = y> steep;
    const std::int32_t up = opposite ? ar : al, down = opposite ? bl : br;
    const std::int32_t before = along_x ? left : (along_y ? ac : up), after = along_x ? right : (along_y ? bc : down);
    const std::int32_t more = !along_x & !along_y ? 1 : 0;  // diagonal: the later neighbour must be strictly less
    const bool peak = (size > before) & (size >= after + more) & (size > low);
    out[i] = static_cast<std::uint8_t>((peak ? 1 : 0) + (peak & (size > high) ? 1 : 0));
  }
}

template <Pointwise op>
void fill_one(ImageTable& table) noexcept {
  PointwiseFn* row = table.pointwise[static_cast<int>(op)];
  row[0] = &pointwise<op, std::uint8_t>;
  WALLE_WORDS(row[1] = &pointwise<op, std::uint16_t>;)
  WALLE_WORDS(row[2] = &pointwise<op, std::int16_t>;)
  row[3] = &pointwise<op, float>;
}

[[maybe_unused]] void fill_any_width(ImageTable& table) noexcept {
  fill_one<Pointwise::difference>(table), fill_one<Pointwise::least>(table), fill_one<Pointwise::greatest>(table);
  fill_one<Pointwise::bit_and>(table), fill_one<Pointwise::bit_or>(table), fill_one<Pointwise::bit_xor>(table);
  fill_one<Pointwise::weighted>(table), fill_one<Pointwise::binary>(table), fill_one<Pointwise::binary_inv>(table);
  fill_one<Pointwise::truncate>(table), fill_one<Pointwise::to_zero>(table), fill_one<Pointwise::to_zero_inv>(table);
  fill_one<Pointwise::above>(table), fill_one<Pointwise::not_above>(table);
}

void fill_pointwise(ImageTable& table) noexcept {
  fill_one<Pointwise::add>(table), fill_one<Pointwise::subtract>(table), fill_one<Pointwise::multiply>(table);
  fill_one<Pointwise::absolute_scale>(table);
  WALLE_ANY_WIDTH(fill_any_width(table);)
  table.in_range[0] = &in_range<std::uint8_t>;
  WALLE_WORDS(table.in_range[1] = &in_range<std::uint16_t>;)
  WALLE_WORDS(table.in_range[2] = &in_range<std::int16_t>;)
  table.in_range[3] = &in_range<float>;
  table.sum[0] = &sum<std::uint8_t>;
  WALLE_WORDS(table.sum[1] = &sum<std::uint16_t>;)
  WALLE_WORDS(table.sum[2] = &sum<std::int16_t>;)
  table.sum[3] = &sum<float>;
  table.thin = &thin;
  table.magnitude = &magnitude;
  table.integral_row = &integral_row;
}
