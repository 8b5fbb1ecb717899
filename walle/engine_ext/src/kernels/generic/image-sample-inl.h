// Sampling of an image between its pixels. A block of places is split into runs inside the image, whose pixels are gathered and
// interpolated in vectors, and the others, which are read one by one.

// Return which of `size` elements a border mode reads at `at`, -1 for none; the same as border_source of atomic/image/image.h,
// whose mode numbers are used.
inline std::int64_t border_at(int border, std::int64_t at, std::int64_t size) noexcept {
  if (at >= 0 && at < size) return at;
  if (border == 1) return at < 0 ? 0 : size - 1;
  if (border == 3) return ((at % size) + size) % size;
  if (border == 2 || border == 4) {
    if (size == 1) return 0;
    const std::int64_t edge = border == 2 ? 0 : 1, period = 2 * (size - edge);
    const std::int64_t rest = ((at % period) + period) % period;
    return rest < size ? rest : period - 1 + edge - rest;
  }
  return -1;
}

inline constexpr float kFarAway = 1073741824.0f;  // places beyond it, and NaN, are outside of any image
inline float near_or_far(float x) noexcept { return (x > -kFarAway) & (x < kFarAway) ? x : -kFarAway; }

inline std::int32_t floor_of(float x) noexcept {
  const std::int32_t whole = static_cast<std::int32_t>(x);
  return whole - (static_cast<float>(whole) > x ? 1 : 0);
}

// The value at a place that may be outside; `untouched` is the result for a transparent border.
template <class T>
inline float outside(const SampleArgs& args, std::int64_t y, std::int64_t x, int channel, float untouched) noexcept {
  const std::int64_t row = border_at(args.border, y, args.height), column = border_at(args.border, x, args.width);
  if (row >= 0 && column >= 0)
    return static_cast<float>(static_cast<const T*>(args.image)[(row * args.width + column) * args.channels + channel]);
  return args.border == 5 ? untouched : static_cast<float>(args.value[channel < 4 ? channel : 3]);
}

// A block of places: the first pixel of each window, the fractional parts, and whether the window is entirely inside.
struct Windows {
  std::int32_t column[kBlock], row[kBlock];
  float part_x[kBlock], part_y[kBlock];
  std::uint8_t inside[kBlock];
};

// Windows of `reach` pixels a side, at least two. `spare` pixels at the very end of the image count as outside: where pixels are
// read as words, a word would end beyond the image.
[[gnu::noinline]] void find_windows(const SampleArgs& args, const float* x, const float* y, std::int32_t spare,
                                    std::int64_t count, Windows& found) noexcept {
  const auto reach = static_cast<std::int32_t>(args.reach);
  const std::int32_t first = reach / 2 - 1;
  const auto last_x = static_cast<std::int32_t>(args.width) - reach, last_y = static_cast<std::int32_t>(args.height) - reach;
  for (std::int64_t i = 0; i < count; ++i) {
    const float at_x = near_or_far(x[i]), at_y = near_or_far(y[i]);
    const std::int32_t whole_x = floor_of(at_x), whole_y = floor_of(at_y);
    found.column[i] = whole_x - first;
    found.row[i] = whole_y - first;
    found.part_x[i] = at_x - static_cast<float>(whole_x);
    found.part_y[i] = at_y - static_cast<float>(whole_y);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t h = found.column[i], v = found.row[i];
    const bool end = (v == last_y) & (h > last_x - spare);
    found.inside[i] = static_cast<std::uint8_t>((h >= 0) & (h <= last_x) & (v >= 0) & (v <= last_y) & !end);
  }
}

// Return the length of the run of equal values that starts at `at`.
inline std::int64_t run_end(const std::uint8_t* values, std::uint8_t value, std::int64_t at, std::int64_t count) noexcept {
  for (std::uint64_t eight; at + 8 <= count; at += 8) {
    __builtin_memcpy(&eight, values + at, 8);
    if (eight != value * std::uint64_t{0x0101010101010101}) break;
  }
  while (at < count && values[at] == value) ++at;
  return at;
}

// Call inner(start, end) for the runs of windows inside, outer(i) for the others.
template <class Inner, class Outer>
inline void for_runs(const Windows& found, std::int64_t count, const Inner& inner, const Outer& outer) noexcept {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t end = run_end(found.inside, 1, i, count);
    if (end > i) inner(i, end);
    i = end;
    for (const std::int64_t last = run_end(found.inside, 0, i, count); i < last; ++i) outer(i);
  }
}

