// Conversions between colour spaces, pixel by pixel. Integers are computed in the fixed-point arithmetic whose constants OpenCV
// documents for 8 and 16 bits, so results are bit-identical where that arithmetic is in integers; conversions that go through
// floats agree within one level.

template <class T>
struct Planes {
  T p[4][kBlock];
  T* at[4] = {p[0], p[1], p[2], p[3]};
};

inline std::int32_t descale(std::int32_t x, int bits) noexcept { return (x + (1 << (bits - 1))) >> bits; }

// out = m * in + bias, integers with `bits` fractional bits, saturated.
template <class T>
inline void matrix3(const std::int32_t (&m)[9], int bits, const T* x, const T* y, const T* z, T* a, T* b, T* c,
                    std::int64_t count) noexcept {
  constexpr std::int32_t most = static_cast<std::int32_t>(Limits<T>::kMost);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t u = x[i], v = y[i], w = z[i];
    a[i] = static_cast<T>(clamped(descale(m[0] * u + m[1] * v + m[2] * w, bits), 0, most));
    b[i] = static_cast<T>(clamped(descale(m[3] * u + m[4] * v + m[5] * w, bits), 0, most));
    c[i] = static_cast<T>(clamped(descale(m[6] * u + m[7] * v + m[8] * w, bits), 0, most));
  }
}
inline void matrix3(const float (&m)[9], const float* x, const float* y, const float* z, float* a, float* b, float* c,
                    std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const float u = x[i], v = y[i], w = z[i];
    a[i] = m[0] * u + m[1] * v + m[2] * w;
    b[i] = m[3] * u + m[4] * v + m[5] * w;
    c[i] = m[6] * u + m[7] * v + m[8] * w;
  }
}

template <class T>
inline void to_gray(const T* b, const T* g, const T* r, T* out, std::int64_t count) noexcept {
  if constexpr (sizeof(T) == 4) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = 0.114f * b[i] + 0.587f * g[i] + 0.299f * r[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = static_cast<T>(
          (std::uint32_t{3735} * b[i] + std::uint32_t{19235} * g[i] + std::uint32_t{9798} * r[i] + (1u << 14)) >> 15);
  }
}

template <class T>
inline void to_luma(bool crcb, const T* b, const T* g, const T* r, T* luma, T* first, T* second, std::int64_t count) noexcept {
  if constexpr (sizeof(T) == 4) {
    const float red = crcb ? 0.713f : 0.877f, blue = crcb ? 0.564f : 0.492f;
    for (std::int64_t i = 0; i < count; ++i) {
      const float y = 0.114f * b[i] + 0.587f * g[i] + 0.299f * r[i];
      const float from_red = (r[i] - y) * red + 0.5f, from_blue = (b[i] - y) * blue + 0.5f;
      luma[i] = y;
      first[i] = crcb ? from_red : from_blue;
      second[i] = crcb ? from_blue : from_red;
    }
  } else {
    constexpr std::int32_t most = static_cast<std::int32_t>(Limits<T>::kMost), half = (most + 1) / 2;
    const std::int32_t red = crcb ? 11682 : 14369, blue = crcb ? 9241 : 8061;
    T *reds = crcb ? first : second, *blues = crcb ? second : first;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t y = descale(1868 * b[i] + 9617 * g[i] + 4899 * r[i], 14);
      luma[i] = static_cast<T>(y);
      reds[i] = static_cast<T>(clamped(((r[i] - y) * red + (half << 14) + (1 << 13)) >> 14, 0, most));
      blues[i] = static_cast<T>(clamped(((b[i] - y) * blue + (half << 14) + (1 << 13)) >> 14, 0, most));
    }
  }
}

