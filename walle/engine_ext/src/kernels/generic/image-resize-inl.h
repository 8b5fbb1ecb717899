// Resampling of rows along one axis, and weighted sums of rows.

// Convert a number to a pixel: rounded half to even and saturated, or unchanged.
template <class T>
inline T rounded(float x) noexcept {
  if constexpr (sizeof(T) == 4) return x;
  return static_cast<T>(whole_small(clamped(x, 0.0f, static_cast<float>(Limits<T>::kMost))));
}

template <int channels, int taps, class T>
inline void resample_fixed(const AxisTaps& axis, const T* in, float* out, std::int64_t pixels) noexcept {
  for (std::int64_t i = 0; i < pixels; ++i, out += channels) {
    float total[channels] = {};
#pragma GCC unroll 4
    for (int t = 0; t < taps; ++t)
#pragma GCC unroll 4
      for (int c = 0; c < channels; ++c)
        total[c] += static_cast<float>(in[axis.places[t * pixels + i] * channels + c]) * axis.weights[t * pixels + i];
#pragma GCC unroll 4
    for (int c = 0; c < channels; ++c) out[c] = total[c];
  }
}
// Pixels of three or four floats, processed as four; the fourth float read and written belongs to the next pixel, so the last
// pixels are processed separately.
using Four [[gnu::vector_size(16)]] = float;
template <int channels, int taps>
inline void resample_fours(const AxisTaps& axis, const float* in, float* out, std::int64_t pixels) noexcept {
  const auto put = [&]<std::size_t bytes>(std::int64_t i) {
    Four total{};
#pragma GCC unroll 4
    for (int t = 0; t < taps; ++t) {
      Four pixel{};
      __builtin_memcpy(&pixel, in + std::int64_t{axis.places[t * pixels + i]} * channels, bytes);
      total += pixel * axis.weights[t * pixels + i];
    }
    __builtin_memcpy(out + i * channels, &total, bytes);
  };
  const std::int32_t* furthest = axis.places + (taps - 1) * pixels;
  std::int64_t last = pixels;
  if constexpr (channels == 3)
    while (last > 0 && furthest[last - 1] == furthest[pixels - 1]) --last;
  for (std::int64_t i = 0; i < last; ++i) put.template operator()<sizeof(Four)>(i);
  for (std::int64_t i = last; i < pixels; ++i) put.template operator()<channels * sizeof(float)>(i);
}
template <class T>
void resample_row(const AxisTaps& axis, int channels, const void* input, void* output, std::int64_t pixels) noexcept {
  const T* in = static_cast<const T*>(input);
  auto* out = static_cast<float*>(output);
  const int taps = axis.taps;
  if constexpr (std::is_same_v<T, float>) {
    if (taps == 2 && channels == 3) return resample_fours<3, 2>(axis, in, out, pixels);
    if (taps == 2 && channels == 4) return resample_fours<4, 2>(axis, in, out, pixels);
    if (taps == 4 && channels == 3) return resample_fours<3, 4>(axis, in, out, pixels);
    if (taps == 4 && channels == 4) return resample_fours<4, 4>(axis, in, out, pixels);
  }
  if (taps == 2 && channels == 1) return resample_fixed<1, 2>(axis, in, out, pixels);
  if (taps == 2 && channels == 3) return resample_fixed<3, 2>(axis, in, out, pixels);
  if (taps == 2 && channels == 4) return resample_fixed<4, 2>(axis, in, out, pixels);
  if (taps == 4 && channels == 1) return resample_fixed<1, 4>(axis, in, out, pixels);
  if (taps == 4 && channels == 3) return resample_fixed<3, 4>(axis, in, out, pixels);
  for (std::int64_t i = 0; i < pixels; ++i, out += channels)
    for (int c = 0; c < channels; ++c) {
      float total = 0;
      for (int t = 0; t < taps; ++t)
        total += static_cast<float>(in[std::int64_t{axis.places[t * pixels + i]} * channels + c]) * axis.weights[t * pixels + i];
      out[c] = total;
    }
}

