// Gathering of three-byte pixels from ascending places, by permutations of two or four registers that hold all source pixels.
// Included by image.cpp inside its target region and namespace, after <immintrin.h>.

// Sixteen pixels as words, from `count` bytes read.
inline __m512i triples_at(const std::uint8_t* in, std::int64_t count) noexcept {
  const __mmask64 there = count >= 48 ? (__mmask64{1} << 48) - 1 : count > 0 ? (__mmask64{1} << count) - 1 : 0;
  const __m512i spread = _mm512_setr_epi32(0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12);  // four pixels to each quarter
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(spread, _mm512_maskz_loadu_epi8(there, in)), order);
}

// out[t * out_step + i] = the pixel at places[t * step + i]. Processes sixteen pixels at a time while their sources lie within
// sixty-four pixels; returns how many pixels were done for all taps.
template <int taps>
inline std::int64_t gather_triples(const std::int32_t* places, std::int64_t step, const std::uint8_t* in, std::uint32_t* out,
                                   std::int64_t out_step, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m512i place[taps];
    std::int32_t first = places[i], last = places[i + 15];
    for (int t = 0; t < taps; ++t) {
      const std::int32_t* at = places + t * step + i;
      place[t] = _mm512_loadu_si512(at);
      first = first < at[0] ? first : at[0];
      last = last > at[15] ? last : at[15];
    }
    const std::int32_t span = last - first + 1;
    if (span > 64) return i;
    __mmask16 beyond = 0;
    for (int t = 0; t < taps; ++t) {
      place[t] = _mm512_sub_epi32(place[t], _mm512_set1_epi32(first));
      beyond |= _mm512_cmpge_epu32_mask(place[t], _mm512_set1_epi32(span));
    }
    if (beyond != 0) return i;
    const std::uint8_t* from = in + std::int64_t{first} * 3;
    const std::int64_t bytes = std::int64_t{span} * 3;
    const __m512i a = triples_at(from, bytes), b = triples_at(from + 48, bytes - 48);
    if (span <= 32) {
      for (int t = 0; t < taps; ++t) _mm512_storeu_si512(out + t * out_step + i, _mm512_permutex2var_epi32(a, place[t], b));
      continue;
    }
    const __m512i c = triples_at(from + 96, bytes - 96), d = triples_at(from + 144, bytes - 144);
    for (int t = 0; t < taps; ++t) {
      const __m512i low = _mm512_permutex2var_epi32(a, place[t], b), high = _mm512_permutex2var_epi32(c, place[t], d);
      const __mmask16 upper = _mm512_test_epi32_mask(place[t], _mm512_set1_epi32(32));
      _mm512_storeu_si512(out + t * out_step + i, _mm512_mask_blend_epi32(upper, low, high));
    }
  }
  return i;
}
