// Conversion between interleaved pixels and planes, in blocks that stay in the L1 cache. The including instruction set defines
// split3_bytes, merge3_bytes and permute_groups, which process a prefix and return its length.

inline constexpr std::int64_t kBlock = 256;

// Mark the table entries for pixels of 16 bits, and those for which registers wider than avx2's are no faster (on Zen 4).
// An instruction set that defines WALLE_STARTS_FROM_AVX2 leaves them unchanged.
#if defined(WALLE_STARTS_FROM_AVX2)
#define WALLE_WORDS(...)
#define WALLE_ANY_WIDTH(...)
#else
#define WALLE_WORDS(...) __VA_ARGS__
#define WALLE_ANY_WIDTH(...) __VA_ARGS__
#endif

template <class T>
struct Limits {
  static constexpr T kMost = sizeof(T) == 1 ? T(255) : T(65535);
};
template <>
struct Limits<float> {
  static constexpr float kMost = 1.0f;
};

// Round half to even where |x| < 2^22; compiles to two additions, which every instruction set vectorises.
inline float round_small(float x) noexcept { return (x + 12582912.0f) - 12582912.0f; }
// The same as an integer, taken from the sum's lowest bits.
inline std::int32_t whole_small(float x) noexcept {
  return __builtin_bit_cast(std::int32_t, x + 12582912.0f) - __builtin_bit_cast(std::int32_t, 12582912.0f);
}

inline float clamped(float x, float low, float high) noexcept {
  x = x < low ? low : x;
  return x > high ? high : x;
}
inline std::int32_t clamped(std::int32_t x, std::int32_t low, std::int32_t high) noexcept {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// Select one of two by bit masks, which the compiler cannot turn into a branch.
inline float pick(bool which, float yes, float no) noexcept {
  const std::int32_t mask = -static_cast<std::int32_t>(which);
  return __builtin_bit_cast(float,
                            (__builtin_bit_cast(std::int32_t, yes) & mask) | (__builtin_bit_cast(std::int32_t, no) & ~mask));
}

// Convert a float in 0..1 to a pixel, rounded half to even and saturated.
template <class T>
inline T pixel_of(float x) noexcept {
  if constexpr (sizeof(T) == 4) return x;
  const float most = static_cast<float>(Limits<T>::kMost);
  return static_cast<T>(whole_small(clamped(x * most, 0.0f, most)));
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

// Reorder the bytes of each group of `group` (at most 16): byte j of a group is byte order(j) of the bytes at in + g * step.
// Return how many groups were done: all except the last few.
template <class Order>
inline std::int64_t reorder_groups(const std::uint8_t* in, std::int64_t step, std::uint8_t* out, std::int64_t group,
                                   std::int64_t total, const Order& order) noexcept {
  if (total < 16) return 0;
  alignas(16) std::int8_t lanes[16] = {};
#pragma GCC unroll 16  // the order is a constant
  for (std::int64_t j = 0; j < group; ++j) lanes[j] = static_cast<std::int8_t>(order(j));
  return permute_groups(in, step, out, group, lanes, (total - 16) / group + 1);
}

// Exchange blue and red of triples of bytes.
inline void swap_triples(const std::uint8_t* in, std::uint8_t* out, std::int64_t pixels) noexcept {
  std::int64_t i = 5 * reorder_groups(in, 15, out, 15, 3 * pixels, [](std::int64_t j) { return j / 3 * 3 + 2 - j % 3; });
  for (; i < pixels; ++i) {
    const std::uint8_t first = in[3 * i], second = in[3 * i + 1], third = in[3 * i + 2];
    out[3 * i] = third, out[3 * i + 1] = second, out[3 * i + 2] = first;
  }
}

template <std::int64_t size>
inline void reverse_fixed(const std::uint8_t* in, std::uint8_t* out, std::int64_t count) noexcept {
  constexpr std::int64_t each = 16 / size, group = each * size;
  const std::int64_t total = count * size;
  // Sixteen bytes that end at the end of a group, from the last group backwards.
  std::int64_t done = each * reorder_groups(in + total - 16, -group, out, group, total,
                                            [](std::int64_t j) { return 16 - group + (each - 1 - j / size) * size + j % size; });
  for (; done < count; ++done) __builtin_memcpy(out + done * size, in + (count - 1 - done) * size, size);
}
[[maybe_unused]] void reverse_items(const void* input, std::int64_t size, void* output, std::int64_t count) noexcept {
  const auto* in = static_cast<const std::uint8_t*>(input);
  auto* out = static_cast<std::uint8_t*>(output);
  switch (size) {
    case 1: return reverse_fixed<1>(in, out, count);
    case 2: return reverse_fixed<2>(in, out, count);
    case 3: return reverse_fixed<3>(in, out, count);
    case 4: return reverse_fixed<4>(in, out, count);
    case 6: return reverse_fixed<6>(in, out, count);
    case 8: return reverse_fixed<8>(in, out, count);
    default: break;
  }
  for (std::int64_t i = 0; i < count; ++i)
    __builtin_memcpy(out + i * size, in + (count - 1 - i) * size, static_cast<std::size_t>(size));
}

void planes3(const void* input, void* output, std::int64_t plane, std::int64_t count) noexcept {
  auto* out = static_cast<std::uint8_t*>(output);
  std::uint8_t* to[4] = {out, out + plane, out + 2 * plane, nullptr};
  split(static_cast<const std::uint8_t*>(input), 3, to, count);
}

void weave(const void* input, std::int64_t plane, int channels, void* output, std::int64_t count) noexcept {
  const auto* in = static_cast<const std::uint8_t*>(input);
  const std::uint8_t* from[4] = {in, in + plane, in + 2 * plane, in + 3 * plane};
  merge(from, channels, static_cast<std::uint8_t*>(output), count);
}
