// Interleaved pixels as planes and back, in blocks that stay in the first cache. The including instruction set has given
// split3_bytes and merge3_bytes, which do as many pixels as they like and say how many.

inline constexpr std::int64_t kBlock = 256;

template <class T>
struct Limits {
  static constexpr T kMost = sizeof(T) == 1 ? T(255) : T(65535);
};
template <>
struct Limits<float> {
  static constexpr float kMost = 1.0f;
};

// Rounds half to even where |x| < 2^22; compiles to two additions, which every instruction set has as vectors.
inline float round_small(float x) noexcept { return (x + 12582912.0f) - 12582912.0f; }

inline float clamped(float x, float low, float high) noexcept {
  x = x < low ? low : x;
  return x > high ? high : x;
}
inline std::int32_t clamped(std::int32_t x, std::int32_t low, std::int32_t high) noexcept {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// A float in 0..1 as a pixel, rounded half to even and saturated.
template <class T>
inline T pixel_of(float x) noexcept {
  if constexpr (sizeof(T) == 4) return x;
  const float most = static_cast<float>(Limits<T>::kMost);
  return static_cast<T>(static_cast<std::int32_t>(round_small(clamped(x * most, 0.0f, most))));
}
template <class T>
inline float unit_of(T x) noexcept {
  if constexpr (sizeof(T) == 4) return static_cast<float>(x);
  return static_cast<float>(x) * (1.0f / static_cast<float>(Limits<T>::kMost));
}

template <class T>
inline void split(const T* in, int channels, T* const* to, std::int64_t count) noexcept {
  std::int64_t i = 0;
  T *a = to[0], *b = to[1], *c = to[2], *d = to[3];
  if (channels == 1) {
    for (; i < count; ++i) a[i] = in[i];
  } else if (channels == 2) {
    for (; i < count; ++i) a[i] = in[2 * i], b[i] = in[2 * i + 1];
  } else if (channels == 3) {
    if constexpr (sizeof(T) == 1)
      i = split3_bytes(reinterpret_cast<const std::uint8_t*>(in), reinterpret_cast<std::uint8_t*>(a),
                       reinterpret_cast<std::uint8_t*>(b), reinterpret_cast<std::uint8_t*>(c), count);
    for (; i < count; ++i) a[i] = in[3 * i], b[i] = in[3 * i + 1], c[i] = in[3 * i + 2];
  } else {
    for (; i < count; ++i) a[i] = in[4 * i], b[i] = in[4 * i + 1], c[i] = in[4 * i + 2], d[i] = in[4 * i + 3];
  }
}

template <class T>
inline void merge(const T* const* from, int channels, T* out, std::int64_t count) noexcept {
  std::int64_t i = 0;
  const T *a = from[0], *b = from[1], *c = from[2], *d = from[3];
  if (channels == 1) {
    for (; i < count; ++i) out[i] = a[i];
  } else if (channels == 2) {
    for (; i < count; ++i) out[2 * i] = a[i], out[2 * i + 1] = b[i];
  } else if (channels == 3) {
    if constexpr (sizeof(T) == 1)
      i = merge3_bytes(reinterpret_cast<const std::uint8_t*>(a), reinterpret_cast<const std::uint8_t*>(b),
                       reinterpret_cast<const std::uint8_t*>(c), reinterpret_cast<std::uint8_t*>(out), count);
    for (; i < count; ++i) out[3 * i] = a[i], out[3 * i + 1] = b[i], out[3 * i + 2] = c[i];
  } else {
    for (; i < count; ++i) out[4 * i] = a[i], out[4 * i + 1] = b[i], out[4 * i + 2] = c[i], out[4 * i + 3] = d[i];
  }
}
