// Kernels by channel and gates of float32 (kernels/channels.h) over the including instruction set's vec.h. Included after
// composite-inl.h, whose walks over a row it needs.

// Return the sum of f(vector, width) over rows; lanes beyond a row's end read 0.
template <class F>
double sum_of_rows(const float* x, const ChannelRows& rows, F&& f) noexcept {
  Vec sum0 = set(0.0f), sum1 = sum0;
  for (std::int64_t row = 0; row < rows.rows; ++row, x += rows.step) {
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= rows.count; i += 2 * kLanes) {
      sum0 = add(sum0, f(load(x + i), kLanes));
      sum1 = add(sum1, f(load(x + i + kLanes), kLanes));
    }
    if (i + kLanes <= rows.count) {
      sum0 = add(sum0, f(load(x + i), kLanes));
      i += kLanes;
    }
    if (i < rows.count) sum1 = add(sum1, f(load_first(x + i, rows.count - i), rows.count - i));
  }
  return sum(add(sum0, sum1));
}

inline void channel_moments(const void* in, const ChannelRows& rows, double* out) noexcept {
  const auto* x = static_cast<const float*>(in);
  const auto count = static_cast<double>(rows.rows * rows.count);
  // Not a lambda: one without captures also has a form that is compiled outside the target region.
  struct Element {
    Vec operator()(Vec v, std::int64_t) const noexcept { return v; }
  };
  const double mean = sum_of_rows(x, rows, Element{}) / count;
  const Vec centre = set(static_cast<float>(mean));
  const double squares = sum_of_rows(x, rows, [&](Vec v, std::int64_t width) {
    const Vec apart = sub(v, width == kLanes ? centre : first_of(centre, width));
    return mul(apart, apart);
  });
  const double rounding = mean - static_cast<double>(static_cast<float>(mean));
  out[0] = mean;
  out[1] = squares - count * rounding * rounding;
}

// All of g, or g where a gate lets it pass, else 0.
struct WholeGradient {
  Vec operator()(Vec g, Vec) const noexcept { return g; }
};
template <bool kHasHigh>
struct GatedGradient {
  Vec a, b, low, high, zero;

  explicit GatedGradient(const ChannelGate& gate)
      : a(set(static_cast<float>(gate.a))),
        b(set(static_cast<float>(gate.b))),
        low(set(static_cast<float>(gate.low))),
        high(set(static_cast<float>(gate.high))),
        zero(set(0.0f)) {}
  Vec operator()(Vec g, Vec x) const noexcept {
    const Vec y = fma(a, x, b), above = choose(less(low, y), g, zero);
    return kHasHigh ? choose(less(y, high), above, zero) : above;
  }
};

// Lanes beyond a row's end read 0 in g, which makes both addends 0.
template <class F>
void sums_of(const float* g, const float* x, double centre, const ChannelRows& rows, const F& passed, double* out) noexcept {
  const Vec middle = set(static_cast<float>(centre));
  Vec sum0 = set(0.0f), sum1 = sum0, product0 = sum0, product1 = sum0;
  for (std::int64_t row = 0; row < rows.rows; ++row, g += rows.step, x += rows.step) {
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= rows.count; i += 2 * kLanes) {
      const Vec x0 = load(x + i), x1 = load(x + i + kLanes);
      const Vec g0 = passed(load(g + i), x0), g1 = passed(load(g + i + kLanes), x1);
      sum0 = add(sum0, g0);
      sum1 = add(sum1, g1);
      product0 = fma(g0, sub(x0, middle), product0);
      product1 = fma(g1, sub(x1, middle), product1);
    }
    for (; i < rows.count; i += kLanes) {
      const std::int64_t left = rows.count - i;
      const Vec x0 = left < kLanes ? load_first(x + i, left) : load(x + i);
      const Vec g0 = passed(left < kLanes ? load_first(g + i, left) : load(g + i), x0);
      sum0 = add(sum0, g0);
      product0 = fma(g0, sub(x0, middle), product0);
    }
  }
  out[0] = sum(add(sum0, sum1));
  out[1] = sum(add(product0, product1));
}

inline void channel_sums(const void* gradient, const void* in, double centre, const ChannelGate* gate, const ChannelRows& rows,
                         double* out) noexcept {
  const auto *g = static_cast<const float*>(gradient), *x = static_cast<const float*>(in);
  if (gate == nullptr) return sums_of(g, x, centre, rows, WholeGradient{}, out);
  if (gate->has_high) return sums_of(g, x, centre, rows, GatedGradient<true>(*gate), out);
  sums_of(g, x, centre, rows, GatedGradient<false>(*gate), out);
}

