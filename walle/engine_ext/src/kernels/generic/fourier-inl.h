// One pass of a Fourier transform: small transforms ("butterflies") of `radix` numbers that lie `rest * step` apart, rotated. The
// innermost loops are over neighbouring columns, in vectors: over q, or over p where there is one q for each p.

template <std::int64_t radix>
struct Butterfly;

template <>
struct Butterfly<2> {
  static void run(double (&re)[2], double (&im)[2]) noexcept {
    const double r = re[1], i = im[1];
    re[1] = re[0] - r, im[1] = im[0] - i;
    re[0] += r, im[0] += i;
  }
};
template <>
struct Butterfly<3> {
  static void run(double (&re)[3], double (&im)[3]) noexcept {
    constexpr double kSin = 0.86602540378443864676;  // sine of 60 degrees
    const double sum_r = re[1] + re[2], sum_i = im[1] + im[2];
    const double gap_r = kSin * (re[1] - re[2]), gap_i = kSin * (im[1] - im[2]);
    const double mean_r = re[0] - 0.5 * sum_r, mean_i = im[0] - 0.5 * sum_i;
    re[0] += sum_r, im[0] += sum_i;
    re[1] = mean_r + gap_i, im[1] = mean_i - gap_r;
    re[2] = mean_r - gap_i, im[2] = mean_i + gap_r;
  }
};
template <>
struct Butterfly<4> {
  static void run(double (&re)[4], double (&im)[4]) noexcept {
    const double even_r = re[0] + re[2], even_i = im[0] + im[2], gap_r = re[0] - re[2], gap_i = im[0] - im[2];
    const double odd_r = re[1] + re[3], odd_i = im[1] + im[3], turn_r = im[1] - im[3], turn_i = re[3] - re[1];
    re[0] = even_r + odd_r, im[0] = even_i + odd_i;
    re[1] = gap_r + turn_r, im[1] = gap_i + turn_i;
    re[2] = even_r - odd_r, im[2] = even_i - odd_i;
    re[3] = gap_r - turn_r, im[3] = gap_i - turn_i;
  }
};
template <>
struct Butterfly<5> {
  static void run(double (&re)[5], double (&im)[5]) noexcept {
    constexpr double c1 = 0.30901699437494742410, s1 = 0.95105651629515357212;   // cosine and sine of 72 degrees
    constexpr double c2 = -0.80901699437494742410, s2 = 0.58778525229247312917;  // cosine and sine of 144 degrees
    const double r14 = re[1] + re[4], i14 = im[1] + im[4], d14 = re[1] - re[4], e14 = im[1] - im[4];
    const double r23 = re[2] + re[3], i23 = im[2] + im[3], d23 = re[2] - re[3], e23 = im[2] - im[3];
    const double a_r = re[0] + c1 * r14 + c2 * r23, a_i = im[0] + c1 * i14 + c2 * i23;
    const double b_r = re[0] + c2 * r14 + c1 * r23, b_i = im[0] + c2 * i14 + c1 * i23;
    const double u_r = s1 * d14 + s2 * d23, u_i = s1 * e14 + s2 * e23;
    const double v_r = s2 * d14 - s1 * d23, v_i = s2 * e14 - s1 * e23;
    re[0] += r14 + r23, im[0] += i14 + i23;
    re[1] = a_r + u_i, im[1] = a_i - u_r;
    re[4] = a_r - u_i, im[4] = a_i + u_r;
    re[2] = b_r + v_i, im[2] = b_i - v_r;
    re[3] = b_r - v_i, im[3] = b_i + v_r;
  }
};

