// Elementwise float32 loops over the including instruction set's vec.h. Tails use masked loads and stores, so that nothing beyond
// the last element is read. Strides other than 0 and 1 go to the scalar loops.

// Error against exp in float64: <= 2 ulp for normal results, <= 1 subnormal step below; overflow gives infinity, NaN stays.
inline Vec exp(Vec x) noexcept {
  // Where the result is 0, as of a masked score, nothing underflows on the way: Intel's CPUs take 100 cycles and more for that.
  const auto is_zero = less(x, set(-104.0f));
  x = min_or_second(set(89.0f), choose(is_zero, set(0.0f), x));
  const Vec n = round(mul(x, set(1.44269504088896341f)));
  const Vec r = nfma(n, set(-2.12194440e-4f), nfma(n, set(0.693359375f), x));  // x - n ln 2, ln 2 in two parts
  Vec p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set(1.0f));
  return choose(is_zero, set(0.0f), scale_by_power(p, n));
}

// e^x - 1 for x <= 0; error against float64: <= 4 ulp.
inline Vec negative_expm1(Vec x) noexcept {
  x = max_or_second(set(-30.0f), x);  // below, the result is -1
  const Vec n = round(mul(x, set(1.44269504088896341f)));
  const Vec r = nfma(n, set(-2.12194440e-4f), nfma(n, set(0.693359375f), x));
  Vec p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  const Vec power = scale_by_power(set(1.0f), n);
  return fma(power, fma(p, mul(r, r), r), sub(power, set(1.0f)));  // near 0 the power is 1, and the subtraction is exact
}

struct ExpOp {
  static Vec of(Vec x) noexcept { return exp(x); }
};
// Error against float64: <= 4 ulp where x >= -87; below, the result is within 2^-125 of the exact one.
struct SigmoidOp {
  static Vec of(Vec x) noexcept { return div(set(1.0f), add(set(1.0f), exp(neg(x)))); }
};
// Error against float64: <= 4 ulp.
struct TanhOp {
  static Vec of(Vec x) noexcept {
    const Vec size = abs(x);
    // Small: an odd polynomial. Large: 1 - 2 / (e^2|x| + 1), where the subtraction loses at most two bits.
    const Vec square = mul(x, x);
    Vec p = set(-5.70498872745e-3f);
    p = fma(p, square, set(2.06390887954e-2f));
    p = fma(p, square, set(-5.37397155531e-2f));
    p = fma(p, square, set(1.33314422036e-1f));
    p = fma(p, square, set(-3.33332819422e-1f));
    const Vec small = fma(mul(p, square), x, x);
    const Vec large = sub(set(1.0f), div(set(2.0f), add(exp(add(size, size)), set(1.0f))));
    return bit_or(choose(less(size, set(0.625f)), small, large), sign_bit(x));
  }
};
// Error against float64: <= 3 ulp. Below 1 an odd polynomial; above, 1 - e^-g with g the polynomial of -ln erfc on [1, 4], to
// which the argument is clamped.
inline Vec erf(Vec x) noexcept {
  const Vec size = abs(x), square = mul(x, x);
  Vec p = set(7.853857823647559e-05f);
  p = fma(p, square, set(-0.0008010192541405559f));
  p = fma(p, square, set(0.005188327748328447f));
  p = fma(p, square, set(-0.026853810995817184f));
  p = fma(p, square, set(0.1128358542919159f));
  p = fma(p, square, set(-0.3761262595653534f));
  p = fma(p, square, set(0.12837916612625122f));
  const Vec small = fma(p, x, x);
  const Vec t = min_or_second(set(4.0f), size);
  Vec g = set(2.1686850232072175e-05f);
  g = fma(g, t, set(-0.00044133636401966214f));
  g = fma(g, t, set(0.004204561933875084f));
  g = fma(g, t, set(-0.025208257138729095f));
  g = fma(g, t, set(0.10841857641935349f));
  g = fma(g, t, set(0.6332198977470398f));
  g = fma(g, t, set(1.1295784711837769f));
  g = fma(g, t, set(-0.0001880402269307524f));
  const Vec large = bit_or(sub(set(1.0f), exp(neg(g))), sign_bit(x));
  return choose(less(size, set(1.0f)), small, large);
}
// max(x, 0) + ln(1 + u) with u = e^-|x|, which is 2 atanh(u / (2 + u)); error against float64: <= 4 ulp of the result where x >=
// -87, below within 2^-125 of it.
struct SoftplusOp {
  static Vec of(Vec x) noexcept { return add(max_or_second(set(0.0f), x), of_power(exp(neg(abs(x))))); }
  // ln(1 + u), 0 <= u <= 1.
  static Vec of_power(Vec u) noexcept {
    const Vec s = div(u, add(u, set(2.0f))), square = mul(s, s);
    Vec p = set(1.0f / 13);
    p = fma(p, square, set(1.0f / 11));
    p = fma(p, square, set(1.0f / 9));
    p = fma(p, square, set(1.0f / 7));
    p = fma(p, square, set(1.0f / 5));
    p = fma(p, square, set(1.0f / 3));
    const Vec twice = add(s, s);
    return fma(mul(p, square), twice, twice);
  }
};
struct ErfOp {
  static Vec of(Vec x) noexcept { return erf(x); }
};
struct NegOp {
  static Vec of(Vec x) noexcept { return neg(x); }
};
struct AbsOp {
  static Vec of(Vec x) noexcept { return abs(x); }
};
struct SquareOp {
  static Vec of(Vec x) noexcept { return mul(x, x); }
};
struct ReluOp {
  static Vec of(Vec x) noexcept { return max_or_second(set(0.0f), x); }
};
struct SqrtOp {
  static Vec of(Vec x) noexcept { return sqrt(x); }
};
struct RsqrtOp {
  static Vec of(Vec x) noexcept { return div(set(1.0f), sqrt(x)); }
};
struct ReciprocalOp {
  static Vec of(Vec x) noexcept { return div(set(1.0f), x); }
};
struct FloorOp {
  static Vec of(Vec x) noexcept { return floor(x); }
};
struct CeilOp {
  static Vec of(Vec x) noexcept { return ceil(x); }
};
struct RoundOp {
  static Vec of(Vec x) noexcept { return round(x); }
};

