// An image read between its pixels, in three passes over a block: places and parts (vectors), pixels gathered, their mean
// (vectors).

// Which of `size` elements stands at `at`, -1 for none; the same as border_source of atomic/image.h, whose numbers these are.
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

inline std::int32_t floor_of(float x) noexcept {
  const std::int32_t whole = static_cast<std::int32_t>(x);
  return whole - (static_cast<float>(whole) > x ? 1 : 0);
}

// The value at a place that may be outside; `untouched` is what a transparent border leaves.
template <class T>
inline float outside(const SampleArgs& args, std::int64_t y, std::int64_t x, int channel, float untouched) noexcept {
  const std::int64_t row = border_at(args.border, y, args.height), column = border_at(args.border, x, args.width);
  if (row >= 0 && column >= 0)
    return static_cast<float>(static_cast<const T*>(args.image)[(row * args.width + column) * args.channels + channel]);
  return args.border == 5 ? untouched : static_cast<float>(args.value[channel < 4 ? channel : 3]);
}

template <class T>
inline void sample_linear(const SampleArgs& args, const float* x, const float* y, T* out, std::int64_t count) noexcept {
  std::int32_t column[kBlock], row[kBlock];
  float part_x[kBlock], part_y[kBlock];
  std::int32_t low = 0, inside_x = static_cast<std::int32_t>(args.width) - 2,
               inside_y = static_cast<std::int32_t>(args.height) - 2;
  std::int32_t away = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float at_x = x[i] > -kFarAway && x[i] < kFarAway ? x[i] : -kFarAway;
    const float at_y = y[i] > -kFarAway && y[i] < kFarAway ? y[i] : -kFarAway;
    const std::int32_t whole_x = floor_of(at_x), whole_y = floor_of(at_y);
    column[i] = whole_x;
    row[i] = whole_y;
    part_x[i] = at_x - static_cast<float>(whole_x);
    part_y[i] = at_y - static_cast<float>(whole_y);
    away |= (whole_x < low) | (whole_x > inside_x) | (whole_y < low) | (whole_y > inside_y);
  }
  const int channels = args.channels;
  const T* image = static_cast<const T*>(args.image);
  const std::int64_t below = args.width * channels;
  if (away == 0 && channels <= 4) {
    T corner[4][4][kBlock];  // [channel][corner]
    const auto gather = [&]<int n>() {
      for (std::int64_t i = 0; i < count; ++i) {
        const T* at = image + (std::int64_t{row[i]} * args.width + column[i]) * n;
        for (int c = 0; c < n; ++c) {
          corner[c][0][i] = at[c];
          corner[c][1][i] = at[c + n];
          corner[c][2][i] = at[below + c];
          corner[c][3][i] = at[below + c + n];
        }
      }
    };
    switch (channels) {
      case 1: gather.template operator()<1>(); break;
      case 2: gather.template operator()<2>(); break;
      case 3: gather.template operator()<3>(); break;
      default: gather.template operator()<4>(); break;
    }
    Planes<T> result;
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
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t h = column[i], v = row[i];
    const bool inside = h >= 0 && h <= inside_x && v >= 0 && v <= inside_y;
    // A transparent border leaves a pixel alone when it lies outside; one that reaches outside only is of what there is.
    for (int c = 0; c < channels; ++c) {
      float p, q, r, s;
      if (inside) {
        const T* at = image + (v * args.width + h) * channels + c;
        p = static_cast<float>(at[0]), q = static_cast<float>(at[channels]), r = static_cast<float>(at[below]),
        s = static_cast<float>(at[below + channels]);
      } else {
        const float now = static_cast<float>(out[i * channels + c]);
        p = outside<T>(args, v, h, c, now), q = outside<T>(args, v, h + 1, c, now);
        r = outside<T>(args, v + 1, h, c, now), s = outside<T>(args, v + 1, h + 1, c, now);
      }
      const float upper = p + part_x[i] * (q - p), lower = r + part_x[i] * (s - r);
      out[i * channels + c] = rounded<T>(upper + part_y[i] * (lower - upper));
    }
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

// One pixel of reach * reach others, the first of which is [v, h].
template <int reach, class T>
inline void sample_square(const SampleArgs& args, std::int64_t h, std::int64_t v, const float* weight_x, const float* weight_y,
                          T* out) noexcept {
  const int channels = args.channels;
  const bool inside = h >= 0 && h + reach <= args.width && v >= 0 && v + reach <= args.height;
  const T* first = static_cast<const T*>(args.image) + (v * args.width + h) * channels;
  for (int c = 0; c < channels; ++c) {
    float total = 0;
    for (int j = 0; j < reach; ++j) {
      float part = 0;
      if (inside) {
        const T* row = first + j * args.width * channels + c;
        for (int k = 0; k < reach; ++k) part += weight_x[k] * static_cast<float>(row[k * channels]);
      } else {
        for (int k = 0; k < reach; ++k) part += weight_x[k] * outside<T>(args, v + j, h + k, c, static_cast<float>(out[c]));
      }
      total += weight_y[j] * part;
    }
    out[c] = rounded<T>(total);
  }
}

template <class T>
void sample(const SampleArgs& args, const float* x, const float* y, void* output, std::int64_t count) noexcept {
  T* out = static_cast<T*>(output);
  const int channels = args.channels, reach = args.reach;
  if (reach == 2) return sample_linear(args, x, y, out, count);
  const T* image = static_cast<const T*>(args.image);
  for (std::int64_t i = 0; i < count; ++i, out += channels) {
    const float at_x = x[i] > -kFarAway && x[i] < kFarAway ? x[i] : -kFarAway;
    const float at_y = y[i] > -kFarAway && y[i] < kFarAway ? y[i] : -kFarAway;
    if (reach == 1) {
      const std::int64_t h = static_cast<std::int64_t>(round_small(clamped(at_x, -4e6f, 4e6f)));
      const std::int64_t v = static_cast<std::int64_t>(round_small(clamped(at_y, -4e6f, 4e6f)));
      if (h >= 0 && h < args.width && v >= 0 && v < args.height) {
        const T* at = image + (v * args.width + h) * channels;
        for (int c = 0; c < channels; ++c) out[c] = at[c];
      } else {
        for (int c = 0; c < channels; ++c) out[c] = rounded<T>(outside<T>(args, v, h, c, static_cast<float>(out[c])));
      }
      continue;
    }
    if (reach == 4) {
      const std::int32_t h = floor_of(at_x), v = floor_of(at_y);
      float weight_x[4], weight_y[4];
      cubic(at_x - static_cast<float>(h), weight_x);
      cubic(at_y - static_cast<float>(v), weight_y);
      sample_square<4>(args, std::int64_t{h} - 1, std::int64_t{v} - 1, weight_x, weight_y, out);
      continue;
    }
    // Places are in 32nds of a pixel.
    const std::int64_t fine_x = floor_of(at_x * 32.0f + 0.5f), fine_y = floor_of(at_y * 32.0f + 0.5f);
    const std::int64_t h = (fine_x >> 5) - reach / 2 + 1, v = (fine_y >> 5) - reach / 2 + 1;
    const float *weight_x = args.weights + (fine_x & 31) * reach, *weight_y = args.weights + (fine_y & 31) * reach;
    sample_square<8>(args, h, v, weight_x, weight_y, out);
  }
}