template <class T>
inline void from_luma(bool crcb, const T* luma, const T* first, const T* second, T* b, T* g, T* r, std::int64_t count) noexcept {
  const T *reds = crcb ? first : second, *blues = crcb ? second : first;
  if constexpr (sizeof(T) == 4) {
    const float rr = crcb ? 1.403f : 1.140f, rg = crcb ? -0.714f : -0.581f, bg = crcb ? -0.344f : -0.395f,
                bb = crcb ? 1.773f : 2.032f;
    for (std::int64_t i = 0; i < count; ++i) {
      const float y = luma[i], cr = reds[i] - 0.5f, cb = blues[i] - 0.5f;
      b[i] = y + cb * bb;
      g[i] = y + cb * bg + cr * rg;
      r[i] = y + cr * rr;
    }
  } else {
    constexpr std::int32_t most = static_cast<std::int32_t>(Limits<T>::kMost), half = (most + 1) / 2;
    const std::int32_t rr = crcb ? 22987 : 18678, rg = crcb ? -11698 : -9519, bg = crcb ? -5636 : -6472,
                       bb = crcb ? 29049 : 33292;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t y = luma[i], cr = reds[i] - half, cb = blues[i] - half;
      b[i] = static_cast<T>(clamped(y + descale(cb * bb, 14), 0, most));
      g[i] = static_cast<T>(clamped(y + descale(cb * bg + cr * rg, 14), 0, most));
      r[i] = static_cast<T>(clamped(y + descale(cr * rr, 14), 0, most));
    }
  }
}

inline constexpr float kToXyz[9] = {0.180423f, 0.357580f, 0.412453f, 0.072169f, 0.715160f,
                                    0.212671f, 0.950227f, 0.119193f, 0.019334f};
inline constexpr float kFromXyz[9] = {0.055648f, -0.204043f, 1.057311f, -0.969256f, 1.875991f,
                                      0.041556f, 3.240479f,  -1.53715f, -0.498535f};
inline constexpr std::int32_t kToXyzWhole[9] = {739, 1465, 1689, 296, 2929, 871, 3892, 488, 79};
inline constexpr std::int32_t kFromXyzWhole[9] = {228, -836, 4331, -3970, 7684, 170, 13273, -6296, -2042};

template <class T>
inline void to_hsv(const ColorArgs& args, const T* b, const T* g, const T* r, T* hue, T* saturation, T* value,
                   std::int64_t count) noexcept {
  if constexpr (sizeof(T) == 1) {
    const float hues = args.full ? 256.0f : 180.0f;
    const std::int32_t turn = args.full ? 256 : 180;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t blue = b[i], green = g[i], red = r[i];
      std::int32_t v = blue > green ? blue : green, least = blue < green ? blue : green;
      v = v > red ? v : red;
      least = least < red ? least : red;
      const std::int32_t range = v - least;
      const std::int32_t per_value = whole_small(1044480.0f / static_cast<float>(v > 0 ? v : 1));
      const std::int32_t per_range = whole_small(hues * 4096.0f / (6.0f * static_cast<float>(range > 0 ? range : 1)));
      std::int32_t h = v == red ? green - blue : v == green ? blue - red + 2 * range : red - green + 4 * range;
      h = (h * per_range + (1 << 11)) >> 12;
      h += h < 0 ? turn : 0;
      hue[i] = static_cast<std::uint8_t>(h > 255 ? 255 : h);
      saturation[i] = static_cast<std::uint8_t>((range * per_value + (1 << 11)) >> 12);
      value[i] = static_cast<std::uint8_t>(v);
    }
  } else if constexpr (sizeof(T) == 4) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float blue = b[i], green = g[i], red = r[i];
      float v = blue > green ? blue : green, least = blue < green ? blue : green;
      v = v > red ? v : red;
      least = least < red ? least : red;
      const float range = v - least, size = v < 0 ? -v : v;
      const float scale = 60.0f / (range + 1.1920929e-7f);
      float h = v == red ? (green - blue) * scale : v == green ? (blue - red) * scale + 120.0f : (red - green) * scale + 240.0f;
      h += h < 0 ? 360.0f : 0.0f;
      hue[i] = h;
      saturation[i] = range / (size + 1.1920929e-7f);
      value[i] = v;
    }
  }
}

// A hue in sixths of a turn, 0 to 6: return the sixth and the fraction within it.
template <class T>
inline float hue_part(const ColorArgs& args, T hue, std::int32_t* sixth) noexcept {
  float h = static_cast<float>(hue) * (sizeof(T) == 4 ? 6.0f / 360.0f : args.full ? 6.0f / 255.0f : 6.0f / 180.0f);
  if constexpr (sizeof(T) == 4) {
    float turns = static_cast<float>(static_cast<std::int32_t>(h / 6.0f));
    turns -= turns * 6.0f > h ? 1.0f : 0.0f;
    h -= turns * 6.0f;
  } else {
    h -= pick(h >= 6.0f, 6.0f, 0.0f);
  }
  *sixth = static_cast<std::int32_t>(h);
  return h - static_cast<float>(*sixth);
}

