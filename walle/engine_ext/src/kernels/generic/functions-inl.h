// Logarithms, exponentials, roots and angles of float32 over the including instruction set's vec.h, without tables or branches.
// Each is within 2 ulp of the exact value for every argument (tests/cpp/test_functions.cpp); its polynomials were fitted to the
// function by the Remez algorithm. Where a sum would lose digits, its first term is exact or its rounding error is carried along.

// (ln(1 + f) - f + f^2 / 2) for |f| <= sqrt(2) - 1.
inline Vec log_rest(Vec f, Vec square) noexcept {
  Vec p = set(0.06744591f);
  p = fma(p, f, set(-0.1167482f));
  p = fma(p, f, set(0.11888588f));
  p = fma(p, f, set(-0.12405753f));
  p = fma(p, f, set(0.14219521f));
  p = fma(p, f, set(-0.16667986f));
  p = fma(p, f, set(0.20002119f));
  p = fma(p, f, set(-0.2500001f));
  p = fma(p, f, set(0.33333313f));
  return mul(mul(p, f), square);
}
// ln(2^k (1 + f)); k may be an infinity or NaN. ln 2 in two parts, of which the first times k is exact.
inline Vec log_of_parts(Vec k, Vec f) noexcept {
  const Vec square = mul(f, f);
  Vec y = fma(k, set(1.42860677e-06f), log_rest(f, square));
  y = nfma(set(0.5f), square, y);
  return fma(k, set(0.693145751953125f), add(f, y));
}
struct LogOp {
  static Vec of(Vec x) noexcept {
    Vec m;
    const Vec k = split(x, m);
    return log_of_parts(k, sub(m, set(1.0f)));
  }
};
struct Log2Op {
  static Vec of(Vec x) noexcept {
    Vec m;
    const Vec k = split(x, m), f = sub(m, set(1.0f)), square = mul(f, f);
    const Vec rest = nfma(set(0.5f), square, log_rest(f, square));
    // 1 / ln 2 in two parts.
    return add(k, fma(f, set(1.44269502f), fma(f, set(1.925963e-08f), mul(rest, set(1.44269502f)))));
  }
};
struct Log10Op {
  static Vec of(Vec x) noexcept {
    Vec m;
    const Vec k = split(x, m), f = sub(m, set(1.0f)), square = mul(f, f);
    const Vec rest = nfma(set(0.5f), square, log_rest(f, square));
    // 1 / ln 10 and log10 2 in two parts each.
    Vec y = fma(f, set(-1.0108993e-08f), mul(rest, set(0.4342945f)));
    y = fma(k, set(4.605039e-06f), y);
    return fma(k, set(0.30102539f), fma(f, set(0.4342945f), y));
  }
};

