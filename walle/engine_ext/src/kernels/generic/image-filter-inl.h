// Image filters: weighted sums of shifted rows, box sums, and the bilateral mean.

template <class Out, class Sum>
inline Out finished(Sum x, int shift) noexcept {
  if constexpr (std::is_same_v<Out, float>) {
    return static_cast<float>(x);
  } else if constexpr (std::is_same_v<Sum, float>) {
    constexpr float low = std::is_same_v<Out, std::int16_t> ? -32768.0f : 0.0f;
    constexpr float high = std::is_same_v<Out, std::int16_t> ? 32767.0f : static_cast<float>(Limits<Out>::kMost);
    return static_cast<Out>(whole_small(clamped(x, low, high)));
  } else if constexpr (std::is_same_v<Out, Sum>) {
    return x;
  } else if constexpr (std::is_unsigned_v<Sum>) {
    const auto moved = static_cast<Sum>(x >> shift);
    return static_cast<Out>(moved > Limits<Out>::kMost ? Sum{Limits<Out>::kMost} : moved);
  } else {
    const std::int32_t moved = static_cast<std::int32_t>(x) >> shift;
    constexpr std::int32_t low = std::is_same_v<Out, std::int16_t> ? -32768 : 0;
    constexpr std::int32_t high = std::is_same_v<Out, std::int16_t> ? 32767 : static_cast<std::int32_t>(Limits<Out>::kMost);
    return static_cast<Out>(clamped(moved, low, high));
  }
}

template <class In, class Weight, class Sum, class Out, int n>
inline void combine_few(const In* const* taps, const Weight* weights, Sum start, int shift, Out* out,
                        std::int64_t length) noexcept {
  const In* tap[n];
  Sum weight[n];
#pragma GCC unroll 9
  for (int t = 0; t < n; ++t) tap[t] = taps[t], weight[t] = static_cast<Sum>(weights[t]);
#pragma GCC ivdep  // the rows never overlap; without this GCC tests each pair of them
  for (std::int64_t i = 0; i < length; ++i) {
    Sum sum = start;
#pragma GCC unroll 9
    for (int t = 0; t < n; ++t) sum = static_cast<Sum>(sum + static_cast<Sum>(weight[t] * static_cast<Sum>(tap[t][i])));
    out[i] = finished<Out, Sum>(sum, shift);
  }
}

template <class In, class Weight, class Sum, class Out>
void combine(const void* const* given, const void* weight, int count, float delta, int shift, void* output,
             std::int64_t length) noexcept {
  const auto* const* taps = reinterpret_cast<const In* const*>(given);
  const auto* weights = static_cast<const Weight*>(weight);
  auto* out = static_cast<Out*>(output);
  Sum start = static_cast<Sum>(delta);
  if constexpr (!std::is_same_v<Sum, float>) start = static_cast<Sum>(start + (shift > 0 ? Sum(1) << (shift - 1) : Sum(0)));
  switch (count) {
    case 1: return combine_few<In, Weight, Sum, Out, 1>(taps, weights, start, shift, out, length);
    case 2: return combine_few<In, Weight, Sum, Out, 2>(taps, weights, start, shift, out, length);
    case 3: return combine_few<In, Weight, Sum, Out, 3>(taps, weights, start, shift, out, length);
    case 5: return combine_few<In, Weight, Sum, Out, 5>(taps, weights, start, shift, out, length);
    case 7: return combine_few<In, Weight, Sum, Out, 7>(taps, weights, start, shift, out, length);
    case 9: return combine_few<In, Weight, Sum, Out, 9>(taps, weights, start, shift, out, length);
    default: break;
  }
  Sum sum[kBlock];
  for (std::int64_t first = 0; first < length; first += kBlock) {
    const std::int64_t block = length - first < kBlock ? length - first : kBlock;
    for (std::int64_t i = 0; i < block; ++i) sum[i] = start;
    int t = 0;
    for (; t + 4 <= count; t += 4) {
      const In *a = taps[t] + first, *b = taps[t + 1] + first, *c = taps[t + 2] + first, *d = taps[t + 3] + first;
      const Sum u = static_cast<Sum>(weights[t]), v = static_cast<Sum>(weights[t + 1]), w = static_cast<Sum>(weights[t + 2]),
                x = static_cast<Sum>(weights[t + 3]);
      for (std::int64_t i = 0; i < block; ++i)
        sum[i] = static_cast<Sum>(sum[i] + static_cast<Sum>(u * static_cast<Sum>(a[i])) +
                                  static_cast<Sum>(v * static_cast<Sum>(b[i])) + static_cast<Sum>(w * static_cast<Sum>(c[i])) +
                                  static_cast<Sum>(x * static_cast<Sum>(d[i])));
    }
    for (; t < count; ++t) {
      const In* a = taps[t] + first;
      const Sum u = static_cast<Sum>(weights[t]);
      for (std::int64_t i = 0; i < block; ++i) sum[i] = static_cast<Sum>(sum[i] + static_cast<Sum>(u * static_cast<Sum>(a[i])));
    }
    for (std::int64_t i = 0; i < block; ++i) out[first + i] = finished<Out, Sum>(sum[i], shift);
  }
}