// For each sixth, which of the greatest, the least, the falling and the rising value blue, green and red take.
struct HueColor {
  float blue, green, red;
};
inline HueColor hue_to_rgb(std::int32_t sixth, float v, float p, float q, float t) noexcept {
  return {pick(sixth < 2, p, pick(sixth < 3, t, pick(sixth < 5, v, q))),
          pick(sixth < 1, t, pick(sixth < 3, v, pick(sixth < 4, q, p))),
          pick(sixth < 1, v, pick(sixth < 2, q, pick(sixth < 4, p, pick(sixth < 5, t, v))))};
}

template <class T>
inline void from_hsv(const ColorArgs& args, const T* hue, const T* saturation, const T* value, T* b, T* g, T* r,
                     std::int64_t count) noexcept {
  const auto shown = [](float x) {
    if constexpr (sizeof(T) == 4) return x;
    return static_cast<T>(static_cast<std::int32_t>(clamped(x * 255.0f, 0.0f, 255.0f)));  // toward zero, as in OpenCV's vectors
  };
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t sixth;
    const float part = hue_part(args, hue[i], &sixth), s = unit_of(saturation[i]), v = unit_of(value[i]);
    const HueColor color = hue_to_rgb(sixth, v, v * (1 - s), v * (1 - s * part), v * (1 - s * (1 - part)));
    b[i] = shown(color.blue);
    g[i] = shown(color.green);
    r[i] = shown(color.red);
  }
}

template <class T>
inline void to_hls(const ColorArgs& args, const T* b, const T* g, const T* r, T* hue, T* lightness, T* saturation,
                   std::int64_t count) noexcept {
  const float hues = sizeof(T) == 4 ? 1.0f : args.full ? 255.0f / 360.0f : 0.5f;
  for (std::int64_t i = 0; i < count; ++i) {
    const float blue = unit_of(b[i]), green = unit_of(g[i]), red = unit_of(r[i]);
    float most = blue > green ? blue : green, least = blue < green ? blue : green;
    most = most > red ? most : red;
    least = least < red ? least : red;
    const float range = most - least, sum = most + least, l = sum * 0.5f;
    const bool some = range > 1.1920929e-7f;
    const float denominator = l < 0.5f ? sum : 2.0f - sum;
    const float s = range / (some ? denominator : 1.0f), scale = 60.0f / (some ? range : 1.0f);
    float h = most == red     ? (green - blue) * scale
              : most == green ? (blue - red) * scale + 120.0f
                              : (red - green) * scale + 240.0f;
    h += h < 0 ? 360.0f : 0.0f;
    h = some ? h : 0.0f;
    if constexpr (sizeof(T) == 4) {
      hue[i] = h;
    } else {
      hue[i] = static_cast<T>(whole_small(clamped(h * hues, 0.0f, 255.0f)));
    }
    lightness[i] = pixel_of<T>(l);
    saturation[i] = pixel_of<T>(some ? s : 0.0f);
  }
}

template <class T>
inline void from_hls(const ColorArgs& args, const T* hue, const T* lightness, const T* saturation, T* b, T* g, T* r,
                     std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t sixth;
    const float part = hue_part(args, hue[i], &sixth), l = unit_of(lightness[i]), s = unit_of(saturation[i]);
    const float p2 = pick(l <= 0.5f, l * (1 + s), l + s - l * s), p1 = 2 * l - p2;
    const HueColor color = hue_to_rgb(sixth, p2, p1, p2 + (p1 - p2) * part, p1 + (p2 - p1) * part);
    b[i] = pixel_of<T>(color.blue);
    g[i] = pixel_of<T>(color.green);
    r[i] = pixel_of<T>(color.red);
  }
}

