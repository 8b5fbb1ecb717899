// Kernels of complex numbers: arithmetic, magnitudes, sums and products. Plain loops over pairs of numbers, which the compiler
// vectorises; a matrix product is one of real matrices. What has no kernel here stays scalar's (scalar/complex.cpp).

template <class R>
struct ComplexNumber {
  R re, im;
};
template <class R>
inline constexpr std::size_t kComplexType = static_cast<std::size_t>(sizeof(R) == 4 ? Compute::c64 : Compute::c128);

struct ComplexAdd {
  template <class R>
  static ComplexNumber<R> of(ComplexNumber<R> a, ComplexNumber<R> b) noexcept {
    return {a.re + b.re, a.im + b.im};
  }
};
struct ComplexSub {
  template <class R>
  static ComplexNumber<R> of(ComplexNumber<R> a, ComplexNumber<R> b) noexcept {
    return {a.re - b.re, a.im - b.im};
  }
};
struct ComplexMul {
  template <class R>
  static ComplexNumber<R> of(ComplexNumber<R> a, ComplexNumber<R> b) noexcept {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
};
// Smith's division without branches.
struct ComplexDiv {
  template <class R>
  static ComplexNumber<R> of(ComplexNumber<R> a, ComplexNumber<R> b) noexcept {
    const R re = b.re < R{0} ? -b.re : b.re, im = b.im < R{0} ? -b.im : b.im;
    const bool by_re = re >= im, zero = (re == R{0}) & (im == R{0});
    const R large = by_re ? b.re : b.im, small = by_re ? b.im : b.re;
    const R ratio = zero ? R{0} : small / large, scale = R{1} / (zero ? R{0} : large + small * ratio);
    const R x = by_re ? a.re : a.im, y = by_re ? a.im : a.re;
    const R turned = y - x * ratio;
    return {(x + y * ratio) * scale, (by_re ? turned : -turned) * scale};
  }
};
struct ComplexEqual {
  template <class R>
  static std::uint8_t of(ComplexNumber<R> a, ComplexNumber<R> b) noexcept {
    return (a.re == b.re) & (a.im == b.im);
  }
};
struct ComplexNotEqual {
  template <class R>
  static std::uint8_t of(ComplexNumber<R> a, ComplexNumber<R> b) noexcept {
    return (a.re != b.re) | (a.im != b.im);
  }
};
struct ComplexNeg {
  template <class R>
  static ComplexNumber<R> of(ComplexNumber<R> x) noexcept {
    return {-x.re, -x.im};
  }
};
struct ComplexConjugate {
  template <class R>
  static ComplexNumber<R> of(ComplexNumber<R> x) noexcept {
    return {x.re, -x.im};
  }
};
struct ComplexSquare {
  template <class R>
  static ComplexNumber<R> of(ComplexNumber<R> x) noexcept {
    return ComplexMul::of(x, x);
  }
};
struct ComplexReciprocal {
  template <class R>
  static ComplexNumber<R> of(ComplexNumber<R> x) noexcept {
    // Of 0: NaN, as in NumPy.
    const R one = (x.re == R{0}) & (x.im == R{0}) ? static_cast<R>(__builtin_nanf("")) : R{1};
    return ComplexDiv::of(ComplexNumber<R>{one, one - one}, x);
  }
};

template <class R, class Out, class Op>
void complex_binary(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
                    std::int64_t count) noexcept {
  const auto* left = static_cast<const ComplexNumber<R>*>(a);
  const auto* right = static_cast<const ComplexNumber<R>*>(b);
  auto* to = static_cast<Out*>(out);
  if (count == 0) return;
  if (a_stride == 1 && b_stride == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(left[i], right[i]);
  } else if (a_stride == 1 && b_stride == 0) {
    const ComplexNumber<R> same = *right;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(left[i], same);
  } else if (a_stride == 0 && b_stride == 1) {
    const ComplexNumber<R> same = *left;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(same, right[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(left[i * a_stride], right[i * b_stride]);
  }
}

template <class R, class Op>
void complex_unary(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const auto* from = static_cast<const ComplexNumber<R>*>(in);
  auto* to = static_cast<ComplexNumber<R>*>(out);
  if (stride == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = Op::of(from[i * stride]);
  }
}

// The magnitudes of a block are roots of sums of squares; where a sum is not in the range in which squares keep their digits, the
// scalar kernel computes the block again.
template <class R, UnaryFn& plain>
void complex_magnitude(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  constexpr std::int64_t kBlock = 512;
  constexpr R kLow = sizeof(R) == 4 ? R(0x1p-98) : R(0x1p-966), kHigh = sizeof(R) == 4 ? R(0x1p126) : R(0x1p1022);
  const auto* from = static_cast<const ComplexNumber<R>*>(in);
  auto* to = static_cast<R*>(out);
  if (stride != 1) return plain(in, stride, out, count);
  for (std::int64_t start = 0; start < count; start += kBlock) {
    const std::int64_t size = count - start < kBlock ? count - start : kBlock;
    std::int32_t outside = 0;
#pragma GCC ivdep
    for (std::int64_t i = start; i < start + size; ++i) {
      const R re = from[i].re, im = from[i].im, sum = re * re + im * im;
      outside |= ((sum < kLow) | (sum > kHigh) | (sum != sum)) & ((re != R{0}) | (im != R{0}));
      to[i] = sizeof(R) == 4 ? static_cast<R>(__builtin_sqrtf(static_cast<float>(sum)))
                             : static_cast<R>(__builtin_sqrt(static_cast<double>(sum)));
    }
    if (outside != 0) plain(from + start, 1, to + start, size);
  }
}

// Sum in float64, in as many partial results as fill a few vectors.
template <class R>
void complex_sum(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept {
  const auto* from = static_cast<const R*>(in);
  constexpr std::int64_t kPart = 32;  // numbers, of 16 pairs
  double part[kPart] = {};
  std::int64_t i = 0;
  if (stride == 1)
    for (; i + kPart <= 2 * count; i += kPart)
      for (std::int64_t j = 0; j < kPart; ++j) part[j] += static_cast<double>(from[i + j]);
  double re = 0, im = 0;
  for (std::int64_t j = 0; j < kPart; j += 2) re += part[j], im += part[j + 1];
  for (i /= 2; i < count; ++i)
    re += static_cast<double>(from[2 * i * stride]), im += static_cast<double>(from[2 * i * stride + 1]);
  *static_cast<ComplexNumber<R>*>(out) = {static_cast<R>(re), static_cast<R>(im)};
}

// sum of a[i] * b[i].
template <class R>
ComplexNumber<R> complex_dot(const ComplexNumber<R>* a, std::int64_t a_step, const ComplexNumber<R>* b, std::int64_t b_step,
                             std::int64_t count) noexcept {
  constexpr std::int64_t kPart = 64 / static_cast<std::int64_t>(sizeof(R));
  R re[kPart] = {}, im[kPart] = {};
  std::int64_t i = 0;
  if (a_step == 1 && b_step == 1)
    for (; i + kPart <= count; i += kPart)
#pragma GCC ivdep
      for (std::int64_t j = 0; j < kPart; ++j) {
        const ComplexNumber<R> x = a[i + j], y = b[i + j];
        re[j] += x.re * y.re - x.im * y.im;
        im[j] += x.re * y.im + x.im * y.re;
      }
  for (std::int64_t half = kPart / 2; half > 0; half /= 2)
    for (std::int64_t j = 0; j < half; ++j) re[j] += re[j + half], im[j] += im[j + half];
  for (; i < count; ++i) {
    const ComplexNumber<R> product = ComplexMul::of(a[i * a_step], b[i * b_step]);
    re[0] += product.re, im[0] += product.im;
  }
  return {re[0], im[0]};
}

// The product of real matrices that a complex one is: A's rows unchanged, as 2k real numbers each; every element x + iy of B as
// [x y; -y x]; the result's rows unchanged as well.
template <class R, Gemm& real>
std::size_t complex_gemm_scratch(std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  if (m == 1 && n == 1) return 0;
  constexpr std::size_t kLine = 64;
  const auto lines = [](std::int64_t count) { return (static_cast<std::size_t>(count) * sizeof(R) + kLine - 1) / kLine * kLine; };
  return lines(4 * n * k) + lines(2 * m * k) + real.scratch_bytes(m, 2 * n, 2 * k);
}
template <class R, Gemm& real>
void complex_gemm(const GemmArgs& args) noexcept {
  const auto* a = static_cast<const ComplexNumber<R>*>(args.a);
  const auto* b = static_cast<const ComplexNumber<R>*>(args.b);
  if (args.m == 1 && args.n == 1) {
    *static_cast<ComplexNumber<R>*>(args.out) = complex_dot(a, args.a_col, b, args.b_row, args.k);
    return;
  }
  const bool dense_rows = args.a_col == 1 || args.k == 1;
  constexpr std::size_t kLine = 64;
  const auto lines = [](std::int64_t count) { return (static_cast<std::size_t>(count) * sizeof(R) + kLine - 1) / kLine * kLine; };
  auto* scratch = static_cast<std::uint8_t*>(args.scratch);
  auto* wide = reinterpret_cast<R*>(scratch);
  auto* rows = reinterpret_cast<ComplexNumber<R>*>(scratch + lines(4 * args.n * args.k));
  for (std::int64_t k = 0; k < args.k; ++k) {
    R* upper = wide + 4 * args.n * k;
    R* lower = upper + 2 * args.n;
    for (std::int64_t n = 0; n < args.n; ++n) {
      const ComplexNumber<R> x = b[k * args.b_row + n * args.b_col];
      upper[2 * n] = x.re, upper[2 * n + 1] = x.im;
      lower[2 * n] = -x.im, lower[2 * n + 1] = x.re;
    }
  }
  GemmArgs product;
  product.m = args.m, product.n = 2 * args.n, product.k = 2 * args.k;
  product.a = a, product.a_row = 2 * args.a_row, product.a_col = 1;
  if (!dense_rows) {
    for (std::int64_t m = 0; m < args.m; ++m)
      for (std::int64_t k = 0; k < args.k; ++k) rows[m * args.k + k] = a[m * args.a_row + k * args.a_col];
    product.a = rows, product.a_row = 2 * args.k;
  }
  product.b = wide, product.b_row = 2 * args.n, product.b_col = 1;
  product.out = args.out, product.out_row = 2 * args.out_row;
  product.scratch = scratch + lines(4 * args.n * args.k) + lines(2 * args.m * args.k);
  real.run(product);
}

template <class R>
UnaryFn plain_magnitude = nullptr;
template <class R>
Gemm real_gemm = {};

template <class R>
void fill_complex_of(Table& table, std::size_t real) noexcept {
  constexpr std::size_t type = kComplexType<R>;
#define WALLE_FAST(op) \
  table.binary[static_cast<std::size_t>(BinaryOp::op)][type] = &complex_binary<R, ComplexNumber<R>, Complex##op>;
  WALLE_FAST(Add)
  WALLE_FAST(Sub)
  WALLE_FAST(Mul)
  WALLE_FAST(Div)
#undef WALLE_FAST
#define WALLE_FAST(op) \
  table.compare[static_cast<std::size_t>(CompareOp::op)][type] = &complex_binary<R, std::uint8_t, Complex##op>;
  WALLE_FAST(Equal)
  WALLE_FAST(NotEqual)
#undef WALLE_FAST
#define WALLE_FAST(op) table.unary[static_cast<std::size_t>(UnaryOp::op)][type] = &complex_unary<R, Complex##op>;
  WALLE_FAST(Neg)
  WALLE_FAST(Conjugate)
  WALLE_FAST(Square)
  WALLE_FAST(Reciprocal)
#undef WALLE_FAST
  UnaryFn& magnitude = table.part[static_cast<std::size_t>(PartOp::Magnitude)][type];
  plain_magnitude<R> = magnitude;
  magnitude = &complex_magnitude<R, plain_magnitude<R>>;
  table.reduce[static_cast<std::size_t>(ReduceOp::ReduceSum)][type] = &complex_sum<R>;
  real_gemm<R> = table.gemm[real];
  table.gemm[type] = {&complex_gemm<R, real_gemm<R>>, &complex_gemm_scratch<R, real_gemm<R>>};
}

// Call after fill_all, whose real matrix products it takes.
void fill_complex_kernels(Table& table) noexcept {
  fill_complex_of<float>(table, 0);
  fill_complex_of<double>(table, 1);
}