inline void cubic(float part, float* weights) noexcept {
  constexpr float a = -0.75f;
  const float x = part + 1, y = 1 - part;
  weights[0] = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  weights[1] = ((a + 2) * part - (a + 3)) * part * part + 1;
  weights[2] = ((a + 2) * y - (a + 3)) * y * y + 1;
  weights[3] = 1 - weights[0] - weights[1] - weights[2];
}

// Interpolate one pixel from reach * reach others, the first of which is [v, h].
template <int reach, class T>
[[gnu::noinline]] void sample_square(const SampleArgs& args, std::int64_t h, std::int64_t v, const float* weight_x,
                                     const float* weight_y, T* out) noexcept {
  const int channels = args.channels;
  const bool inside = h >= 0 && h + reach <= args.width && v >= 0 && v + reach <= args.height;
  const T* first = static_cast<const T*>(args.image) + (v * args.width + h) * channels;
  for (int c = 0; c < channels; ++c) {
    float total = 0;
    for (int j = 0; j < reach; ++j) {
      float part = 0;
      if (inside) {
        const T* row = first + j * args.width * channels + c;
#pragma GCC unroll 8
        for (int k = 0; k < reach; ++k) part += weight_x[k] * static_cast<float>(row[k * channels]);
      } else {
        for (int k = 0; k < reach; ++k) part += weight_x[k] * outside<T>(args, v + j, h + k, c, static_cast<float>(out[c]));
      }
      total += weight_y[j] * part;
    }
    out[c] = rounded<T>(total);
  }
}

// Interpolate one pixel from its four neighbours, some of which may lie outside.
template <class T>
[[gnu::noinline]] void sample_four(const SampleArgs& args, std::int64_t h, std::int64_t v, float part_x, float part_y,
                                   T* out) noexcept {
  for (int c = 0; c < args.channels; ++c) {
    const float now = static_cast<float>(out[c]);
    const float p = outside<T>(args, v, h, c, now), q = outside<T>(args, v, h + 1, c, now),
                r = outside<T>(args, v + 1, h, c, now), s = outside<T>(args, v + 1, h + 1, c, now);
    const float upper = p + part_x * (q - p), lower = r + part_x * (s - r);
    out[c] = rounded<T>(upper + part_y * (lower - upper));
  }
}

// Two neighbouring byte pixels from one place on, in a word. Eight bytes are read, of which 2 * channels count.
template <int channels>
inline void pixel_pair(const std::uint8_t* at, std::uint32_t& left, std::uint32_t& right) noexcept {
  if constexpr (channels == 1) {
    left = at[0], right = at[1];
  } else if constexpr (channels == 2) {
    std::uint32_t both;
    __builtin_memcpy(&both, at, 4);
    left = both, right = both >> 16;
  } else {
    std::uint64_t both;
    __builtin_memcpy(&both, at, 8);
    left = static_cast<std::uint32_t>(both), right = static_cast<std::uint32_t>(both >> (8 * channels));
  }
}
template <int c>
inline float channel_of(std::uint32_t pixel) noexcept {
  return static_cast<float>(static_cast<std::int32_t>((pixel >> (8 * c)) & 255u));
}
// Return how many pixels before the end of an image are too close to it for pixel_pair.
template <int channels>
inline constexpr std::int32_t kSparePixels = channels == 3 ? 1 : 0;

// Call f with the number of channels as a constant, first to last.
template <int channels, int c = 0, class F>
inline void for_channels(const F& f) noexcept {
  if constexpr (c < channels) {
    f.template operator()<c>();
    for_channels<channels, c + 1>(f);
  }
}

// Linear, byte pixels of up to four channels.
template <int channels>
inline void linear_bytes(const SampleArgs& args, const Windows& at, std::int64_t start, std::int64_t count,
                         std::uint8_t* out) noexcept {
  const auto* image = static_cast<const std::uint8_t*>(args.image);
  const std::int64_t below = args.width * channels;
  std::uint32_t corner[4][kBlock];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint8_t* from = image + (std::int64_t{at.row[start + i]} * args.width + at.column[start + i]) * channels;
    pixel_pair<channels>(from, corner[0][i], corner[1][i]);
    pixel_pair<channels>(from + below, corner[2][i], corner[3][i]);
  }
  Planes<std::uint8_t> result;
  const float *part_x = at.part_x + start, *part_y = at.part_y + start;
  for_channels<channels>([&]<int c>() {
    std::uint8_t* to = result.p[c];
    for (std::int64_t i = 0; i < count; ++i) {
      const float p = channel_of<c>(corner[0][i]), q = channel_of<c>(corner[1][i]), r = channel_of<c>(corner[2][i]),
                  s = channel_of<c>(corner[3][i]);
      const float upper = p + part_x[i] * (q - p), lower = r + part_x[i] * (s - r);
      to[i] = rounded<std::uint8_t>(upper + part_y[i] * (lower - upper));
    }
  });
  merge<std::uint8_t>(result.at, channels, out, count);
}