inline float cube_root(float x) noexcept { return __builtin_cbrtf(x); }
inline float power(float x, float y) noexcept { return __builtin_powf(x, y); }
inline float linear_of(float x) noexcept { return x <= 0.04045f ? x / 12.92f : power((x + 0.055f) / 1.055f, 2.4f); }
inline float gamma_of(float x) noexcept { return x <= 0.0031308f ? x * 12.92f : 1.055f * power(x, 1 / 2.4f) - 0.055f; }

// Return linear light of a pixel of the blue, green or red plane, 0..1.
template <class T>
inline float light(const ColorArgs& args, T x) noexcept {
  if constexpr (sizeof(T) == 1) return args.linear ? unit_of(x) : args.tables->linear[x];
  const float unit = clamped(unit_of(x), 0.0f, 1.0f);
  return args.linear ? unit : linear_of(unit);
}
// Convert linear light to pixels.
template <class T>
inline void show(const ColorArgs& args, const float* given, T* out, std::int64_t count) noexcept {
  if (args.linear) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = pixel_of<T>(clamped(given[i], 0.0f, 1.0f));
  } else if constexpr (sizeof(T) == 1) {
    std::int32_t place[kBlock];
    for (std::int64_t i = 0; i < count; ++i)
      place[i] = static_cast<std::int32_t>(clamped(given[i], 0.0f, 1.0f) * ColorTables::kGamma + 0.5f);
    const std::uint8_t* gamma = args.tables->gamma;
    for (std::int64_t i = 0; i < count; ++i) out[i] = gamma[place[i]];
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = pixel_of<T>(gamma_of(clamped(given[i], 0.0f, 1.0f)));
  }
}

inline constexpr float kWhiteX = 0.950456f, kWhiteZ = 1.088754f;

template <class T>
inline void to_lab(const ColorArgs& args, const T* b, const T* g, const T* r, T* l, T* first, T* second,
                   std::int64_t count) noexcept {
  if constexpr (sizeof(T) == 1) {
    constexpr std::int32_t m[9] = {778, 1541, 1777, 296, 2929, 871, 3575, 448, 73};  // kToXyz divided by the white point, 12 bits
    const std::uint16_t* table = args.linear ? args.tables->straight_u8 : args.tables->linear_u8;
    const std::uint16_t* roots = args.tables->cube_root;
    std::int32_t x[kBlock], y[kBlock], z[kBlock];
    for (std::int64_t i = 0; i < count; ++i) x[i] = table[b[i]], y[i] = table[g[i]], z[i] = table[r[i]];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t blue = x[i], green = y[i], red = z[i];
      x[i] = descale(m[0] * blue + m[1] * green + m[2] * red, 12);
      y[i] = descale(m[3] * blue + m[4] * green + m[5] * red, 12);
      z[i] = descale(m[6] * blue + m[7] * green + m[8] * red, 12);
    }
    for (std::int64_t i = 0; i < count; ++i) x[i] = roots[x[i]], y[i] = roots[y[i]], z[i] = roots[z[i]];
    for (std::int64_t i = 0; i < count; ++i) {
      l[i] = static_cast<T>(clamped(descale(296 * y[i] - 1336934, 15), 0, 255));
      first[i] = static_cast<T>(clamped(descale(500 * (x[i] - y[i]) + (128 << 15), 15), 0, 255));
      second[i] = static_cast<T>(clamped(descale(200 * (y[i] - z[i]) + (128 << 15), 15), 0, 255));
    }
  } else if constexpr (sizeof(T) == 4) {
    const auto f = [](float x) { return x > 0.008856f ? cube_root(x) : 7.787f * x + 16.0f / 116.0f; };
    for (std::int64_t i = 0; i < count; ++i) {
      const float blue = light(args, b[i]), green = light(args, g[i]), red = light(args, r[i]);
      const float x = (kToXyz[0] * blue + kToXyz[1] * green + kToXyz[2] * red) / kWhiteX;
      const float y = kToXyz[3] * blue + kToXyz[4] * green + kToXyz[5] * red;
      const float z = (kToXyz[6] * blue + kToXyz[7] * green + kToXyz[8] * red) / kWhiteZ;
      const float fx = f(x), fy = f(y), fz = f(z);
      l[i] = y > 0.008856f ? 116.0f * fy - 16.0f : 903.3f * y;
      first[i] = 500.0f * (fx - fy);
      second[i] = 200.0f * (fy - fz);
    }
  }
}

