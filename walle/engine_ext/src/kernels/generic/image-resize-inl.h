// Rows resampled along one axis, and rows joined into one.

// A number as a pixel: rounded half to even and saturated, or itself.
template <class T>
inline T rounded(float x) noexcept {
  if constexpr (sizeof(T) == 4) return x;
  return static_cast<T>(static_cast<std::int32_t>(round_small(clamped(x, 0.0f, static_cast<float>(Limits<T>::kMost)))));
}

template <int channels, int taps, class T, class W, class Out>
inline void resample_fixed(const std::int32_t* places, const W* weights, const T* in, Out* out, std::int64_t pixels) noexcept {
  for (std::int64_t i = 0; i < pixels; ++i, places += taps, weights += taps, out += channels) {
    Out total[channels] = {};
    for (int t = 0; t < taps; ++t)
      for (int c = 0; c < channels; ++c)
        total[c] += static_cast<Out>(in[places[t] * channels + c]) * static_cast<Out>(weights[t]);
    for (int c = 0; c < channels; ++c) out[c] = total[c];
  }
}
template <class T, class W, class Out>
inline void resample_any(const std::int32_t* places, const W* weights, int taps, int channels, const T* in, Out* out,
                         std::int64_t pixels) noexcept {
  if (taps == 2 && channels == 1) return resample_fixed<1, 2>(places, weights, in, out, pixels);
  if (taps == 2 && channels == 3) return resample_fixed<3, 2>(places, weights, in, out, pixels);
  if (taps == 2 && channels == 4) return resample_fixed<4, 2>(places, weights, in, out, pixels);
  if (taps == 4 && channels == 1) return resample_fixed<1, 4>(places, weights, in, out, pixels);
  if (taps == 4 && channels == 3) return resample_fixed<3, 4>(places, weights, in, out, pixels);
  for (std::int64_t i = 0; i < pixels; ++i, places += taps, weights += taps, out += channels)
    for (int c = 0; c < channels; ++c) {
      Out total{};
      for (int t = 0; t < taps; ++t)
        total += static_cast<Out>(in[std::int64_t{places[t]} * channels + c]) * static_cast<Out>(weights[t]);
      out[c] = total;
    }
}

template <class T>
void resample_row(const AxisTaps& axis, int channels, const void* in, void* out, std::int64_t pixels) noexcept {
  resample_any(axis.places, axis.weights, axis.taps, channels, static_cast<const T*>(in), static_cast<float*>(out), pixels);
}
void resample_bytes(const AxisTaps& axis, int channels, const void* in, void* out, std::int64_t pixels) noexcept {
  resample_any(axis.places, axis.whole, axis.taps, channels, static_cast<const std::uint8_t*>(in),
               static_cast<std::int32_t*>(out), pixels);
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

void join_bytes(const std::int32_t* const* rows, const std::int16_t* weights, int taps, int bits, void* output,
                std::int64_t count) noexcept {
  auto* out = static_cast<std::uint8_t*>(output);
  std::int32_t total[kBlock];
  const std::int32_t half = 1 << (bits - 1);
  for (std::int64_t start = 0; start < count; start += kBlock) {
    const std::int64_t block = count - start < kBlock ? count - start : kBlock;
    for (std::int64_t i = 0; i < block; ++i) total[i] = rows[0][start + i] * weights[0] + half;
    for (int t = 1; t < taps; ++t) {
      const std::int32_t *row = rows[t] + start, weight = weights[t];
      for (std::int64_t i = 0; i < block; ++i) total[i] += row[i] * weight;
    }
    for (std::int64_t i = 0; i < block; ++i) out[start + i] = static_cast<std::uint8_t>(clamped(total[i] >> bits, 0, 255));
  }
}

void join_linear_bytes(const std::int32_t* const* rows, const std::int16_t* weights, int, int, void* output,
                       std::int64_t count) noexcept {
  auto* out = static_cast<std::uint8_t*>(output);
  const std::int32_t *a = rows[0], *b = rows[1], u = weights[0], v = weights[1];
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = static_cast<std::uint8_t>(((((a[i] >> 4) * u) >> 16) + (((b[i] >> 4) * v) >> 16) + 2) >> 2);
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