struct AddOp {
  static Vec of(Vec a, Vec b) noexcept { return add(a, b); }
};
struct SubOp {
  static Vec of(Vec a, Vec b) noexcept { return sub(a, b); }
};
struct MulOp {
  static Vec of(Vec a, Vec b) noexcept { return mul(a, b); }
};
struct DivOp {
  static Vec of(Vec a, Vec b) noexcept { return div(a, b); }
};
struct MaximumOp {
  static Vec of(Vec a, Vec b) noexcept { return choose(is_nan(a), a, max_or_second(a, b)); }
};
struct MinimumOp {
  static Vec of(Vec a, Vec b) noexcept { return choose(is_nan(a), a, min_or_second(a, b)); }
};

// `plain` is the scalar loop of the same operator.
template <class Op, UnaryFn* plain>
void unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  if (stride != 1) return (*plain)(in, stride, out, count);
  const auto* from = static_cast<const float*>(in);
  auto* to = static_cast<float*>(out);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, Op::of(load(from + i)));
  if (i < count) store_first(to + i, Op::of(load_first(from + i, count - i)), count - i);
}

template <class Op, BinaryFn* plain>
void binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out, std::int64_t count) noexcept {
  const auto* left = static_cast<const float*>(a);
  const auto* right = static_cast<const float*>(b);
  auto* to = static_cast<float*>(out);
  std::int64_t i = 0;
  if (a_stride == 1 && b_stride == 1) {
    for (; i + kLanes <= count; i += kLanes) store(to + i, Op::of(load(left + i), load(right + i)));
    if (i < count) store_first(to + i, Op::of(load_first(left + i, count - i), load_first(right + i, count - i)), count - i);
  } else if (count > 0 && a_stride == 1 && b_stride == 0) {
    const Vec same = set(*right);
    for (; i + kLanes <= count; i += kLanes) store(to + i, Op::of(load(left + i), same));
    if (i < count) store_first(to + i, Op::of(load_first(left + i, count - i), same), count - i);
  } else if (count > 0 && a_stride == 0 && b_stride == 1) {
    const Vec same = set(*left);
    for (; i + kLanes <= count; i += kLanes) store(to + i, Op::of(same, load(right + i)));
    if (i < count) store_first(to + i, Op::of(same, load_first(right + i, count - i)), count - i);
  } else {
    (*plain)(a, a_stride, b, b_stride, out, count);
  }
}

// Sum blocks of four vectors in float32, at most kBlock elements each, and the blocks in float64.
template <ReduceFn* plain>
void reduce_sum(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  constexpr std::int64_t kBlock = 128 * kLanes;
  if (stride != 1) return (*plain)(in, stride, count, out);
  const auto* from = static_cast<const float*>(in);
  double total = 0;
  for (std::int64_t start = 0; start < count; start += kBlock) {
    const std::int64_t end = start + kBlock < count ? start + kBlock : count;
    Vec sum0 = set(0.0f), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    std::int64_t i = start;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      sum0 = add(sum0, load(from + i));
      sum1 = add(sum1, load(from + i + kLanes));
      sum2 = add(sum2, load(from + i + 2 * kLanes));
      sum3 = add(sum3, load(from + i + 3 * kLanes));
    }
    for (; i + kLanes <= end; i += kLanes) sum0 = add(sum0, load(from + i));
    if (i < end) sum1 = add(sum1, load_first(from + i, end - i));
    total += sum(add(add(sum0, sum1), add(sum2, sum3)));
  }
  *static_cast<float*>(out) = static_cast<float>(total);
}

// Max and Min: combine vectors lane by lane, then the lanes and the tail by the scalar loop.
template <class Op, ReduceFn* plain>
void reduce_lanes(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  if (stride != 1 || count < 2 * kLanes) return (*plain)(in, stride, count, out);
  const auto* from = static_cast<const float*>(in);
  Vec best = load(from);
  std::int64_t i = kLanes;
  for (; i + kLanes <= count; i += kLanes) best = Op::of(best, load(from + i));
  float rest[2 * kLanes];
  store(rest, best);
  std::int64_t left = kLanes;
  for (; i < count; ++i) rest[left++] = from[i];
  (*plain)(rest, 1, left, out);
}