// Convert CIE XYZ to pixels.
struct Xyz {
  float x[kBlock], y[kBlock], z[kBlock];
};
template <class T>
inline void show_xyz(const ColorArgs& args, const Xyz& from, T* b, T* g, T* r, std::int64_t count) noexcept {
  Xyz light;
  matrix3(kFromXyz, from.x, from.y, from.z, light.x, light.y, light.z, count);
  show(args, light.x, b, count);
  show(args, light.y, g, count);
  show(args, light.z, r, count);
}

template <class T>
inline void from_lab(const ColorArgs& args, const T* l, const T* first, const T* second, T* b, T* g, T* r,
                     std::int64_t count) noexcept {
  constexpr bool whole = sizeof(T) == 1;
  const auto inverse = [](float f) { return pick(f > 0.206893f, f * f * f, (f - 16.0f / 116.0f) / 7.787f); };
  Xyz xyz;
  for (std::int64_t i = 0; i < count; ++i) {
    const float li = static_cast<float>(l[i]) * (whole ? 100.0f / 255.0f : 1.0f);
    const float a = static_cast<float>(first[i]) - (whole ? 128.0f : 0.0f),
                bb = static_cast<float>(second[i]) - (whole ? 128.0f : 0.0f);
    const float bright = (li + 16.0f) / 116.0f;
    const float y = pick(li <= 8.0f, li / 903.3f, bright * bright * bright);
    const float fy = pick(li <= 8.0f, 7.787f * y + 16.0f / 116.0f, bright);
    xyz.x[i] = inverse(a / 500.0f + fy) * kWhiteX;
    xyz.y[i] = y;
    xyz.z[i] = inverse(fy - bb / 200.0f) * kWhiteZ;
  }
  show_xyz(args, xyz, b, g, r, count);
}

inline constexpr float kWhiteSum = kWhiteX + 15.0f + 3.0f * kWhiteZ, kWhiteU = 4.0f * kWhiteX / kWhiteSum,
                       kWhiteV = 9.0f / kWhiteSum;

template <class T>
inline void to_luv(const ColorArgs& args, const T* b, const T* g, const T* r, T* l, T* first, T* second,
                   std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const float blue = light(args, b[i]), green = light(args, g[i]), red = light(args, r[i]);
    const float x = kToXyz[0] * blue + kToXyz[1] * green + kToXyz[2] * red;
    const float y = kToXyz[3] * blue + kToXyz[4] * green + kToXyz[5] * red;
    const float z = kToXyz[6] * blue + kToXyz[7] * green + kToXyz[8] * red;
    float li;
    if constexpr (sizeof(T) == 1) {
      const float at = y * 2040.0f;
      const std::int32_t low = clamped(static_cast<std::int32_t>(at), 0, 2040);
      const float f0 = args.tables->cube_root[low], f1 = args.tables->cube_root[low + 1];
      li = 116.0f / 32768.0f * (f0 + (f1 - f0) * (at - static_cast<float>(low))) - 16.0f;
    } else {
      li = y > 0.008856f ? 116.0f * cube_root(y) - 16.0f : 903.3f * y;
    }
    const float d = 52.0f / ((x + 15 * y + 3 * z) > 1.1920929e-7f ? x + 15 * y + 3 * z : 1.1920929e-7f);
    const float u = li * (x * d - 13 * kWhiteU), v = li * (9.0f / 4.0f * y * d - 13 * kWhiteV);
    if constexpr (sizeof(T) == 4) {
      l[i] = li, first[i] = u, second[i] = v;
    } else {
      l[i] = static_cast<T>(whole_small(clamped(li * 2.55f, 0.0f, 255.0f)));
      first[i] = static_cast<T>(whole_small(clamped((u + 134.0f) * (255.0f / 354.0f), 0.0f, 255.0f)));
      second[i] = static_cast<T>(whole_small(clamped((v + 140.0f) * (255.0f / 262.0f), 0.0f, 255.0f)));
    }
  }
}