// Call f(x, g) for each vector of two rows and store what it returns.
template <class F>
void map_pairs(const void* first, const void* second, void* result, std::int64_t count, F&& f) noexcept {
  const auto *x = static_cast<const float*>(first), *g = static_cast<const float*>(second);
  auto* out = static_cast<float*>(result);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, f(load(x + i), load(g + i)));
  if (i < count) store_first(out + i, f(load_first(x + i, count - i), load_first(g + i, count - i)), count - i);
}

inline void channel_affine(const AffineArgs& args) noexcept {
  const Vec a = set(static_cast<float>(args.a)), b = set(static_cast<float>(args.b)), p = set(static_cast<float>(args.p)),
            low = set(static_cast<float>(args.low)), high = set(static_cast<float>(args.high));
  const auto bounded = [&](Vec y) { return min_or_second(high, max_or_second(low, y)); };
  if (args.g != nullptr) {
    const auto run = [&](const auto& passed) {
      map_pairs(args.x, args.g, args.out, args.count, [&](Vec x, Vec g) { return bounded(fma(p, passed(g, x), fma(a, x, b))); });
    };
    if (args.gate == nullptr) return run(WholeGradient{});
    return args.gate->has_high ? run(GatedGradient<true>(*args.gate)) : run(GatedGradient<false>(*args.gate));
  }
  auto* out = static_cast<float*>(args.out);
  each_vector(static_cast<const float*>(args.x), args.count, [&](Vec x, std::int64_t at, std::int64_t width) {
    const Vec y = bounded(fma(a, x, b));
    width == kLanes ? store(out + at, y) : store_first(out + at, y, width);
  });
}

inline void gate(const GateArgs& args) noexcept {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Vec low = set(args.has_low ? static_cast<float>(args.low) : -kInfinity),
            high = set(args.has_high ? static_cast<float>(args.high) : kInfinity), zero = set(0.0f);
  const auto run = [&](auto&& f) { map_pairs(args.x, args.g, args.out, args.count, f); };
  if (args.includes_bounds)
    run([&](Vec x, Vec g) { return choose(less(x, low), zero, choose(less(high, x), zero, g)); });
  else if (!args.has_high)
    run([&](Vec x, Vec g) { return args.has_low ? choose(less(low, x), g, zero) : g; });
  else if (!args.has_low)
    run([&](Vec x, Vec g) { return choose(less(x, high), g, zero); });
  else
    run([&](Vec x, Vec g) { return choose(less(low, x), choose(less(x, high), g, zero), zero); });
}

// Return g where x > 0, else g * slope, and add g * x to the sum where not x > 0; lanes that read 0 add 0.
inline Vec prelu_gradient_of(Vec g, Vec x, Vec slope, Vec& sum) noexcept {
  const Vec zero = set(0.0f);
  const auto above = less(zero, x);
  sum = add(sum, choose(above, zero, mul(g, x)));
  return choose(above, g, mul(g, slope));
}

inline double prelu_gradient(const void* gradient, const void* in, double slope, void* result, std::int64_t count) noexcept {
  const auto *g = static_cast<const float*>(gradient), *x = static_cast<const float*>(in);
  auto* out = static_cast<float*>(result);
  const Vec factor = set(static_cast<float>(slope));
  Vec sum0 = set(0.0f), sum1 = sum0;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    store(out + i, prelu_gradient_of(load(g + i), load(x + i), factor, sum0));
    store(out + i + kLanes, prelu_gradient_of(load(g + i + kLanes), load(x + i + kLanes), factor, sum1));
  }
  for (; i < count; i += kLanes) {
    const std::int64_t left = count - i < kLanes ? count - i : kLanes;
    store_first(out + i, prelu_gradient_of(load_first(g + i, left), load_first(x + i, left), factor, sum0), left);
  }
  return sum(add(sum0, sum1));
}

inline void prelu_gradient_row(const void* gradient, const void* in, const void* factors, void* result, void* products,
                               std::int64_t count) noexcept {
  const auto *g = static_cast<const float*>(gradient), *x = static_cast<const float*>(in),
             *slopes = static_cast<const float*>(factors);
  auto *out = static_cast<float*>(result), *sums = static_cast<float*>(products);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vec sum = load(sums + i);
    store(out + i, prelu_gradient_of(load(g + i), load(x + i), load(slopes + i), sum));
    store(sums + i, sum);
  }
  if (i == count) return;
  const auto last = [&](const float* p) { return load_first(p + i, count - i); };
  Vec sum = last(sums);
  store_first(out + i, prelu_gradient_of(last(g), last(x), last(slopes), sum), count - i);
  store_first(sums + i, sum, count - i);
}

inline constexpr ChannelKernels kChannels{&channel_moments, &channel_sums,      &channel_affine, &gate,
                                          &prelu_gradient,  &prelu_gradient_row};
