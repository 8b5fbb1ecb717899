// Vector primitives of AVX512_BF16, in addition to avx512/vec.h: sums of products of bfloat16 pairs, and rounding of floats to
// bfloat16. Included by build.cpp inside its target region and namespace; no other file may include this.

struct PairProduct : FloatProduct {
  static Vec add(Vec factor, Vec columns, Vec sum) noexcept {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(factor), reinterpret_cast<__m512bh>(columns));
  }
};

// Pack 32 neighbours into pairs.
inline Vec narrowed(Vec first, Vec second) noexcept { return reinterpret_cast<Vec>(_mm512_cvtne2ps_pbh(second, first)); }
inline __m512i low_halves(Vec v) noexcept { return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v))); }
inline Vec paired(Vec low, Vec high) noexcept {
  return _mm512_castsi512_ps(_mm512_or_si512(low_halves(low), _mm512_slli_epi32(low_halves(high), 16)));
}
// Write lane i to p[i * step], for the first `count` lanes.
inline void store_apart(float* p, Vec v, std::int64_t step, std::int64_t count) noexcept {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  _mm512_mask_i32scatter_ps(p, first_lanes(count), _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(step))), v, 4);
}