template <class T>
inline void from_luv(const ColorArgs& args, const T* l, const T* first, const T* second, T* b, T* g, T* r,
                     std::int64_t count) noexcept {
  constexpr bool whole = sizeof(T) == 1;
  Xyz xyz;
  for (std::int64_t i = 0; i < count; ++i) {
    const float li = static_cast<float>(l[i]) * (whole ? 100.0f / 255.0f : 1.0f);
    const float u = whole ? static_cast<float>(first[i]) * (354.0f / 255.0f) - 134.0f : static_cast<float>(first[i]);
    const float v = whole ? static_cast<float>(second[i]) * (262.0f / 255.0f) - 140.0f : static_cast<float>(second[i]);
    const float bright = (li + 16.0f) / 116.0f;
    const float y = pick(li > 8.0f, bright * bright * bright, li / 903.3f);
    const float up = 3.0f * (u + li * (13 * kWhiteU));
    const float vp = clamped(0.25f / (v + li * (13 * kWhiteV)), -0.25f, 0.25f);
    xyz.x[i] = 3.0f * y * up * vp;
    xyz.y[i] = y;
    xyz.z[i] = y * ((12.0f * 13.0f * li - up) * vp - 5.0f);
  }
  show_xyz(args, xyz, b, g, r, count);
}

template <class T>
inline void alpha(bool premultiply, const T* colour, const T* opacity, T* out, std::int64_t count) noexcept {
  if constexpr (sizeof(T) == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t c = colour[i], a = opacity[i];
      if (premultiply)
        out[i] = static_cast<T>((c * a + 127) / 255);
      else
        out[i] = a == 0 ? T(0) : static_cast<T>(clamped(static_cast<std::int32_t>((c * 255 + a / 2) / a), 0, 255));
    }
  }
}

// Two bytes a pixel, the low byte first: blue, green, red from the lowest bits up; with five green bits the highest bit is alpha.
template <class T>
inline void to_packed(int green_bits, const T* b, const T* g, const T* r, const T* opacity, T* low, T* high,
                      std::int64_t count) noexcept {
  if constexpr (sizeof(T) == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t blue = b[i] >> 3, green = g[i], red = r[i];
      const std::uint32_t x =
          green_bits == 6 ? blue | (green & ~3u) << 3 | (red & ~7u) << 8
                          : blue | (green & ~7u) << 2 | (red & ~7u) << 7 | (opacity != nullptr && opacity[i] != 0 ? 0x8000u : 0u);
      low[i] = static_cast<T>(x);
      high[i] = static_cast<T>(x >> 8);
    }
  }
}
template <class T>
inline void from_packed(int green_bits, const T* low, const T* high, T* b, T* g, T* r, T* opacity, std::int64_t count) noexcept {
  if constexpr (sizeof(T) == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t x = low[i] | static_cast<std::uint32_t>(high[i]) << 8;
      b[i] = static_cast<T>(x << 3);
      g[i] = static_cast<T>(green_bits == 6 ? (x >> 3) & ~3u : (x >> 2) & ~7u);
      r[i] = static_cast<T>(green_bits == 6 ? (x >> 8) & ~7u : (x >> 7) & ~7u);
      opacity[i] = static_cast<T>(green_bits == 6 || (x & 0x8000u) != 0 ? 255 : 0);
    }
  }
}

