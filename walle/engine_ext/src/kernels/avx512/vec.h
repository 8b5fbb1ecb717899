// Vector primitives of AVX-512 (F, DQ): sixteen floats. Included by build.cpp inside its target region and namespace, after
// <immintrin.h>; no other file may include this.

inline constexpr std::int64_t kLanes = 16;
// Rows of accumulators that fit in registers beside one row of two blocks, and of one.
inline constexpr int kPairRows = 14, kSingleRows = 14;
using Vec = __m512;
using Mask = __mmask16;

inline Vec load(const float* p) noexcept { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec v) noexcept { _mm512_storeu_ps(p, v); }
inline Vec set(float x) noexcept { return _mm512_set1_ps(x); }
inline Vec add(Vec a, Vec b) noexcept { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) noexcept { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) noexcept { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) noexcept { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) noexcept { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
inline Vec nfma(Vec a, Vec b, Vec c) noexcept { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
// Half as many doubles, for products of matrices.
using DoubleVec = __m512d;
inline DoubleVec load(const double* p) noexcept { return _mm512_loadu_pd(p); }
inline void store(double* p, DoubleVec v) noexcept { _mm512_storeu_pd(p, v); }
inline DoubleVec set_double(double x) noexcept { return _mm512_set1_pd(x); }
inline DoubleVec fma(DoubleVec a, DoubleVec b, DoubleVec c) noexcept { return _mm512_fmadd_pd(a, b, c); }  // a * b + c
inline Vec sqrt(Vec a) noexcept { return _mm512_sqrt_ps(a); }
inline Vec round(Vec a) noexcept { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec floor(Vec a) noexcept { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline Vec ceil(Vec a) noexcept { return _mm512_roundscale_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
// If either is NaN: b.
inline Vec max_or_second(Vec a, Vec b) noexcept { return _mm512_max_ps(a, b); }
inline Vec min_or_second(Vec a, Vec b) noexcept { return _mm512_min_ps(a, b); }
inline Vec sign_bit(Vec a) noexcept { return _mm512_and_ps(a, _mm512_set1_ps(-0.0f)); }
inline Vec abs(Vec a) noexcept { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
inline Vec neg(Vec a) noexcept { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
inline Vec bit_or(Vec a, Vec b) noexcept { return _mm512_or_ps(a, b); }
inline Mask less(Vec a, Vec b) noexcept { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Mask is_nan(Vec a) noexcept { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Vec choose(Mask mask, Vec yes, Vec no) noexcept { return _mm512_mask_blend_ps(mask, no, yes); }
// a * 2^n for integers n; a subnormal result is rounded once.
inline Vec scale_by_power(Vec a, Vec n) noexcept { return _mm512_scalef_ps(a, n); }
// x = m * 2^k with m in [sqrt(1/2), sqrt(2)]: return k; -infinity for 0 and infinity for infinity; for NaN and x < 0, k or m is
// NaN.
inline Vec split(Vec x, Vec& m) noexcept {
  const Vec whole = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan), k = _mm512_getexp_ps(x);
  const Mask far = less(set(1.41421354f), whole);
  m = _mm512_mask_mul_ps(whole, far, whole, set(0.5f));
  return _mm512_mask_add_ps(k, far, k, set(1.0f));
}
// The bits of a positive number as an integer, rounded to a float, and the inverse.
inline Vec bits_as_numbers(Vec x) noexcept { return _mm512_cvtepi32_ps(_mm512_castps_si512(x)); }
inline Vec numbers_as_bits(Vec x) noexcept { return _mm512_castsi512_ps(_mm512_cvtps_epi32(x)); }
inline double sum(Vec v) noexcept {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}
// The first `count` lanes (0 to kLanes); the others read as 0 and are not written.
inline Mask first_lanes(std::int64_t count) noexcept { return static_cast<Mask>((1u << count) - 1); }
inline Vec load_first(const float* p, std::int64_t count) noexcept { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
inline void store_first(float* p, Vec v, std::int64_t count) noexcept { _mm512_mask_storeu_ps(p, first_lanes(count), v); }

// tile[i][j] becomes tile[j][i].
inline void transpose_lanes(Vec (&tile)[16]) noexcept {
  Vec pairs[16], quads[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(tile[i], tile[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(tile[i], tile[i + 1]);
  }
  // quads[4 * q + k]: of the rows 4q to 4q + 3, the columns k, k + 4, k + 8, k + 12.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    quads[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[i + 2])));
    quads[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[i + 2])));
    quads[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(pairs[i + 1]), _mm512_castps_pd(pairs[i + 3])));
    quads[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(pairs[i + 1]), _mm512_castps_pd(pairs[i + 3])));
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const Vec low_even = _mm512_shuffle_f32x4(quads[k], quads[4 + k], 0x88),
              low_odd = _mm512_shuffle_f32x4(quads[k], quads[4 + k], 0xdd);
    const Vec high_even = _mm512_shuffle_f32x4(quads[8 + k], quads[12 + k], 0x88),
              high_odd = _mm512_shuffle_f32x4(quads[8 + k], quads[12 + k], 0xdd);
    tile[k] = _mm512_shuffle_f32x4(low_even, high_even, 0x88);
    tile[4 + k] = _mm512_shuffle_f32x4(low_odd, high_odd, 0x88);
    tile[8 + k] = _mm512_shuffle_f32x4(low_even, high_even, 0xdd);
    tile[12 + k] = _mm512_shuffle_f32x4(low_odd, high_odd, 0xdd);
  }
}

// Lane indices; negative ones select nothing.
using Lanes = __m512i;
inline Lanes load_lanes(const std::int32_t* p) noexcept { return _mm512_loadu_si512(p); }
inline Mask is_lane(Lanes lanes) noexcept { return _mm512_cmpge_epi32_mask(lanes, _mm512_setzero_si512()); }
inline Vec permute(Vec v, Lanes lanes) noexcept { return _mm512_permutexvar_ps(lanes, v); }