// Pixels of up to four bytes, each in one word.
template <int channels>
inline void gather_pixels(const std::int32_t* places, const std::uint8_t* in, std::uint32_t* out, std::int64_t first,
                          std::int64_t last) noexcept {
  for (std::int64_t i = first; i < last; ++i) {
    const std::uint8_t* at = in + std::int64_t{places[i]} * channels;
    if constexpr (channels == 3) {  // two parts: copying three bytes at once would go through memory
      std::uint16_t low;
      __builtin_memcpy(&low, at, 2);
      out[i] = low | std::uint32_t{at[2]} << 16;
    } else {
      std::uint32_t word = 0;
      __builtin_memcpy(&word, at, channels);
      out[i] = word;
    }
  }
}
// Two neighbouring pixels from each place on; the read ends with the second one and may begin before the first.
template <int channels>
inline void gather_pairs(const std::int32_t* places, const std::uint8_t* in, std::uint32_t* left, std::uint32_t* right,
                         std::int64_t first, std::int64_t last) noexcept {
  for (std::int64_t i = first; i < last; ++i) {
    const std::uint8_t* at = in + std::int64_t{places[i]} * channels;
    if constexpr (channels == 3) {
      std::uint64_t both;
      __builtin_memcpy(&both, at - 2, 8);
      left[i] = static_cast<std::uint32_t>(both >> 16);
      right[i] = static_cast<std::uint32_t>(both >> 40);
    } else {
      std::uint32_t word = 0;
      __builtin_memcpy(&word, at, channels);
      left[i] = word;
      __builtin_memcpy(&word, at + channels, channels);
      right[i] = word;
    }
  }
}
// The taps of a block, in pairs where they are neighbours: everywhere except at the ends of a row, where they repeat a pixel.
template <int channels, int taps>
inline void gather_taps(const std::int32_t* places, std::int64_t step, const std::uint8_t* in, std::uint32_t (*out)[kBlock],
                        std::int64_t count) noexcept {
  std::int64_t done = 0;
  if constexpr (channels == 3) done = gather_triples<taps>(places, step, in, out[0], kBlock, count);
  int t = 0;
  for (; t + 2 <= taps; t += 2) {
    const std::int32_t *left = places + t * step, *right = left + step;
    const auto apart = [&](std::int64_t i) { return left[i] < 1 || right[i] != left[i] + 1; };
    std::int64_t first = done, last = count;
    while (first < last && apart(first)) ++first;
    while (first < last && apart(last - 1)) --last;
    gather_pixels<channels>(left, in, out[t], done, first);
    gather_pixels<channels>(right, in, out[t + 1], done, first);
    gather_pairs<channels>(left, in, out[t], out[t + 1], first, last);
    gather_pixels<channels>(left, in, out[t], last, count);
    gather_pixels<channels>(right, in, out[t + 1], last, count);
  }
  for (; t < taps; ++t) gather_pixels<channels>(places + t * step, in, out[t], done, count);
}

// The sum unchanged, or divided by 16.
template <class Out>
inline Out kept(std::int32_t sum) noexcept {
  return static_cast<Out>(sizeof(Out) == 2 ? sum >> 4 : sum);
}