// Transform the numbers at `from`, rotate the k-th by turn(k), and write it to `to` + k * step.
template <std::int64_t radix, class Turn>
inline void fourier_column(const FourierPass& pass, std::int64_t from, std::int64_t to, std::int64_t step,
                           const Turn& turn) noexcept {
  double re[radix], im[radix];
  const std::int64_t part = pass.rest * step;
#pragma GCC unroll 8
  for (std::int64_t j = 0; j < radix; ++j) re[j] = pass.re[from + j * part], im[j] = pass.im[from + j * part];
  Butterfly<radix>::run(re, im);
  pass.out_re[to] = re[0], pass.out_im[to] = im[0];
#pragma GCC unroll 8
  for (std::int64_t k = 1; k < radix; ++k) {
    const double c = turn(2 * k - 2), s = turn(2 * k - 1);
    pass.out_re[to + k * step] = re[k] * c - im[k] * s;
    pass.out_im[to + k * step] = re[k] * s + im[k] * c;
  }
}

template <std::int64_t radix>
void fourier_pass(const FourierPass& given) noexcept {
  const FourierPass pass = given;  // a copy: no store through a pointer changes its fields
  const double* turns = pass.turns;
  const std::int64_t rest = pass.rest, step = pass.step;
  if (step == 1) {
#pragma GCC ivdep
    for (std::int64_t p = 0; p < pass.count; ++p)
      fourier_column<radix>(pass, p, radix * p, 1, [=](std::int64_t i) noexcept { return turns[i * rest + p]; });
    return;
  }
  for (std::int64_t p = 0; p < pass.count; ++p) {
    double turn[2 * radix - 2];
    for (std::int64_t i = 0; i < 2 * radix - 2; ++i) turn[i] = turns[i * rest + p];
    const auto rotate = [&turn](std::int64_t i) noexcept { return turn[i]; };
    if (step == 4 && pass.width == 4) {
#pragma GCC ivdep
      for (std::int64_t q = 0; q < 4; ++q) fourier_column<radix>(pass, 4 * p + q, radix * p * 4 + q, 4, rotate);
    } else {
#pragma GCC ivdep
      for (std::int64_t q = 0; q < pass.width; ++q) fourier_column<radix>(pass, p * step + q, radix * p * step + q, step, rotate);
    }
  }
}

// Any other radix: a sum over the numbers for each result.
void fourier_pass_of_any(const FourierPass& pass) noexcept {
  const std::int64_t radix = pass.radix, rest = pass.rest, step = pass.step, part = rest * step;
  for (std::int64_t p = 0; p < pass.count; ++p)
    for (std::int64_t k = 0; k < radix; ++k) {
      double* out_re = pass.out_re + (radix * p + k) * step;
      double* out_im = pass.out_im + (radix * p + k) * step;
      for (std::int64_t j = 0, at = 0; j < radix; ++j, at = at + k < radix ? at + k : at + k - radix) {
        const double c = pass.wheel[2 * at], s = pass.wheel[2 * at + 1];
        const double *re = pass.re + p * step + j * part, *im = pass.im + p * step + j * part;
#pragma GCC ivdep
        for (std::int64_t q = 0; q < pass.width; ++q) {
          const double r = re[q] * c - im[q] * s, i = re[q] * s + im[q] * c;
          out_re[q] = j == 0 ? r : out_re[q] + r;
          out_im[q] = j == 0 ? i : out_im[q] + i;
        }
      }
      if (k == 0) continue;
      const double c = pass.turns[(2 * k - 2) * rest + p], s = pass.turns[(2 * k - 1) * rest + p];
#pragma GCC ivdep
      for (std::int64_t q = 0; q < pass.width; ++q) {
        const double r = out_re[q], i = out_im[q];
        out_re[q] = r * c - i * s;
        out_im[q] = r * s + i * c;
      }
    }
}

void fourier(const FourierPass& pass) noexcept {
  switch (pass.radix) {
    case 2: return fourier_pass<2>(pass);
    case 3: return fourier_pass<3>(pass);
    case 4: return fourier_pass<4>(pass);
    case 5: return fourier_pass<5>(pass);
    default: return fourier_pass_of_any(pass);
  }
}