// Cubic, byte pixels of up to four channels: one row of the windows at a time.
template <int channels>
inline void cubic_bytes(const SampleArgs& args, const Windows& at, std::int64_t start, std::int64_t count,
                        std::uint8_t* out) noexcept {
  const auto* image = static_cast<const std::uint8_t*>(args.image);
  float weight_x[4][kBlock], weight_y[4][kBlock], total[channels][kBlock] = {};
  std::uint32_t pixel[4][kBlock];
  for (std::int64_t i = 0; i < count; ++i) {
    float x[4], y[4];
    cubic(at.part_x[start + i], x);
    cubic(at.part_y[start + i], y);
    weight_x[0][i] = x[0], weight_x[1][i] = x[1], weight_x[2][i] = x[2], weight_x[3][i] = x[3];
    weight_y[0][i] = y[0], weight_y[1][i] = y[1], weight_y[2][i] = y[2], weight_y[3][i] = y[3];
  }
  for (int j = 0; j < 4; ++j) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t* from = image + (std::int64_t{at.row[start + i] + j} * args.width + at.column[start + i]) * channels;
      pixel_pair<channels>(from, pixel[0][i], pixel[1][i]);
      pixel_pair<channels>(from + 2 * channels, pixel[2][i], pixel[3][i]);
    }
    const float* weight = weight_y[j];
    for_channels<channels>([&]<int c>() {
      float* sum = total[c];
      for (std::int64_t i = 0; i < count; ++i) {
        const float part = weight_x[0][i] * channel_of<c>(pixel[0][i]) + weight_x[1][i] * channel_of<c>(pixel[1][i]) +
                           weight_x[2][i] * channel_of<c>(pixel[2][i]) + weight_x[3][i] * channel_of<c>(pixel[3][i]);
        sum[i] += weight[i] * part;
      }
    });
  }
  Planes<std::uint8_t> result;
  for (int c = 0; c < channels; ++c)
    for (std::int64_t i = 0; i < count; ++i) result.p[c][i] = rounded<std::uint8_t>(total[c][i]);
  merge<std::uint8_t>(result.at, channels, out, count);
}

// Linear, all pixel types: gathered by channel and corner.
template <class T, int channels>
inline void linear_pixels(const SampleArgs& args, const Windows& at, std::int64_t start, std::int64_t count, T* out) noexcept {
  const T* image = static_cast<const T*>(args.image);
  const std::int64_t below = args.width * channels;
  T corner[channels][4][kBlock];
  for (std::int64_t i = 0; i < count; ++i) {
    const T* from = image + (std::int64_t{at.row[start + i]} * args.width + at.column[start + i]) * channels;
#pragma GCC unroll 4
    for (int c = 0; c < channels; ++c) {
      corner[c][0][i] = from[c];
      corner[c][1][i] = from[c + channels];
      corner[c][2][i] = from[below + c];
      corner[c][3][i] = from[below + c + channels];
    }
  }
  Planes<T> result;
  const float *part_x = at.part_x + start, *part_y = at.part_y + start;
  for (int c = 0; c < channels; ++c) {
    const T *p = corner[c][0], *q = corner[c][1], *r = corner[c][2], *s = corner[c][3];
    T* to = result.p[c];
    for (std::int64_t i = 0; i < count; ++i) {
      const float upper = static_cast<float>(p[i]) + part_x[i] * (static_cast<float>(q[i]) - static_cast<float>(p[i]));
      const float lower = static_cast<float>(r[i]) + part_x[i] * (static_cast<float>(s[i]) - static_cast<float>(r[i]));
      to[i] = rounded<T>(upper + part_y[i] * (lower - upper));
    }
  }
  merge<T>(result.at, channels, out, count);
}

// Return the column or row nearest to a place; NaN is before the first.
inline std::int32_t nearest_of(float x) noexcept {
  x = x > -4e6f ? x : -4e6f;
  return whole_small(x < 4e6f ? x : 4e6f);
}

