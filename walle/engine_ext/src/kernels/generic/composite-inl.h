// Kernels of whole float32 composites over the including instruction set's vec.h: each computes the result of its decomposition
// in one or a few passes over memory. `a` and `b` are a map's parameters (see MapOp).

// Error against float64: <= 1e-6 * |a|.
struct EluMap {
  static Vec of(Vec x, Vec a, Vec) noexcept { return choose(less(x, set(0.0f)), mul(a, negative_expm1(x)), x); }
};
struct GeluErfMap {
  static Vec of(Vec x, Vec, Vec) noexcept {
    return mul(mul(x, set(0.5f)), add(erf(mul(x, set(0.70710678118654752f))), set(1.0f)));
  }
};
struct GeluTanhMap {
  static Vec of(Vec x, Vec, Vec) noexcept {
    const Vec inner = mul(fma(mul(mul(x, x), x), set(0.044715f), x), set(0.79788456080286536f));
    return mul(mul(x, set(0.5f)), add(TanhOp::of(inner), set(1.0f)));
  }
};
inline Vec between_0_and_1(Vec x) noexcept { return min_or_second(set(1.0f), max_or_second(set(0.0f), x)); }
struct HardSigmoidMap {
  static Vec of(Vec x, Vec a, Vec b) noexcept { return between_0_and_1(add(mul(x, a), b)); }
};
struct HardSwishMap {
  static Vec of(Vec x, Vec, Vec) noexcept { return mul(x, between_0_and_1(add(mul(x, set(1.0f / 6)), set(0.5f)))); }
};
struct LeakyReluMap {
  static Vec of(Vec x, Vec a, Vec) noexcept { return choose(less(x, set(0.0f)), mul(x, a), x); }
};
// x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2); for x >= 20 the result is x.
struct MishMap {
  static Vec of(Vec x, Vec, Vec) noexcept {
    const Vec e = exp(min_or_second(set(20.0f), x)), n = mul(e, add(e, set(2.0f)));
    return mul(x, div(n, add(n, set(2.0f))));
  }
};
struct SwishMap {
  static Vec of(Vec x, Vec a, Vec) noexcept { return mul(x, SigmoidOp::of(mul(x, a))); }
};

template <class Op>
void map(const void* in, void* out, std::int64_t count, float a, float b) noexcept {
  const auto* from = static_cast<const float*>(in);
  auto* to = static_cast<float*>(out);
  const Vec first = set(a), second = set(b);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, Op::of(load(from + i), first, second));
  if (i < count) store_first(to + i, Op::of(load_first(from + i, count - i), first, second), count - i);
}

inline void prelu(const float* in, const float* slope, std::int64_t period, float* out, std::int64_t count) noexcept {
  std::int64_t i = 0, at = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec x = load(in + i), factor = period == 1 ? set(*slope) : load(slope + at);
    store(out + i, LeakyReluMap::of(x, factor, factor));
    at = at + kLanes == period ? 0 : at + kLanes;
  }
  if (i == count) return;
  const std::int64_t width = count - i;
  const Vec x = load_first(in + i, width), factor = period == 1 ? set(*slope) : load_first(slope + at, width);
  store_first(out + i, LeakyReluMap::of(x, factor, factor), width);
}

// Process up to kLanes neighbouring columns at once; consecutive elements of a column are args.columns apart.
template <bool kLog>
void softmax_columns(const RowsArgs& args, const float* in, float* out, std::int64_t width) noexcept {
  const auto fetch = [&](const float* p) { return width == kLanes ? load(p) : load_first(p, width); };
  const auto put = [&](float* p, Vec v) { width == kLanes ? store(p, v) : store_first(p, v, width); };
  const std::int64_t end = args.count * args.columns, step = args.columns;
  Vec most = fetch(in);
  for (std::int64_t i = step; i < end; i += step) most = max_or_second(fetch(in + i), most);
  constexpr std::int64_t kBlock = 64;  // exponentials of a partial sum: errors grow with a block, not with all
  Vec total = set(0.0f);
  for (std::int64_t i = 0; i < end;) {
    Vec part = set(0.0f);
    for (const std::int64_t last = i + kBlock * step < end ? i + kBlock * step : end; i < last; i += step) {
      const Vec e = exp(sub(fetch(in + i), most));
      part = add(part, e);
      if (!kLog) put(out + i, e);
    }
    total = add(total, part);
  }
  if (kLog) {
    float logs[kLanes];
    store(logs, total);
    for (float& x : logs) x = __builtin_logf(x);
    const Vec log = load(logs);
    for (std::int64_t i = 0; i < end; i += step) put(out + i, sub(sub(fetch(in + i), most), log));
  } else {
    for (std::int64_t i = 0; i < end; i += step) put(out + i, div(fetch(out + i), total));
  }
}

// Return the first lanes of v, 0 in the others.
inline Vec first_of(Vec v, std::int64_t width) noexcept {
  float lanes[kLanes];
  store(lanes, v);
  return load_first(lanes, width);
}

// Call f(vector, place, width) for each vector of a row; the last one may be partial, its other lanes read 0.
template <class F>
void each_vector(const float* row, std::int64_t count, F&& f) noexcept {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(load(row + i), i, kLanes);
  if (i < count) f(load_first(row + i, count - i), i, count - i);
}