// 1 + t + low, t >= -1 or NaN and |low| much smaller than |t|, as a float and its rounding error.
struct Sum {
  Vec u, lost;
};
inline Sum beyond_1(Vec t, Vec low) noexcept {
  const Vec u = add(t, set(1.0f)), back = sub(u, set(1.0f));
  return {u, add(add(sub(set(1.0f), sub(u, back)), sub(t, back)), low)};
}
// ln(2^more (u + lost)).
inline Vec log_of_sum(const Sum& sum, Vec more) noexcept {
  Vec m;
  const Vec k = split(sum.u, m);
  // The rounding error scaled to m; 0 where u has none (0, infinity).
  const Vec down = max_or_second(set(-120.0f), min_or_second(set(120.0f), neg(k)));
  const Vec part = choose(less(abs(sum.lost), set(1e30f)), scale_by_power(sum.lost, down), set(0.0f));
  return log_of_parts(add(k, more), add(sub(m, set(1.0f)), part));
}
struct Log1pOp {
  static Vec of(Vec x) noexcept { return bit_or(log_of_sum(beyond_1(x, set(0.0f)), set(0.0f)), sign_bit(x)); }
};
// ln(1 + t + low), or for large x ln(2 x), which equals ln(x + sqrt(x^2 +- 1)) to float32 precision.
inline constexpr float kFarOut = 8192.0f;
inline Vec log_beyond_1_or_twice(Vec t, Vec low, Vec x) noexcept {
  const Sum near = beyond_1(t, low);
  const auto far = less(set(kFarOut), x);
  return log_of_sum({choose(far, x, near.u), choose(far, set(0.0f), near.lost)}, choose(far, set(1.0f), set(0.0f)));
}
struct AsinhOp {
  static Vec of(Vec x) noexcept {
    const Vec size = abs(x), near = min_or_second(set(kFarOut), size);
    const Vec more = div(mul(near, near), add(sqrt(fma(near, near, set(1.0f))), set(1.0f)));
    const Vec t = add(near, more), low = sub(more, sub(t, near));
    return bit_or(log_beyond_1_or_twice(t, low, size), sign_bit(x));
  }
};
struct AcoshOp {
  static Vec of(Vec x) noexcept {
    const Vec near = min_or_second(set(kFarOut), x), v = sub(near, set(1.0f));
    const Vec root = choose(less(v, set(0.0f)), set(__builtin_nanf("")), sqrt(fma(v, v, add(v, v))));
    const Vec t = add(root, v), low = sub(v, sub(t, root));
    return log_beyond_1_or_twice(t, low, x);
  }
};
struct AtanhOp {
  static Vec of(Vec x) noexcept {
    // ln((1 + x) / (1 - x)) / 2, from the quotient less 1 with its rounding error.
    const Vec size = abs(x), twice = add(size, size), under = sub(set(1.0f), size), over = div(set(1.0f), under);
    const Vec t = mul(twice, over), lost = sub(sub(set(1.0f), under), size);
    const Vec low = mul(nfma(t, lost, nfma(t, under, twice)), over);
    return bit_or(mul(log_of_sum(beyond_1(t, low), set(0.0f)), set(0.5f)), sign_bit(x));
  }
};