template <int channels, int taps, class Out>
inline void resample_planes(const AxisTaps& axis, const std::uint8_t* in, Out* out, std::int64_t pixels) noexcept {
  std::uint32_t pixel[taps][kBlock];
  for (std::int64_t start = 0; start < pixels; start += kBlock) {
    const std::int64_t count = pixels - start < kBlock ? pixels - start : kBlock;
    gather_taps<channels, taps>(axis.places + start, pixels, in, pixel, count);
    const std::int16_t* weights = axis.whole + start;
#pragma GCC unroll 4
    for (int c = 0; c < channels; ++c) {
      Out* to = out + c * pixels + start;
      const int low = 8 * c;
      for (std::int64_t i = 0; i < count; ++i) {
        std::int32_t total = 0;
#pragma GCC unroll 4
        for (int t = 0; t < taps; ++t)
          total += static_cast<std::int32_t>((pixel[t][i] >> low) & 255u) * std::int32_t{weights[t * pixels + i]};
        to[i] = kept<Out>(total);
      }
    }
  }
}
template <int channels, class Out>
inline void resample_taps(const AxisTaps& axis, const std::uint8_t* in, Out* out, std::int64_t pixels) noexcept {
  if (axis.taps == 2 || sizeof(Out) == 2) return resample_planes<channels, 2>(axis, in, out, pixels);
  if constexpr (sizeof(Out) > 2) {  // the form in sixteenths has two taps
    if (axis.taps == 3) return resample_planes<channels, 3>(axis, in, out, pixels);
    resample_planes<channels, 4>(axis, in, out, pixels);
  }
}
template <class Out>
void resample_whole(const AxisTaps& axis, int channels, const void* input, void* output, std::int64_t pixels) noexcept {
  const auto* in = static_cast<const std::uint8_t*>(input);
  auto* out = static_cast<Out*>(output);
  switch (channels) {
    case 1: return resample_taps<1>(axis, in, out, pixels);
    case 2: return resample_taps<2>(axis, in, out, pixels);
    case 3: return resample_taps<3>(axis, in, out, pixels);
    case 4: return resample_taps<4>(axis, in, out, pixels);
    default: break;
  }
  for (std::int64_t i = 0; i < pixels; ++i)
    for (int c = 0; c < channels; ++c) {
      std::int32_t total = 0;
      for (int t = 0; t < axis.taps; ++t)
        total += std::int32_t{in[std::int64_t{axis.places[t * pixels + i]} * channels + c]} * axis.whole[t * pixels + i];
      out[i * channels + c] = kept<Out>(total);
    }
}

template <class T>
void join_rows(const float* const* rows, const float* weights, int taps, void* output, std::int64_t count) noexcept {
  T* out = static_cast<T*>(output);
  if (taps == 1) {
    const float *a = rows[0], u = weights[0];
    for (std::int64_t i = 0; i < count; ++i) out[i] = rounded<T>(a[i] * u);
  } else if (taps == 2) {
    const float *a = rows[0], *b = rows[1], u = weights[0], v = weights[1];
    for (std::int64_t i = 0; i < count; ++i) out[i] = rounded<T>(a[i] * u + b[i] * v);
  } else {
    float total[kBlock];
    for (std::int64_t start = 0; start < count; start += kBlock) {
      const std::int64_t block = count - start < kBlock ? count - start : kBlock;
      for (std::int64_t i = 0; i < block; ++i) total[i] = rows[0][start + i] * weights[0];
      for (int t = 1; t < taps; ++t) {
        const float *row = rows[t] + start, weight = weights[t];
        for (std::int64_t i = 0; i < block; ++i) total[i] += row[i] * weight;
      }
      for (std::int64_t i = 0; i < block; ++i) out[start + i] = rounded<T>(total[i]);
    }
  }
}

template <int taps>
inline void join_few(const std::int32_t* const* rows, const std::int16_t* weights, int bits, std::uint8_t* out,
                     std::int64_t count) noexcept {
  const std::int32_t* row[taps];
  std::int32_t weight[taps];
#pragma GCC unroll 4
  for (int t = 0; t < taps; ++t) row[t] = rows[t], weight[t] = weights[t];
  const std::int32_t half = 1 << (bits - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t total = half;
#pragma GCC unroll 4
    for (int t = 0; t < taps; ++t) total += row[t][i] * weight[t];
    out[i] = static_cast<std::uint8_t>(clamped(total >> bits, 0, 255));
  }
}
void join_bytes(const void* const* given, const std::int16_t* weights, int taps, int bits, void* output,
                std::int64_t count) noexcept {
  const auto* const* rows = reinterpret_cast<const std::int32_t* const*>(given);
  auto* out = static_cast<std::uint8_t*>(output);
  if (taps == 2) return join_few<2>(rows, weights, bits, out, count);
  if (taps == 3) return join_few<3>(rows, weights, bits, out, count);
  join_few<4>(rows, weights, bits, out, count);
}

