// Vector primitives of NEON in the baseline of every 64-bit ARM CPU (ARMv8.0-A): four floats. Included by build.cpp inside its
// namespace, after <arm_neon.h>; no other file may include this.

inline constexpr std::int64_t kLanes = 4;
// Rows of accumulators that fit in registers beside one row of two blocks, and of one.
inline constexpr int kPairRows = 12, kSingleRows = 12;
using Vec = float32x4_t;
using Mask = uint32x4_t;  // all bits of a lane set or none

inline Vec load(const float* p) noexcept { return vld1q_f32(p); }
inline void store(float* p, Vec v) noexcept { vst1q_f32(p, v); }
inline Vec set(float x) noexcept { return vdupq_n_f32(x); }
inline Vec add(Vec a, Vec b) noexcept { return vaddq_f32(a, b); }
inline Vec sub(Vec a, Vec b) noexcept { return vsubq_f32(a, b); }
inline Vec mul(Vec a, Vec b) noexcept { return vmulq_f32(a, b); }
inline Vec div(Vec a, Vec b) noexcept { return vdivq_f32(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) noexcept { return vfmaq_f32(c, a, b); }   // a * b + c
inline Vec nfma(Vec a, Vec b, Vec c) noexcept { return vfmsq_f32(c, a, b); }  // c - a * b
// Half as many doubles, for products of matrices.
using DoubleVec = float64x2_t;
inline DoubleVec load(const double* p) noexcept { return vld1q_f64(p); }
inline void store(double* p, DoubleVec v) noexcept { vst1q_f64(p, v); }
inline DoubleVec set_double(double x) noexcept { return vdupq_n_f64(x); }
inline DoubleVec fma(DoubleVec a, DoubleVec b, DoubleVec c) noexcept { return vfmaq_f64(c, a, b); }  // a * b + c
inline Vec sqrt(Vec a) noexcept { return vsqrtq_f32(a); }
inline Vec round(Vec a) noexcept { return vrndnq_f32(a); }
inline Vec floor(Vec a) noexcept { return vrndmq_f32(a); }
inline Vec ceil(Vec a) noexcept { return vrndpq_f32(a); }
// If either is NaN, or both are zero: b (which FMAX and FMIN do not guarantee).
inline Vec max_or_second(Vec a, Vec b) noexcept { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Vec min_or_second(Vec a, Vec b) noexcept { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Vec sign_bit(Vec a) noexcept {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x80000000u)));
}
inline Vec abs(Vec a) noexcept { return vabsq_f32(a); }
inline Vec neg(Vec a) noexcept { return vnegq_f32(a); }
inline Vec bit_or(Vec a, Vec b) noexcept {
  return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)));
}
inline Mask less(Vec a, Vec b) noexcept { return vcltq_f32(a, b); }
inline Mask is_nan(Vec a) noexcept { return vmvnq_u32(vceqq_f32(a, a)); }
inline Vec choose(Mask mask, Vec yes, Vec no) noexcept { return vbslq_f32(mask, yes, no); }
// a * 2^n for integers n in [-252, 254], in two steps so that subnormal results round once.
inline Vec scale_by_power(Vec a, Vec n) noexcept {
  const int32x4_t whole = vcvtnq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(whole, 1);
  const int32x4_t rest = vsubq_s32(whole, half);
  const int32x4_t bias = vdupq_n_s32(127);
  const Vec first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  const Vec second = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
  return vmulq_f32(vmulq_f32(a, first), second);
}
// x = m * 2^k with m in [sqrt(1/2), sqrt(2)]: return k; -infinity for 0, infinity for infinity, NaN for NaN and x < 0.
inline Vec split(Vec x, Vec& m) noexcept {
  const Vec zero = set(0.0f), infinite = set(__builtin_inff());
  const Mask tiny = less(x, set(1.17549435e-38f));
  const int32x4_t root = vdupq_n_s32(0x3f3504f3), bits = vreinterpretq_s32_f32(choose(tiny, mul(x, set(0x1p25f)), x));
  const int32x4_t offset = vsubq_s32(bits, root);
  m = vreinterpretq_f32_s32(vaddq_s32(vandq_s32(offset, vdupq_n_s32(0x7fffff)), root));
  const Vec k = add(vcvtq_f32_s32(vshrq_n_s32(offset, 23)), choose(tiny, set(-25.0f), zero));
  const Vec below = choose(less(x, zero), set(__builtin_nanf("")), neg(infinite));
  return choose(less(zero, x), choose(less(x, infinite), k, x), choose(is_nan(x), x, below));
}
// The bits of a positive number as an integer, rounded to a float, and the inverse.
inline Vec bits_as_numbers(Vec x) noexcept { return vcvtq_f32_s32(vreinterpretq_s32_f32(x)); }
inline Vec numbers_as_bits(Vec x) noexcept { return vreinterpretq_f32_s32(vcvtnq_s32_f32(x)); }
inline double sum(Vec v) noexcept { return vaddvq_f64(vaddq_f64(vcvt_f64_f32(vget_low_f32(v)), vcvt_high_f64_f32(v))); }
// The first `count` lanes (0 to kLanes); the others read as 0 and are not written. NEON has no masked access.
inline Vec load_first(const float* p, std::int64_t count) noexcept {
  switch (count) {
    case 0: return set(0.0f);
    case 1: return vld1q_lane_f32(p, set(0.0f), 0);
    case 2: return vcombine_f32(vld1_f32(p), vdup_n_f32(0.0f));
    case 3: return vcombine_f32(vld1_f32(p), vld1_lane_f32(p + 2, vdup_n_f32(0.0f), 0));
    default: return load(p);
  }
}
inline void store_first(float* p, Vec v, std::int64_t count) noexcept {
  switch (count) {
    case 0: return;
    case 1: return vst1q_lane_f32(p, v, 0);
    case 2: return vst1_f32(p, vget_low_f32(v));
    case 3: vst1_f32(p, vget_low_f32(v)); return vst1q_lane_f32(p + 2, v, 2);
    default: return store(p, v);
  }
}

// tile[i][j] becomes tile[j][i].
inline void transpose_lanes(Vec (&tile)[4]) noexcept {
  const float32x4x2_t above = vtrnq_f32(tile[0], tile[1]), below = vtrnq_f32(tile[2], tile[3]);
  tile[0] = vcombine_f32(vget_low_f32(above.val[0]), vget_low_f32(below.val[0]));
  tile[1] = vcombine_f32(vget_low_f32(above.val[1]), vget_low_f32(below.val[1]));
  tile[2] = vcombine_f32(vget_high_f32(above.val[0]), vget_high_f32(below.val[0]));
  tile[3] = vcombine_f32(vget_high_f32(above.val[1]), vget_high_f32(below.val[1]));
}

// Lane indices; negative ones select nothing.
using Lanes = int32x4_t;
inline Lanes load_lanes(const std::int32_t* p) noexcept { return vld1q_s32(p); }
inline Mask is_lane(Lanes lanes) noexcept { return vcgezq_s32(lanes); }
inline Vec permute(Vec v, Lanes lanes) noexcept {
  // Lane n is the bytes 4n to 4n + 3; a byte beyond the vector is 0.
  const uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100u), vreinterpretq_u32_s32(lanes), 0x04040404u);
  return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(v), vreinterpretq_u8_u32(bytes)));
}