// Write x as n ln 2 + r + low, |r| <= ln 2 / 2.
struct Reduced {
  Vec n, r, low;
};
inline Reduced reduce_to_ln2(Vec x) noexcept {
  const Vec n = round(mul(x, set(1.44269504f)));
  const Vec high = nfma(n, set(0.693145751953125f), x);  // exact
  const Vec r = nfma(n, set(1.42860677e-06f), high);
  return {n, r, nfma(n, set(1.42860677e-06f), sub(high, r))};
}
struct Expm1Op {
  static Vec of(Vec x) noexcept {
    const Reduced at = reduce_to_ln2(min_or_second(set(90.0f), max_or_second(set(-20.0f), x)));
    Vec p = set(0.0001984588f);
    p = fma(p, at.r, set(0.0013940654f));
    p = fma(p, at.r, set(0.00833339f));
    p = fma(p, at.r, set(0.041666362f));
    p = fma(p, at.r, set(0.16666666f));
    p = fma(p, at.r, set(0.5f));
    // 2^n ((1 - 2^-n) + r + the rest), the first sum with its rounding error.
    const Vec whole = sub(set(1.0f), scale_by_power(set(1.0f), neg(at.n)));
    const Vec sum = add(whole, at.r), lost = sub(at.r, sub(sum, whole));
    const Vec rest = fma(p, mul(at.r, at.r), add(lost, at.low));
    return bit_or(scale_by_power(add(sum, rest), at.n), sign_bit(x));
  }
};
// Of |x|, with C = cosh r - 1 and S = sinh r - r by polynomials: e^x and e^-x are 2^n and 2^-n times 1 + C +- (r + S).
struct Hyperbolic {
  Vec n, r, low, more, s, half, up, down;  // half is 2^-2n / 2; up and down are 1/2 + half and 1/2 - half
};
inline Hyperbolic hyperbolic(Vec x) noexcept {
  const Reduced at = reduce_to_ln2(min_or_second(set(90.0f), abs(x)));
  const Vec square = mul(at.r, at.r), power = scale_by_power(set(1.0f), neg(at.n));
  const Vec half = mul(mul(power, power), set(0.5f));
  Vec c = fma(set(0.001394626f), square, set(0.041666266f));
  c = fma(c, square, set(0.5f));
  Vec s = fma(set(0.00019904994f), square, set(0.008333289f));
  s = fma(s, square, set(0.16666667f));
  return {at.n, at.r, at.low, mul(c, square), mul(mul(s, square), at.r), half, add(set(0.5f), half), sub(set(0.5f), half)};
}
struct SinhOp {
  static Vec of(Vec x) noexcept {
    const Hyperbolic h = hyperbolic(x);
    const Vec sum = fma(h.up, h.r, h.down), lost = fma(h.up, h.r, sub(h.down, sum));
    const Vec rest = fma(h.down, h.more, fma(h.up, add(h.s, h.low), lost));
    return bit_or(scale_by_power(add(sum, rest), h.n), sign_bit(x));
  }
};
struct CoshOp {
  static Vec of(Vec x) noexcept {
    const Hyperbolic h = hyperbolic(x);
    const Vec lost = sub(h.half, sub(h.up, set(0.5f)));
    const Vec rest = fma(h.down, add(add(h.s, h.low), h.r), fma(h.up, h.more, lost));
    return scale_by_power(add(h.up, rest), h.n);
  }
};
struct Exp2Op {
  static Vec of(Vec x) noexcept {
    const Vec bounded = min_or_second(set(130.0f), max_or_second(set(-152.0f), x));
    const Vec n = round(bounded), r = sub(bounded, n);
    Vec p = set(1.5196157e-05f);
    p = fma(p, r, set(0.00015466756f));
    p = fma(p, r, set(0.0013333935f));
    p = fma(p, r, set(0.009618038f));
    p = fma(p, r, set(0.055504102f));
    p = fma(p, r, set(0.2402265f));
    p = fma(p, r, set(0.6931472f));
    return scale_by_power(fma(p, r, set(1.0f)), n);
  }
};

// (atan(t) - t) / t as a polynomial in t^2, |t| <= 1.
inline Vec atan_rest(Vec square) noexcept {
  Vec p = set(-0.0017936231f);
  p = fma(p, square, set(0.010914612f));
  p = fma(p, square, set(-0.031177858f));
  p = fma(p, square, set(0.057957605f));
  p = fma(p, square, set(-0.08403451f));
  p = fma(p, square, set(0.10952186f));
  p = fma(p, square, set(-0.14264242f));
  p = fma(p, square, set(0.19998549f));
  p = fma(p, square, set(-0.333333f));
  return mul(p, square);
}
inline constexpr float kHalfPi = 1.57079637f, kHalfPiRest = -4.37113883e-08f;
struct AtanOp {
  static Vec of(Vec x) noexcept {
    const Vec size = abs(x);
    const auto far = less(set(1.0f), size);
    const Vec t = div(choose(far, set(-1.0f), size), choose(far, size, set(1.0f)));
    const Vec rest = fma(atan_rest(mul(t, t)), t, choose(far, set(kHalfPiRest), set(0.0f)));
    return bit_or(choose(far, add(set(kHalfPi), add(t, rest)), add(t, rest)), sign_bit(x));
  }
};
struct Atan2Op {
  static Vec of(Vec y, Vec x) noexcept {
    const Vec up = abs(y), across = abs(x), one = set(1.0f), zero = set(0.0f);
    const auto steep = less(across, up), behind = less(bit_or(sign_bit(x), one), zero);
    // The smaller over the larger; 0 over 0 gives 0, and an infinity over another gives 1.
    const Vec over = choose(steep, across, up), under = choose(steep, up, across);
    const Vec least = set(1e-45f), most = set(3.40282347e38f);
    const Vec t = div(min_or_second(most, over), max_or_second(least, min_or_second(most, under)));
    const Vec angle = choose(less(most, under), choose(less(most, over), one, choose(is_nan(over), over, zero)), t);
    const Vec rest = mul(atan_rest(mul(angle, angle)), angle);
    // Select the quadrant: a multiple of pi / 2 plus or minus the angle.
    const Vec base = choose(steep, set(kHalfPi), choose(behind, set(2 * kHalfPi), zero));
    const Vec base_rest = choose(steep, set(kHalfPiRest), choose(behind, set(2 * kHalfPiRest), zero));
    const Vec turn = mul(choose(steep, set(-1.0f), one), choose(behind, set(-1.0f), one));
    return bit_or(add(base, fma(turn, angle, fma(turn, rest, base_rest))), sign_bit(y));
  }
};