template <class T>
void color(const ColorArgs& args, const void* input, void* output, std::int64_t pixels) noexcept {
  const T* in = static_cast<const T*>(input);
  T* out = static_cast<T*>(output);
  if constexpr (sizeof(T) == 1)
    if (args.kind == ColorKind::shuffle && args.swapped && args.in_channels == 3 && args.out_channels == 3)
      return swap_triples(in, out, pixels);
  if constexpr (sizeof(T) == 4)
    if (args.kind == ColorKind::to_gray && args.in_channels == 3) {
      const float first = args.blue_first ? 0.114f : 0.299f, third = args.blue_first ? 0.299f : 0.114f;
      for (std::int64_t i = gray_floats(in, first, 0.587f, third, out, pixels); i < pixels; ++i)
        out[i] = first * in[3 * i] + 0.587f * in[3 * i + 1] + third * in[3 * i + 2];
      return;
    }
  Planes<T> from, to;
  for (std::int64_t start = 0; start < pixels;
       start += kBlock, in += kBlock * args.in_channels, out += kBlock * args.out_channels) {
    const std::int64_t count = pixels - start < kBlock ? pixels - start : kBlock;
    split(in, args.in_channels, from.at, count);
    T *const *f = from.at, **t = to.at;
    const T *b = f[args.blue_first ? 0 : 2], *g = f[1], *r = f[args.blue_first ? 2 : 0];
    T *tb = to.p[args.blue_first ? 0 : 2], *tg = to.p[1], *tr = to.p[args.blue_first ? 2 : 0];
    const T* result[4] = {to.p[0], to.p[1], to.p[2], to.p[3]};
    const auto opaque = [&] {
      if (args.out_channels == 4)
        for (std::int64_t i = 0; i < count; ++i) to.p[3][i] = Limits<T>::kMost;
    };
    switch (args.kind) {
      case ColorKind::shuffle:
        result[0] = f[args.swapped ? 2 : 0], result[1] = f[1], result[2] = f[args.swapped ? 0 : 2];
        if (args.in_channels == 4)
          result[3] = f[3];
        else
          opaque();
        break;
      case ColorKind::from_gray:
        result[0] = result[1] = result[2] = f[0];
        opaque();
        break;
      case ColorKind::to_gray: to_gray(b, g, r, t[0], count); break;
      case ColorKind::to_luma: to_luma(args.crcb, b, g, r, t[0], t[1], t[2], count); break;
      case ColorKind::from_luma:
        from_luma(args.crcb, f[0], f[1], f[2], tb, tg, tr, count);
        opaque();
        break;
      case ColorKind::to_xyz:
        if constexpr (sizeof(T) == 4)
          matrix3(kToXyz, b, g, r, t[0], t[1], t[2], count);
        else
          matrix3(kToXyzWhole, 12, b, g, r, t[0], t[1], t[2], count);
        break;
      case ColorKind::from_xyz:
        if constexpr (sizeof(T) == 4)
          matrix3(kFromXyz, f[0], f[1], f[2], tb, tg, tr, count);
        else
          matrix3(kFromXyzWhole, 12, f[0], f[1], f[2], tb, tg, tr, count);
        opaque();
        break;
      case ColorKind::to_hsv: to_hsv(args, b, g, r, t[0], t[1], t[2], count); break;
      case ColorKind::to_hls: to_hls(args, b, g, r, t[0], t[1], t[2], count); break;
      case ColorKind::to_lab: to_lab(args, b, g, r, t[0], t[1], t[2], count); break;
      case ColorKind::to_luv: to_luv(args, b, g, r, t[0], t[1], t[2], count); break;
      case ColorKind::from_hsv:
        from_hsv(args, f[0], f[1], f[2], tb, tg, tr, count);
        opaque();
        break;
      case ColorKind::from_hls:
        from_hls(args, f[0], f[1], f[2], tb, tg, tr, count);
        opaque();
        break;
      case ColorKind::from_lab:
        from_lab(args, f[0], f[1], f[2], tb, tg, tr, count);
        opaque();
        break;
      case ColorKind::from_luv:
        from_luv(args, f[0], f[1], f[2], tb, tg, tr, count);
        opaque();
        break;
      case ColorKind::premultiply:
      case ColorKind::unpremultiply:
        for (int k = 0; k < 3; ++k) alpha(args.kind == ColorKind::premultiply, f[k], f[3], t[k], count);
        result[3] = f[3];
        break;
      case ColorKind::to_packed:
        to_packed(args.green_bits, b, g, r, args.in_channels == 4 ? f[3] : nullptr, t[0], t[1], count);
        break;
      case ColorKind::from_packed: from_packed(args.green_bits, f[0], f[1], tb, tg, tr, to.p[3], count); break;
      case ColorKind::packed_to_gray:
        from_packed(args.green_bits, f[0], f[1], to.p[1], to.p[2], to.p[3], from.p[2], count);
        to_gray(to.p[1], to.p[2], to.p[3], t[0], count);
        break;
      case ColorKind::gray_to_packed: to_packed<T>(args.green_bits, f[0], f[0], f[0], nullptr, t[0], t[1], count); break;
      case ColorKind::kCount: break;
    }
    merge(result, args.out_channels, out, count);
  }
}
