// Vector primitives of byte kernels, in addition to avx2/vec.h. Included by bytes.cpp inside its target region and namespace; no
// other file may include this. Vectors of floats hold 32-bit integers by their bits.

inline __m256i bits(Vec v) noexcept { return _mm256_castps_si256(v); }
inline Vec from_bits(__m256i v) noexcept { return _mm256_castsi256_ps(v); }

// Bytes are widened to 16 bits, even and odd ones separately: the instruction that multiplies bytes saturates.
struct QuadProduct {
  static constexpr bool kPackedSteps = false;
  static Vec add(Vec factor, Vec columns, Vec sum) noexcept {
    const __m256i a = bits(factor), w = bits(columns);
    const __m256i even =
        _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(0xff)), _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(w, 8));
    return from_bits(_mm256_add_epi32(bits(sum), _mm256_add_epi32(even, odd)));
  }
  static Vec joined(Vec sum, Vec other) noexcept { return from_bits(_mm256_add_epi32(bits(sum), bits(other))); }
  static Vec bounded(Vec sum, Vec, Vec) noexcept { return sum; }
};

// For int32 values that fit int16.
inline Vec plus_product(Vec sum, Vec a, Vec b) noexcept {
  return from_bits(_mm256_add_epi32(bits(sum), _mm256_madd_epi16(bits(a), bits(b))));
}
inline Vec widened(const std::uint8_t* p) noexcept {
  return from_bits(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Vec widened_first(const std::uint8_t* p, std::int64_t count) noexcept {
  alignas(8) std::uint8_t some[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) some[i] = p[i];
  return widened(some);
}
inline Vec whole(std::int32_t x) noexcept { return from_bits(_mm256_set1_epi32(x)); }
inline Vec add_whole(Vec a, Vec b) noexcept { return from_bits(_mm256_add_epi32(bits(a), bits(b))); }
inline Vec flipped(Vec v, std::uint8_t flip) noexcept { return from_bits(_mm256_xor_si256(bits(v), _mm256_set1_epi32(flip))); }
inline Vec to_floats(Vec v) noexcept { return _mm256_cvtepi32_ps(bits(v)); }
inline Vec rounded(Vec v) noexcept { return from_bits(_mm256_cvtps_epi32(v)); }
// The lowest byte of each of the first `count` lanes.
inline void store_bytes(std::uint8_t* p, Vec v, std::int64_t count) noexcept {
  const __m256i lowest = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1,
                                          -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i apart = _mm256_shuffle_epi8(bits(v), lowest);
  const __m128i all = _mm_unpacklo_epi32(_mm256_castsi256_si128(apart), _mm256_extracti128_si256(apart, 1));
  if (count == kLanes) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), all);
    return;
  }
  alignas(16) std::uint8_t some[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(some), all);
  for (std::int64_t i = 0; i < count; ++i) p[i] = some[i];
}