// asin(s) - s for s^2 = square <= 1/4.
inline Vec asin_rest(Vec s, Vec square) noexcept {
  Vec p = set(0.03751648f);
  p = fma(p, square, set(0.014438586f));
  p = fma(p, square, set(0.031807724f));
  p = fma(p, square, set(0.044516955f));
  p = fma(p, square, set(0.07500504f));
  p = fma(p, square, set(0.1666666f));
  return mul(mul(p, square), s);
}
// Beyond 1/2 by the half-angle formula: acos(x) = 2 asin(sqrt((1 - x) / 2)).
struct AsinOp {
  static Vec of(Vec x) noexcept {
    const Vec size = abs(x), half = nfma(set(0.5f), size, set(0.5f));
    const auto far = less(set(0.5f), size);
    const Vec square = choose(far, half, mul(size, size)), s = choose(far, sqrt(half), size);
    const Vec rest = asin_rest(s, square);
    const Vec beyond = sub(set(kHalfPi), fma(set(2.0f), rest, nfma(set(-2.0f), s, set(-kHalfPiRest))));
    return bit_or(choose(far, beyond, add(s, rest)), sign_bit(x));
  }
};
struct AcosOp {
  static Vec of(Vec x) noexcept {
    const Vec size = abs(x), half = nfma(set(0.5f), size, set(0.5f));
    const auto far = less(set(0.5f), size), behind = less(x, set(0.0f));
    const Vec square = choose(far, half, mul(size, size)), s = choose(far, sqrt(half), x);
    const Vec rest = asin_rest(s, square), angle = add(s, rest), twice = add(angle, angle);
    const Vec beyond = choose(behind, sub(set(2 * kHalfPi), add(twice, set(-2 * kHalfPiRest))), twice);
    return choose(far, beyond, sub(set(kHalfPi), add(s, add(rest, set(-kHalfPiRest)))));
  }
};

// x^(1/3) from x^(-1/3): a third of the number's bits, one step of order four, and one Newton step for the root.
struct CbrtOp {
  static Vec of(Vec x) noexcept {
    const Vec size = abs(x);
    const auto tiny = less(size, set(1.17549435e-38f));
    const Vec scaled = choose(tiny, mul(size, set(0x1p24f)), size);
    const Vec y = numbers_as_bits(nfma(bits_as_numbers(scaled), set(1.0f / 3), set(1419899264.0f)));
    const Vec e = nfma(mul(scaled, y), mul(y, y), set(1.0f));
    Vec p = set(0.174505f);
    p = fma(p, e, set(0.22348872f));
    p = fma(p, e, set(0.33332938f));
    const Vec inverse = fma(mul(p, e), y, y), square = mul(inverse, inverse), root = mul(scaled, square);
    const Vec left = nfma(mul(root, root), root, scaled);
    const Vec better = fma(mul(left, square), set(1.0f / 3), root);
    const Vec result = choose(tiny, mul(better, set(0x1p-8f)), better);
    return bit_or(choose(less(size, set(__builtin_inff())), result, size), sign_bit(x));
  }
};