void join_linear_bytes(const void* const* given, const std::int16_t* weights, int, int, void* output,
                       std::int64_t count) noexcept {
  auto* out = static_cast<std::uint8_t*>(output);
  const auto *a = static_cast<const std::int16_t*>(given[0]), *b = static_cast<const std::int16_t*>(given[1]);
  const std::int16_t u = weights[0], v = weights[1];
  for (std::int64_t i = 0; i < count; ++i) {
    const auto upper = static_cast<std::int16_t>((std::int32_t{a[i]} * u) >> 16),
               lower = static_cast<std::int16_t>((std::int32_t{b[i]} * v) >> 16);
    out[i] = static_cast<std::uint8_t>(static_cast<std::int16_t>(upper + lower + 2) >> 2);
  }
}

template <class T>
void halve_rows(const void* upper, const void* lower, int channels, void* output, std::int64_t pixels) noexcept {
  const T *a = static_cast<const T*>(upper), *b = static_cast<const T*>(lower);
  T* out = static_cast<T*>(output);
  using Sum = std::conditional_t<sizeof(T) == 4, float, std::uint32_t>;
  const auto mean = [](Sum x) {
    if constexpr (sizeof(T) == 4) return x * 0.25f;
    return static_cast<T>((static_cast<std::uint32_t>(x) + 2) >> 2);
  };
  if (channels == 1) {
    for (std::int64_t i = 0; i < pixels; ++i) out[i] = mean(Sum(a[2 * i]) + a[2 * i + 1] + b[2 * i] + b[2 * i + 1]);
    return;
  }
  if (channels == 3) {
    Planes<T> up, down, half;
    for (std::int64_t start = 0; start < pixels; start += kBlock / 2) {
      const std::int64_t count = pixels - start < kBlock / 2 ? pixels - start : kBlock / 2;
      split(a + start * 6, 3, up.at, 2 * count);
      split(b + start * 6, 3, down.at, 2 * count);
      for (int c = 0; c < 3; ++c) {
        const T *u = up.p[c], *d = down.p[c];
        T* h = half.p[c];
        for (std::int64_t i = 0; i < count; ++i) h[i] = mean(Sum(u[2 * i]) + u[2 * i + 1] + d[2 * i] + d[2 * i + 1]);
      }
      merge<T>(half.at, 3, out + start * 3, count);
    }
    return;
  }
  for (std::int64_t i = 0; i < pixels; ++i)
    for (int c = 0; c < channels; ++c) {
      const std::int64_t at = 2 * i * channels + c;
      out[i * channels + c] = mean(Sum(a[at]) + a[at + channels] + b[at] + b[at + channels]);
    }
}

template <int size>
inline void pick_fixed(const std::int32_t* places, const std::byte* in, std::byte* out, std::int64_t pixels) noexcept {
  for (std::int64_t i = 0; i < pixels; ++i) __builtin_memcpy(out + i * size, in + std::int64_t{places[i]} * size, size);
}
void pick_row(const std::int32_t* places, std::int64_t size, const void* input, void* output, std::int64_t pixels) noexcept {
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  switch (size) {
    case 1: return pick_fixed<1>(places, in, out, pixels);
    case 2: return pick_fixed<2>(places, in, out, pixels);
    case 3: return pick_fixed<3>(places, in, out, pixels);
    case 4: return pick_fixed<4>(places, in, out, pixels);
    case 12: return pick_fixed<12>(places, in, out, pixels);
    default: break;
  }
  for (std::int64_t i = 0; i < pixels; ++i)
    __builtin_memcpy(out + i * size, in + std::int64_t{places[i]} * size, static_cast<std::size_t>(size));
}
