// Vector primitives of AVX512_VNNI, in addition to avx512/vec.h: bytes, and sums of their products. Included by build.cpp inside
// its target region and namespace; no other file may include this. Vectors of floats hold 32-bit integers by their bits.

inline __m512i bits(Vec v) noexcept { return _mm512_castps_si512(v); }
inline Vec from_bits(__m512i v) noexcept { return _mm512_castsi512_ps(v); }

struct QuadProduct {
  static constexpr bool kPackedSteps = false;
  static Vec add(Vec factor, Vec columns, Vec sum) noexcept {
    return from_bits(_mm512_dpbusd_epi32(bits(sum), bits(factor), bits(columns)));
  }
  static Vec joined(Vec sum, Vec other) noexcept { return from_bits(_mm512_add_epi32(bits(sum), bits(other))); }
  static Vec bounded(Vec sum, Vec, Vec) noexcept { return sum; }
};

// For int32 values that fit int16.
inline Vec plus_product(Vec sum, Vec a, Vec b) noexcept { return from_bits(_mm512_dpwssd_epi32(bits(sum), bits(a), bits(b))); }
inline Vec widened(const std::uint8_t* p) noexcept {
  return from_bits(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Vec widened_first(const std::uint8_t* p, std::int64_t count) noexcept {
  return from_bits(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(count), p)));
}
inline Vec whole(std::int32_t x) noexcept { return from_bits(_mm512_set1_epi32(x)); }
inline Vec add_whole(Vec a, Vec b) noexcept { return from_bits(_mm512_add_epi32(bits(a), bits(b))); }
inline Vec flipped(Vec v, std::uint8_t flip) noexcept { return from_bits(_mm512_xor_si512(bits(v), _mm512_set1_epi32(flip))); }
inline Vec to_floats(Vec v) noexcept { return _mm512_cvtepi32_ps(bits(v)); }
inline Vec rounded(Vec v) noexcept { return from_bits(_mm512_cvtps_epi32(v)); }
// The lowest byte of each of the first `count` lanes.
inline void store_bytes(std::uint8_t* p, Vec v, std::int64_t count) noexcept {
  const __m128i bytes = _mm512_cvtepi32_epi8(bits(v));
  if (count == kLanes)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  else
    _mm_mask_storeu_epi8(p, first_lanes(count), bytes);
}