// Compute where the nearest pixels of a block lie, 0 for those outside, and flags: 1 outside, 2 for the last `spare` pixels of
// the image, which are processed separately; return true where a flag is set. The image has less than 2^31 pixels.
[[gnu::noinline]] bool find_nearest(const SampleArgs& args, const float* x, const float* y, std::int32_t spare,
                                    std::int64_t count, std::int32_t* place, std::uint8_t* outside) noexcept {
  const auto width = static_cast<std::uint32_t>(args.width), height = static_cast<std::uint32_t>(args.height);
  const std::uint32_t end = width * height - static_cast<std::uint32_t>(spare);
  std::uint32_t any = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto h = static_cast<std::uint32_t>(nearest_of(x[i])), v = static_cast<std::uint32_t>(nearest_of(y[i]));
    const std::uint32_t at = v * width + h;
    const std::uint32_t out = (h >= width) | (v >= height) ? 1 : 0, last = at >= end ? 2 : 0, kind = out != 0 ? 1 : last;
    place[i] = static_cast<std::int32_t>(out != 0 ? 0 : at);
    outside[i] = static_cast<std::uint8_t>(kind);
    any |= kind;
  }
  return any != 0;
}

// Pixels of `size` bytes; those of three bytes are written as words, each of which the next one overwrites.
template <std::int64_t size>
inline void copy_fixed(const std::byte* image, const std::int32_t* place, std::int64_t count, std::byte* out) noexcept {
  std::int64_t i = 0;
  if constexpr (size == 3) {
#pragma GCC unroll 4
    for (; i + 1 < count; ++i) __builtin_memcpy(out + i * 3, image + std::int64_t{place[i]} * 3, 4);
  }
  for (; i < count; ++i) __builtin_memcpy(out + i * size, image + std::int64_t{place[i]} * size, size);
}
inline void copy_pixels(const std::byte* image, const std::int32_t* place, std::int64_t size, std::int64_t count,
                        std::byte* out) noexcept {
  switch (size) {
    case 1: return copy_fixed<1>(image, place, count, out);
    case 2: return copy_fixed<2>(image, place, count, out);
    case 3: return copy_fixed<3>(image, place, count, out);
    case 4: return copy_fixed<4>(image, place, count, out);
    case 12: return copy_fixed<12>(image, place, count, out);
    default: break;
  }
  for (std::int64_t i = 0; i < count; ++i)
    __builtin_memcpy(out + i * size, image + place[i] * size, static_cast<std::size_t>(size));
}

// The pixels nearest to the places, `size` bytes each; `fill` is the pixel of the constant border, followed by one more byte.
[[gnu::noinline]] void nearest_pixels(const SampleArgs& args, const std::byte* fill, std::int64_t size, const float* x,
                                      const float* y, std::byte* out, std::int64_t count) noexcept {
  const auto* image = static_cast<const std::byte*>(args.image);
  std::int32_t place[kBlock];
  std::uint8_t outside[kBlock];
  // Three bytes are read as four.
  if (!find_nearest(args, x, y, size == 3 ? 1 : 0, count, place, outside)) return copy_pixels(image, place, size, count, out);
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t end = run_end(outside, 0, i, count);
    if (end > i) copy_pixels(image, place + i, size, end - i, out + i * size);
    for (i = end; i < count && outside[i] == 2; ++i)
      __builtin_memcpy(out + i * size, image + place[i] * size, static_cast<std::size_t>(size));
    const std::int64_t last = run_end(outside, 1, i, count);
    if (args.border == 0) {  // places outside are 0
      copy_pixels(fill, place + i, size, last - i, out + i * size);
      i = last;
    }
    for (; i < last; ++i) {
      const std::int64_t row = border_at(args.border, nearest_of(y[i]), args.height),
                         column = border_at(args.border, nearest_of(x[i]), args.width);
      if (row >= 0 && column >= 0)
        __builtin_memcpy(out + i * size, image + (row * args.width + column) * size, static_cast<std::size_t>(size));
      else if (args.border != 5)
        __builtin_memcpy(out + i * size, fill, static_cast<std::size_t>(size));
    }
  }
}

