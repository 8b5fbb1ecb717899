// Vector primitives of AVX2 + FMA: eight floats. Included by build.cpp inside its target region and namespace, after
// <immintrin.h>; no other file may include this.

inline constexpr std::int64_t kLanes = 8;
// Rows of accumulators that fit in registers beside one row of two blocks, and of one.
inline constexpr int kPairRows = 6, kSingleRows = 12;
using Vec = __m256;

inline Vec load(const float* p) noexcept { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec v) noexcept { _mm256_storeu_ps(p, v); }
inline Vec set(float x) noexcept { return _mm256_set1_ps(x); }
inline Vec add(Vec a, Vec b) noexcept { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) noexcept { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) noexcept { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) noexcept { return _mm256_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) noexcept { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
inline Vec nfma(Vec a, Vec b, Vec c) noexcept { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
// Half as many doubles, for products of matrices.
using DoubleVec = __m256d;
inline DoubleVec load(const double* p) noexcept { return _mm256_loadu_pd(p); }
inline void store(double* p, DoubleVec v) noexcept { _mm256_storeu_pd(p, v); }
inline DoubleVec set_double(double x) noexcept { return _mm256_set1_pd(x); }
inline DoubleVec fma(DoubleVec a, DoubleVec b, DoubleVec c) noexcept { return _mm256_fmadd_pd(a, b, c); }  // a * b + c
inline Vec sqrt(Vec a) noexcept { return _mm256_sqrt_ps(a); }
inline Vec round(Vec a) noexcept { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec floor(Vec a) noexcept { return _mm256_floor_ps(a); }
inline Vec ceil(Vec a) noexcept { return _mm256_ceil_ps(a); }
// If either is NaN: b.
inline Vec max_or_second(Vec a, Vec b) noexcept { return _mm256_max_ps(a, b); }
inline Vec min_or_second(Vec a, Vec b) noexcept { return _mm256_min_ps(a, b); }
inline Vec sign_bit(Vec a) noexcept { return _mm256_and_ps(a, _mm256_set1_ps(-0.0f)); }
inline Vec abs(Vec a) noexcept { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline Vec neg(Vec a) noexcept { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
inline Vec bit_or(Vec a, Vec b) noexcept { return _mm256_or_ps(a, b); }
// Masks: all bits of a lane set or none.
inline Vec less(Vec a, Vec b) noexcept { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline Vec is_nan(Vec a) noexcept { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
inline Vec choose(Vec mask, Vec yes, Vec no) noexcept { return _mm256_blendv_ps(no, yes, mask); }
// a * 2^n for integers n in [-252, 254], in two steps so that subnormal results round once.
inline Vec scale_by_power(Vec a, Vec n) noexcept {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const Vec first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const Vec second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, first), second);
}
// x = m * 2^k with m in [sqrt(1/2), sqrt(2)]: return k; -infinity for 0, infinity for infinity, NaN for NaN and x < 0.
inline Vec split(Vec x, Vec& m) noexcept {
  const Vec tiny = less(x, set(1.17549435e-38f)), zero = set(0.0f);
  const __m256i root = _mm256_set1_epi32(0x3f3504f3), bits = _mm256_castps_si256(choose(tiny, mul(x, set(0x1p25f)), x));
  const __m256i offset = _mm256_sub_epi32(bits, root);
  m = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_and_si256(offset, _mm256_set1_epi32(0x7fffff)), root));
  const Vec k = add(_mm256_cvtepi32_ps(_mm256_srai_epi32(offset, 23)), choose(tiny, set(-25.0f), zero));
  const Vec infinite = set(__builtin_inff()), below = choose(less(x, zero), set(__builtin_nanf("")), neg(infinite));
  return choose(less(zero, x), choose(less(x, infinite), k, x), choose(is_nan(x), x, below));
}
// The bits of a positive number as an integer, rounded to a float, and the inverse.
inline Vec bits_as_numbers(Vec x) noexcept { return _mm256_cvtepi32_ps(_mm256_castps_si256(x)); }
inline Vec numbers_as_bits(Vec x) noexcept { return _mm256_castsi256_ps(_mm256_cvtps_epi32(x)); }
inline double sum(Vec v) noexcept {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
  const __m256d both = _mm256_add_pd(low, high);
  const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(both), _mm256_extractf128_pd(both, 1));
  return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}
// The first `count` lanes (0 to kLanes); the others read as 0 and are not written.
inline __m256i first_lanes(std::int64_t count) noexcept {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec load_first(const float* p, std::int64_t count) noexcept { return _mm256_maskload_ps(p, first_lanes(count)); }
inline void store_first(float* p, Vec v, std::int64_t count) noexcept { _mm256_maskstore_ps(p, first_lanes(count), v); }

// tile[i][j] becomes tile[j][i].
inline void transpose_lanes(Vec (&tile)[8]) noexcept {
  Vec pairs[8], quads[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(tile[i], tile[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(tile[i], tile[i + 1]);
  }
  // quads[4 * q + k]: of the rows 4q to 4q + 3, the columns k and k + 4.
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    tile[k] = _mm256_permute2f128_ps(quads[k], quads[4 + k], 0x20);
    tile[4 + k] = _mm256_permute2f128_ps(quads[k], quads[4 + k], 0x31);
  }
}

// Lane indices; negative ones select nothing.
using Lanes = __m256i;
inline Lanes load_lanes(const std::int32_t* p) noexcept { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Vec is_lane(Lanes lanes) noexcept { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(-1))); }
inline Vec permute(Vec v, Lanes lanes) noexcept { return _mm256_permutevar8x32_ps(v, lanes); }
