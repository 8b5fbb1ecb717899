// Byte shuffles that split and merge pixels, and other image loops that the compiler does not vectorise. Included by the
// image.cpp of x86 instruction sets inside their target region and namespace, after <immintrin.h>.

// Shuffle for the bytes of plane k in register `part` of three: lane i takes byte 3 * i + k - 16 * part if it is in that
// register.
template <int k, int part>
struct SplitLanes {
  alignas(16) std::int8_t lane[16]{};
  constexpr SplitLanes() {
    for (int i = 0; i < 16; ++i) {
      const int at = 3 * i + k - 16 * part;
      lane[i] = static_cast<std::int8_t>(at >= 0 && at < 16 ? at : -128);
    }
  }
};
// Shuffle for the bytes of plane k in register `part` of the merged three: byte j belongs to pixel (16 * part + j) / 3.
template <int k, int part>
struct MergeLanes {
  alignas(16) std::int8_t lane[16]{};
  constexpr MergeLanes() {
    for (int j = 0; j < 16; ++j) {
      const int at = 16 * part + j;
      lane[j] = static_cast<std::int8_t>(at % 3 == k ? at / 3 : -128);
    }
  }
};
template <class Lanes>
inline constexpr Lanes kLanesOf{};
template <int k, int part>
inline __m128i split_mask() noexcept {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(kLanesOf<SplitLanes<k, part>>.lane));
}
template <int k, int part>
inline __m128i merge_mask() noexcept {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(kLanesOf<MergeLanes<k, part>>.lane));
}

template <int k>
inline __m128i pick3(__m128i x, __m128i y, __m128i z) noexcept {
  return _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(x, split_mask<k, 0>()), _mm_shuffle_epi8(y, split_mask<k, 1>())),
                      _mm_shuffle_epi8(z, split_mask<k, 2>()));
}
template <int part>
inline __m128i weave3(__m128i a, __m128i b, __m128i c) noexcept {
  return _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(a, merge_mask<0, part>()), _mm_shuffle_epi8(b, merge_mask<1, part>())),
                      _mm_shuffle_epi8(c, merge_mask<2, part>()));
}

inline std::int64_t split3_bytes(const std::uint8_t* in, std::uint8_t* a, std::uint8_t* b, std::uint8_t* c,
                                 std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const auto* from = reinterpret_cast<const __m128i*>(in + 3 * i);
    const __m128i x = _mm_loadu_si128(from), y = _mm_loadu_si128(from + 1), z = _mm_loadu_si128(from + 2);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(a + i), pick3<0>(x, y, z));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(b + i), pick3<1>(x, y, z));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(c + i), pick3<2>(x, y, z));
  }
  return i;
}

inline std::int64_t merge3_bytes(const std::uint8_t* a, const std::uint8_t* b, const std::uint8_t* c, std::uint8_t* out,
                                 std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    auto* to = reinterpret_cast<__m128i*>(out + 3 * i);
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i));
    const __m128i z = _mm_loadu_si128(reinterpret_cast<const __m128i*>(c + i));
    _mm_storeu_si128(to, weave3<0>(x, y, z));
    _mm_storeu_si128(to + 1, weave3<1>(x, y, z));
    _mm_storeu_si128(to + 2, weave3<2>(x, y, z));
  }
  return i;
}

// Reorder the bytes of groups of up to sixteen bytes; groups are `step` bytes apart in `in`, `group` bytes in `out`, and sixteen
// bytes are read and written for each.
inline std::int64_t permute_groups(const std::uint8_t* in, std::int64_t step, std::uint8_t* out, std::int64_t group,
                                   const std::int8_t* lanes, std::int64_t count) noexcept {
  const __m128i order = _mm_load_si128(reinterpret_cast<const __m128i*>(lanes));
  for (std::int64_t g = 0; g < count; ++g, in += step, out += group)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)), order));
  return count;
}

// out[i] = above[i] + in[0] + ... + in[i], eight at a time; returns the number of elements done, and leaves their sum in `carry`.
inline std::int64_t running_sums(const std::uint8_t* in, const std::int32_t* above, std::int32_t* out, std::int64_t count,
                                 std::int32_t* carry) noexcept {
  __m256i sum = _mm256_set1_epi32(*carry);
  const __m256i last = _mm256_set1_epi32(7);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m128i part = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i)));
    part = _mm_add_epi16(part, _mm_slli_si128(part, 2));
    part = _mm_add_epi16(part, _mm_slli_si128(part, 4));
    part = _mm_add_epi16(part, _mm_slli_si128(part, 8));
    const __m256i here = _mm256_add_epi32(_mm256_cvtepu16_epi32(part), sum);
    const __m256i total = _mm256_add_epi32(here, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(above + i)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), total);
    sum = _mm256_permutevar8x32_epi32(here, last);
  }
  *carry = _mm256_cvtsi256_si32(sum);
  return i;
}

// Compute the weighted sums of triples of floats, eight pixels at a time.
inline __m256 both_at(const float* low) noexcept {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(low + 12), 1);
}
inline std::int64_t gray_floats(const float* in, float first, float second, float third, float* out,
                                std::int64_t count) noexcept {
  const __m256 u = _mm256_set1_ps(first), v = _mm256_set1_ps(second), w = _mm256_set1_ps(third);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    // Of each half a0 b0 c0 a1, b1 c1 a2 b2 and c2 a3 b3 c3.
    const __m256 x = both_at(in + 3 * i), y = both_at(in + 3 * i + 4), z = both_at(in + 3 * i + 8);
    const __m256 late = _mm256_shuffle_ps(y, z, _MM_SHUFFLE(2, 1, 3, 2)),
                 early = _mm256_shuffle_ps(x, y, _MM_SHUFFLE(1, 0, 2, 1));
    const __m256 a = _mm256_shuffle_ps(x, late, _MM_SHUFFLE(2, 0, 3, 0));
    const __m256 b = _mm256_shuffle_ps(early, late, _MM_SHUFFLE(3, 1, 2, 0));
    const __m256 c = _mm256_shuffle_ps(early, z, _MM_SHUFFLE(3, 0, 3, 1));
    _mm256_storeu_ps(out + i, _mm256_fmadd_ps(w, c, _mm256_fmadd_ps(v, b, _mm256_mul_ps(u, a))));
  }
  return i;
}

// out[i] = first * a[i] + second * b[i] + third, rounded half to even and saturated, sixteen at a time.
inline __m256i weighted_eight(__m128i a, __m128i b, __m256 first, __m256 second, __m256 third) noexcept {
  const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(a)), y = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b));
  const __m256 sum = _mm256_add_ps(_mm256_fmadd_ps(x, first, _mm256_mul_ps(y, second)), third);
  return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(255.0f), sum));  // values far below 0 convert to the least integer
}
inline std::int64_t weighted_bytes(const std::uint8_t* a, const std::uint8_t* b, float first, float second, float third,
                                   std::uint8_t* out, std::int64_t length) noexcept {
  const __m256 u = _mm256_set1_ps(first), v = _mm256_set1_ps(second), w = _mm256_set1_ps(third);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
  std::int64_t i = 0;
  for (; i + 16 <= length; i += 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i)),
                  y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i));
    const __m256i words =
        _mm256_packs_epi32(weighted_eight(x, y, u, v, w), weighted_eight(_mm_srli_si128(x, 8), _mm_srli_si128(y, 8), u, v, w));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, words), order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_castsi256_si128(bytes));
  }
  return i;
}