// Reduce |x| by n times pi / 2, n an integer, for |x| below kMostTurned; pi / 2 is in four parts, of which n times the first two
// is exact.
inline constexpr float kMostTurned = 32768.0f;
struct TurnedBack {
  Vec n, r;
};
inline TurnedBack turn_back(Vec x) noexcept {
  const Vec size = abs(x), n = round(mul(size, set(0.636619747f)));
  const Vec exact = nfma(n, set(4.837512969970703e-4f), nfma(n, set(1.5703125f), size));
  return {n, nfma(n, set(-1.7151245e-15f), nfma(n, set(7.54979e-08f), exact))};
}
// Return an integer modulo 2: 0 or 1.
inline Vec left_of_two(Vec n) noexcept { return nfma(floor(mul(n, set(0.5f))), set(2.0f), n); }
inline Vec sine(Vec r, Vec square) noexcept {
  Vec p = set(2.7181125e-06f);
  p = fma(p, square, set(-0.00019839311f));
  p = fma(p, square, set(0.008333329f));
  p = fma(p, square, set(-0.16666667f));
  return fma(mul(p, square), r, r);
}
inline Vec cosine(Vec square) noexcept {
  Vec p = set(2.4433068e-05f);
  p = fma(p, square, set(-0.0013887315f));
  p = fma(p, square, set(0.041666646f));
  p = fma(p, square, set(-0.5f));
  return fma(p, square, set(1.0f));
}
// Return the sine of r plus `quarters` times pi / 2.
inline Vec sine_at(Vec r, Vec quarters) noexcept {
  const Vec square = mul(r, r);
  const Vec value = choose(less(set(0.5f), left_of_two(quarters)), cosine(square), sine(r, square));
  return mul(value, nfma(left_of_two(floor(mul(quarters, set(0.5f)))), set(2.0f), set(1.0f)));
}
struct SinOp {
  static Vec of(Vec x) noexcept {
    const TurnedBack at = turn_back(x);
    return mul(sine_at(at.r, at.n), bit_or(set(1.0f), sign_bit(x)));
  }
};
struct CosOp {
  static Vec of(Vec x) noexcept {
    const TurnedBack at = turn_back(x);
    return sine_at(at.r, add(at.n, set(1.0f)));
  }
};
struct TanOp {
  static Vec of(Vec x) noexcept {
    const Vec size = abs(x), n = round(mul(size, set(0.636619747f)));
    const Vec exact = nfma(n, set(4.837512969970703e-4f), nfma(n, set(1.5703125f), size));
    // Near a pole the result amplifies every error of r, so r's rounding error is carried along.
    const Vec third = mul(n, set(-7.54979e-08f)), third_rest = nfma(n, set(7.54979e-08f), neg(third));
    const Vec near = add(exact, third), back = sub(near, exact);
    const Vec lost = add(sub(exact, sub(near, back)), sub(third, back));
    const Vec rest = add(lost, nfma(n, set(-1.7151245e-15f), third_rest));
    const Vec r = add(near, rest), low = sub(rest, sub(r, near));
    const Vec square = mul(r, r);
    Vec p = set(0.0043775993f);
    p = fma(p, square, set(8.691212e-05f));
    p = fma(p, square, set(0.010837833f));
    p = fma(p, square, set(0.021281429f));
    p = fma(p, square, set(0.05406006f));
    p = fma(p, square, set(0.13332662f));
    p = fma(p, square, set(0.3333335f));
    const Vec value = add(fma(mul(p, square), r, low), r);
    const auto odd = less(set(0.5f), left_of_two(n));
    return mul(div(choose(odd, set(-1.0f), value), choose(odd, value, set(1.0f))), bit_or(set(1.0f), sign_bit(x)));
  }
};

// ln(e^a + e^b); error against float64: <= 2 ulp of the largest of the operands, the result and 1.
struct LogAddExpOp {
  static Vec of(Vec a, Vec b) noexcept {
    const Vec greater = choose(is_nan(a), a, max_or_second(a, b)), gap = sub(a, b);
    const Vec apart = choose(is_nan(gap), set(0.0f), neg(abs(gap)));  // two equal infinities
    return add(greater, SoftplusOp::of_power(exp(apart)));
  }
};