// Return the sum of f(vector, place, width) over a row: float32 within blocks, float64 between them.
template <class F>
double sum_of(const float* row, std::int64_t count, F&& f) noexcept {
  constexpr std::int64_t kStretch = 64 * kLanes;
  double total = 0;
  for (std::int64_t start = 0; start < count; start += kStretch) {
    const std::int64_t end = start + kStretch < count ? start + kStretch : count;
    Vec sum0 = set(0.0f), sum1 = sum0;
    std::int64_t i = start;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      sum0 = add(sum0, f(load(row + i), i, kLanes));
      sum1 = add(sum1, f(load(row + i + kLanes), i + kLanes, kLanes));
    }
    for (; i + kLanes <= end; i += kLanes) sum0 = add(sum0, f(load(row + i), i, kLanes));
    if (i < end) sum1 = add(sum1, f(load_first(row + i, end - i), i, end - i));
    total += sum(add(sum0, sum1));
  }
  return total;
}

inline float greatest_of(const float* row, std::int64_t count) noexcept {
  float lanes[kLanes], most = row[0];
  Vec best0 = set(most), best1 = best0;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    best0 = max_or_second(load(row + i), best0);
    best1 = max_or_second(load(row + i + kLanes), best1);
  }
  store(lanes, max_or_second(best0, best1));
  for (const float lane : lanes) most = lane > most ? lane : most;
  for (; i < count; ++i) most = row[i] > most ? row[i] : most;
  return most;
}

// Not a lambda: a lambda without captures also has a plain function form, which is compiled outside the target region.
struct Itself {
  Vec operator()(Vec x, std::int64_t, std::int64_t) const noexcept { return x; }
};

template <bool kLog>
void softmax_row(const float* in, float* out, std::int64_t count) noexcept {
  const Vec most = set(greatest_of(in, count));
  const double total = sum_of(in, count, [&](Vec x, std::int64_t at, std::int64_t width) {
    const Vec e = exp(sub(x, most));
    if (!kLog) width == kLanes ? store(out + at, e) : store_first(out + at, e, width);
    return width == kLanes ? e : first_of(e, width);
  });
  const Vec end = set(kLog ? __builtin_logf(static_cast<float>(total)) : static_cast<float>(1 / total));
  const auto put = [&](Vec v, std::int64_t at, std::int64_t width) {
    width == kLanes ? store(out + at, v) : store_first(out + at, v, width);
  };
  if (kLog)
    each_vector(in, count, [&](Vec x, std::int64_t at, std::int64_t width) { put(sub(sub(x, most), end), at, width); });
  else
    each_vector(out, count, [&](Vec e, std::int64_t at, std::int64_t width) { put(mul(e, end), at, width); });
}

// Error against float64, relative to 1 (Softmax) or to the result's magnitude and 1 (LogSoftmax): <= 1e-6 for up to 2^20
// elements.
template <bool kLog>
void softmax(const RowsArgs& args) noexcept {
  const std::int64_t size = args.count * args.columns;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* in = args.in + row * size;
    float* out = args.out + row * size;
    if (args.columns == 1) {
      softmax_row<kLog>(in, out, args.count);
      continue;
    }
    for (std::int64_t c = 0; c < args.columns; c += kLanes)
      softmax_columns<kLog>(args, in + c, out + c, args.columns - c < kLanes ? args.columns - c : kLanes);
  }
}

// Error against float64: <= 1e-6 * (|scale| * (|x - mean| / deviation + 1) + |shift|) where the mean is not far above the
// deviation.
template <bool kCentred>
void normalise(const RowsArgs& args) noexcept {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float* in = args.in + row * args.count;
    float* out = args.out + row * args.count;
    const auto count = static_cast<double>(args.count);
    float mean = 0;
    if (kCentred) mean = static_cast<float>(sum_of(in, args.count, Itself{}) / count);
    const Vec centre = set(mean);
    const double squares = sum_of(in, args.count, [&](Vec x, std::int64_t, std::int64_t width) {
      const Vec apart = sub(x, width == kLanes ? centre : first_of(centre, width));
      return mul(apart, apart);
    });
    const Vec factor = set(static_cast<float>(1 / __builtin_sqrt(squares / count + static_cast<double>(args.epsilon))));
    each_vector(in, args.count, [&](Vec x, std::int64_t at, std::int64_t width) {
      const auto fetch = [&](const float* p) { return width == kLanes ? load(p + at) : load_first(p + at, width); };
      Vec result = mul(mul(sub(x, centre), factor), fetch(args.scale));
      if (args.shift != nullptr) result = add(result, fetch(args.shift));
      width == kLanes ? store(out + at, result) : store_first(out + at, result, width);
    });
  }
}

// The first `width` columns; a full vector's where kFull.
template <bool kFull>
inline void sum_columns(const float* in, std::int64_t step, std::int64_t rows, float* out, std::int64_t width) noexcept {
  constexpr std::int64_t kBlock = 128;  // rows of a partial sum: errors grow with a block, not with all rows
  const auto fetch = [&](std::int64_t row) { return kFull ? load(in + row * step) : load_first(in + row * step, width); };
  Vec total = set(0.0f);
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t end = row + kBlock < rows ? row + kBlock : rows;
    Vec sum0 = set(0.0f), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (; row + 4 <= end; row += 4) {
      sum0 = add(sum0, fetch(row));
      sum1 = add(sum1, fetch(row + 1));
      sum2 = add(sum2, fetch(row + 2));
      sum3 = add(sum3, fetch(row + 3));
    }
    for (; row < end; ++row) sum0 = add(sum0, fetch(row));
    total = add(total, add(add(sum0, sum1), add(sum2, sum3)));
  }
  kFull ? store(out, total) : store_first(out, total, width);
}

inline void sum_rows(const float* in, std::int64_t step, std::int64_t rows, float* out, std::int64_t columns) noexcept {
  std::int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) sum_columns<true>(in + c, step, rows, out + c, kLanes);
  if (c < columns) sum_columns<false>(in + c, step, rows, out + c, columns - c);
}
