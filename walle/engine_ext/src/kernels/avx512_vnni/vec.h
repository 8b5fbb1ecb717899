// What AVX512_VNNI adds to avx512/vec.h: sums of products of bytes. Included by build.cpp inside its target region and namespace;
// nothing here may be seen by any other file. Numbers of 32 bits stand in vectors of floats by their bits.

struct QuadProduct {
  static Vec add(Vec factor, Vec columns, Vec sum) noexcept {
    return _mm512_castsi512_ps(
        _mm512_dpbusd_epi32(_mm512_castps_si512(sum), _mm512_castps_si512(factor), _mm512_castps_si512(columns)));
  }
  static Vec joined(Vec sum, Vec other) noexcept {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum), _mm512_castps_si512(other)));
  }
  static Vec bounded(Vec sum, Vec, Vec) noexcept { return sum; }
};

// The first `count` (1 to 16) bytes of four rows, four by four; behind them whatever.
inline __m128i bytes_of(const std::uint8_t* p, std::int64_t count) noexcept {
  if (count == kLanes) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  std::uint8_t some[16] = {};
  for (std::int64_t i = 0; i < count; ++i) some[i] = p[i];
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(some));
}
inline Vec quad(const std::uint8_t* p0, const std::uint8_t* p1, const std::uint8_t* p2, const std::uint8_t* p3, std::uint8_t flip,
                std::int64_t count) noexcept {
  const __m512i low =
      _mm512_or_si512(_mm512_cvtepu8_epi32(bytes_of(p0, count)), _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes_of(p1, count)), 8));
  const __m512i high = _mm512_or_si512(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes_of(p2, count)), 16),
                                       _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes_of(p3, count)), 24));
  const __m512i flips = _mm512_set1_epi32(static_cast<int>(0x01010101u * flip));
  return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_or_si512(low, high), flips));
}
inline void store_apart(float* p, Vec v, std::int64_t step, std::int64_t count) noexcept {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  _mm512_mask_i32scatter_ps(p, first_lanes(count), _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(step))), v, 4);
}
inline Vec quantised(Vec sums, Vec scale, float zero, float low, float high) noexcept {
  const Vec value = add(round(mul(_mm512_cvtepi32_ps(_mm512_castps_si512(sums)), scale)), set(zero));
  return _mm512_castsi512_ps(_mm512_cvttps_epi32(min_or_second(max_or_second(value, set(low)), set(high))));
}
// The lowest byte of each of the first `count` lanes.
inline void store_bytes(std::uint8_t* p, Vec v, std::int64_t count) noexcept {
  _mm512_mask_cvtepi32_storeu_epi8(p, first_lanes(count), _mm512_castps_si512(v));
}