// Windows of any width in O(log width) passes: sums of 1, 2, 4, ... neighbours.
template <class T, class Sum>
void box_row(const void* input, bool squared, std::int64_t step, std::int64_t width, void* output, void* spare,
             std::int64_t length) noexcept {
  const T* in = static_cast<const T*>(input);
  Sum *sums = static_cast<Sum*>(output), *part = static_cast<Sum*>(spare);
  const std::int64_t all = length + (width - 1) * step;
  if (width <= 3 && !squared) {
    const T *second = in + (width > 1 ? step : 0), *third = in + (width - 1) * step;
    if (width == 1)
      for (std::int64_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(in[i]);
    else if (width == 2)
      for (std::int64_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(static_cast<Sum>(in[i]) + static_cast<Sum>(second[i]));
    else
      for (std::int64_t i = 0; i < length; ++i)
        sums[i] = static_cast<Sum>(static_cast<Sum>(in[i]) + static_cast<Sum>(second[i]) + static_cast<Sum>(third[i]));
    return;
  }
  if (squared)
    for (std::int64_t i = 0; i < all; ++i) part[i] = static_cast<Sum>(static_cast<Sum>(in[i]) * static_cast<Sum>(in[i]));
  else
    for (std::int64_t i = 0; i < all; ++i) part[i] = static_cast<Sum>(in[i]);
  for (std::int64_t i = 0; i < length; ++i) sums[i] = 0;
  // `part` holds sums of `reach` neighbours; the set binary digits of `width` select the sums that make up the window.
  std::int64_t done = 0;
  for (std::int64_t reach = 1; reach <= width; reach *= 2) {
    if ((width & reach) != 0) {
      const Sum* from = part + done * step;
      for (std::int64_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(sums[i] + from[i]);
      done += reach;
    }
    if (2 * reach > width) break;
    const std::int64_t left = all - (2 * reach - 1) * step, far = reach * step;
    for (std::int64_t i = 0; i < left; ++i) part[i] = static_cast<Sum>(part[i] + part[i + far]);
  }
}

template <class Sum>
void slide(const void* enter, const void* leave, void* output, std::int64_t length) noexcept {
  const Sum *in = static_cast<const Sum*>(enter), *out = static_cast<const Sum*>(leave);
  Sum* sums = static_cast<Sum*>(output);
  if (out == nullptr)
    for (std::int64_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(sums[i] + in[i]);
  else
    for (std::int64_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(sums[i] + in[i] - out[i]);
}

template <class Sum, class Out>
void scale_sums(const void* input, double scale, void* output, std::int64_t length) noexcept {
  const Sum* sums = static_cast<const Sum*>(input);
  Out* out = static_cast<Out*>(output);
  if constexpr (std::is_same_v<Sum, double>) {
    for (std::int64_t i = 0; i < length; ++i) out[i] = static_cast<Out>(sums[i] * scale);
  } else if constexpr (sizeof(Sum) == 2 && sizeof(Out) == 1) {
    // Divide by a count of at most 256, halves up; by a power of two as in OpenCV, where slightly less than a half also rounds
    // up.
    const auto pixels = static_cast<std::uint32_t>(1 / scale + 0.5);
    std::uint32_t bits = 0;
    while ((2u << bits) <= pixels) ++bits;
    const auto put = [&](std::uint16_t half, const auto& divided) {
      for (std::int64_t i = 0; i < length; ++i) {
        const std::uint16_t whole = divided(static_cast<std::uint16_t>(sums[i] + half));
        out[i] = static_cast<Out>(whole > 255 ? 255 : whole);
      }
    };
    const auto half = static_cast<std::uint16_t>(pixels / 2);
    if (pixels == 1u << bits)
      return put(pixels == 1 ? 0 : half + 1, [=](std::uint16_t x) { return static_cast<std::uint16_t>(x >> bits); });
    // Multiply by 2^(16 + bits) / count and keep the upper half, which is exact unless the reciprocal's rounding error adds up to
    // too much.
    const std::uint32_t factor = ((1u << (16 + bits)) + pixels - 1) / pixels, over = factor * pixels - (1u << (16 + bits));
    if ((255 * pixels + half) * over < 1u << (16 + bits))
      return put(half, [=](std::uint16_t x) {
        return static_cast<std::uint16_t>(static_cast<std::uint16_t>((x * factor) >> 16) >> bits);
      });
    const auto part = static_cast<float>(scale);
    put(half, [=](std::uint16_t x) { return static_cast<std::uint16_t>((static_cast<float>(x) + 0.5f) * part); });
  } else {
    const auto factor = static_cast<float>(scale);
    for (std::int64_t i = 0; i < length; ++i) out[i] = finished<Out, float>(static_cast<float>(sums[i]) * factor, 0);
  }
}

template <class T>
void unpack(const void* input, int channels, float* const* planes, std::int64_t pixels) noexcept {
  const T* in = static_cast<const T*>(input);
  Planes<T> block;
  for (std::int64_t start = 0; start < pixels; start += kBlock) {
    const std::int64_t count = pixels - start < kBlock ? pixels - start : kBlock;
    split(in + start * channels, channels, block.at, count);
    for (int c = 0; c < channels; ++c) {
      const T* from = block.p[c];
      float* to = planes[c] + start;
      for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
    }
  }
}
template <class T>
void pack(const float* const* planes, int channels, void* output, std::int64_t pixels) noexcept {
  T* out = static_cast<T*>(output);
  Planes<T> block;
  for (std::int64_t start = 0; start < pixels; start += kBlock) {
    const std::int64_t count = pixels - start < kBlock ? pixels - start : kBlock;
    for (int c = 0; c < channels; ++c) {
      const float* from = planes[c] + start;
      T* to = block.p[c];
      for (std::int64_t i = 0; i < count; ++i) to[i] = rounded<T>(from[i]);
    }
    merge<T>(block.at, channels, out + start * channels, count);
  }
}

[[maybe_unused]] void bilateral(const BilateralArgs& args, float* const* out, std::int64_t length) noexcept {
  float weight_sum[kBlock], sums[4][kBlock], weight[kBlock];
  std::int32_t tone[kBlock];
  const float last = static_cast<float>(args.last_tone);
  for (std::int64_t start = 0; start < length; start += kBlock) {
    const std::int64_t count = length - start < kBlock ? length - start : kBlock;
    for (std::int64_t i = 0; i < count; ++i) weight_sum[i] = sums[0][i] = sums[1][i] = sums[2][i] = sums[3][i] = 0;
    for (int t = 0; t < args.taps; ++t) {
      const float space = args.space[t];
      const std::int64_t offset = args.offsets[t] + start;
      if (args.channels == 1) {
        const float *here = args.planes[0] + start, *there = args.planes[0] + offset;
        for (std::int64_t i = 0; i < count; ++i) {
          const float far = __builtin_fabsf(there[i] - here[i]) * args.tone_scale;
          tone[i] = static_cast<std::int32_t>(far < last ? far : last);
        }
      } else {
        const float *a = args.planes[0] + start, *b = args.planes[1] + start, *c = args.planes[2] + start;
        const float *p = args.planes[0] + offset, *q = args.planes[1] + offset, *r = args.planes[2] + offset;
        for (std::int64_t i = 0; i < count; ++i) {
          const float far =
              (__builtin_fabsf(p[i] - a[i]) + __builtin_fabsf(q[i] - b[i]) + __builtin_fabsf(r[i] - c[i])) * args.tone_scale;
          tone[i] = static_cast<std::int32_t>(far < last ? far : last);
        }
      }
      const float* tones = args.tones;
      for (std::int64_t i = 0; i < count; ++i) weight[i] = space * tones[tone[i]];
      for (std::int64_t i = 0; i < count; ++i) weight_sum[i] += weight[i];
      for (int c = 0; c < args.channels; ++c) {
        const float* there = args.planes[c] + offset;
        float* sum = sums[c];
        for (std::int64_t i = 0; i < count; ++i) sum[i] += weight[i] * there[i];
      }
    }
    for (int c = 0; c < args.channels; ++c)
      for (std::int64_t i = 0; i < count; ++i) out[c][start + i] = sums[c][i] / weight_sum[i];
  }
}