template <class T, int channels>
inline void sample_few(const SampleArgs& args, const float* x, const float* y, T* out, std::int64_t count) noexcept {
  constexpr bool bytes = sizeof(T) == 1;
  T fill[channels + 1] = {};
  for (int c = 0; c < channels; ++c) fill[c] = rounded<T>(static_cast<float>(args.value[c]));
  if (args.reach == 1)
    return nearest_pixels(args, reinterpret_cast<const std::byte*>(fill), sizeof(T) * channels, x, y,
                          reinterpret_cast<std::byte*>(out), count);
  Windows found;
  find_windows(args, x, y, bytes ? kSparePixels<channels> : 0, count, found);
  const auto inner = [&](std::int64_t start, std::int64_t end) {
    T* to = out + start * channels;
    if constexpr (bytes)
      args.reach == 2 ? linear_bytes<channels>(args, found, start, end - start, to)
                      : cubic_bytes<channels>(args, found, start, end - start, to);
    else
      linear_pixels<T, channels>(args, found, start, end - start, to);
  };
  const auto outer = [&](std::int64_t i) {
    const std::int64_t h = found.column[i], v = found.row[i];
    T* to = out + i * channels;
    const bool apart = h >= args.width || h + args.reach <= 0 || v >= args.height || v + args.reach <= 0;
    if (apart && args.border == 5) return;  // a transparent border leaves a pixel unchanged when it lies outside
    if (apart && args.border == 0) {
      for (int c = 0; c < channels; ++c) to[c] = fill[c];
    } else if (args.reach == 2) {
      sample_four(args, h, v, found.part_x[i], found.part_y[i], to);
    } else {
      float weight_x[4], weight_y[4];
      cubic(found.part_x[i], weight_x);
      cubic(found.part_y[i], weight_y);
      sample_square<4>(args, h, v, weight_x, weight_y, to);
    }
  };
  for_runs(found, count, inner, outer);
}

template <class T>
void sample(const SampleArgs& args, const float* x, const float* y, void* output, std::int64_t count) noexcept {
  T* out = static_cast<T*>(output);
  const int channels = args.channels, reach = args.reach;
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 31;
  if (reach == 1 ? args.height * args.width < kMostPixels : reach == 2 || (reach == 4 && sizeof(T) == 1)) {
    switch (channels) {
      case 1: return sample_few<T, 1>(args, x, y, out, count);
      case 2: return sample_few<T, 2>(args, x, y, out, count);
      case 3: return sample_few<T, 3>(args, x, y, out, count);
      case 4: return sample_few<T, 4>(args, x, y, out, count);
      default: break;
    }
  }
  for (std::int64_t i = 0; i < count; ++i, out += channels) {
    const float at_x = near_or_far(x[i]), at_y = near_or_far(y[i]);
    if (reach == 1) {
      const std::int64_t h = nearest_of(x[i]), v = nearest_of(y[i]);
      for (int c = 0; c < channels; ++c) out[c] = rounded<T>(outside<T>(args, v, h, c, static_cast<float>(out[c])));
    } else if (reach == 2 || reach == 4) {
      const std::int32_t h = floor_of(at_x), v = floor_of(at_y);
      const float part_x = at_x - static_cast<float>(h), part_y = at_y - static_cast<float>(v);
      if (reach == 2) {
        sample_four(args, h, v, part_x, part_y, out);
        continue;
      }
      float weight_x[4], weight_y[4];
      cubic(part_x, weight_x);
      cubic(part_y, weight_y);
      sample_square<4>(args, std::int64_t{h} - 1, std::int64_t{v} - 1, weight_x, weight_y, out);
    } else {
      // Places are in 32nds of a pixel.
      const std::int64_t fine_x = floor_of(at_x * 32.0f + 0.5f), fine_y = floor_of(at_y * 32.0f + 0.5f);
      const std::int64_t h = (fine_x >> 5) - reach / 2 + 1, v = (fine_y >> 5) - reach / 2 + 1;
      const float *weight_x = args.weights + (fine_x & 31) * reach, *weight_y = args.weights + (fine_y & 31) * reach;
      sample_square<8>(args, h, v, weight_x, weight_y, out);
    }
  }
}

void affine_places(const PlaceArgs& args, std::int64_t start, float* x, float* y, std::int64_t count) noexcept {
  const auto first = static_cast<std::int32_t>(start);
  const float dx = args.dx, x0 = args.x0, dy = args.dy, y0 = args.y0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto column = static_cast<float>(first + static_cast<std::int32_t>(i));
    x[i] = dx * column + x0;
    y[i] = dy * column + y0;
  }
}
void perspective_places(const PlaceArgs& args, std::int64_t start, float* x, float* y, std::int64_t count) noexcept {
  const auto first = static_cast<std::int32_t>(start);
  const float dx = args.dx, x0 = args.x0, dy = args.dy, y0 = args.y0, dw = args.dw, w0 = args.w0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto column = static_cast<float>(first + static_cast<std::int32_t>(i));
    const float w = dw * column + w0;
    x[i] = (dx * column + x0) / w;
    y[i] = (dy * column + y0) / w;
  }
}
