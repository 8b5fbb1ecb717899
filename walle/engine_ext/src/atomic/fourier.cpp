// FourierTransform: the discrete Fourier transform of each row. Self-sorting passes of radix 4, 2 and small primes (Stockham, see
// Van Loan 1992), which the instruction set's kernel runs; a length with a prime factor above kMaxPrime uses a convolution
// (Bluestein 1970). Real rows of even length are transformed as complex ones of half the length. All in float64, rounded once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <utility>

#include "atomic/conversion.h"
#include "core/work_vector.h"

namespace walle {

namespace {

constexpr std::int64_t kMaxPrime = 61;

struct Parts {
  double *re, *im;
};

// Return exp(2 pi i * turn / n), exact at multiples of a quarter turn.
void unit(std::int64_t turn, std::int64_t n, double& re, double& im) noexcept {
  const std::int64_t quarter = 4 * turn / n, rest = 4 * turn - quarter * n;
  const bool mirrored = 2 * rest > n;  // the angle used is at most pi / 4
  const double angle = std::numbers::pi / 2 * (static_cast<double>(mirrored ? n - rest : rest) / static_cast<double>(n));
  double c = std::cos(angle), s = std::sin(angle);
  if (mirrored) std::swap(c, s);
  constexpr int turns[4][4] = {{1, 0, 0, 1}, {0, -1, 1, 0}, {-1, 0, 0, -1}, {0, 1, -1, 0}};
  re = turns[quarter][0] * c + turns[quarter][1] * s;
  im = turns[quarter][2] * c + turns[quarter][3] * s;
}

// The numbers exp(-2 pi i t / n), each the product of two from short tables: sines cost many times as much.
class Roots {
 public:
  explicit Roots(std::int64_t n) {
    while ((std::int64_t{1} << (2 * bits_)) < n) ++bits_;
    const std::int64_t size = std::int64_t{1} << bits_, blocks = (n + size - 1) >> bits_;
    fine_.resize(static_cast<std::size_t>(2 * std::min(size, n)));
    coarse_.resize(static_cast<std::size_t>(2 * blocks));
    for (std::int64_t i = 0; i < std::min(size, n); ++i) put(fine_, i, i, n);
    for (std::int64_t i = 0; i < blocks; ++i) put(coarse_, i, i << bits_, n);
  }

  // t from 0 to n - 1.
  void get(std::int64_t t, double& re, double& im) const noexcept {
    const double* a = coarse_.data() + 2 * (t >> bits_);
    const double* b = fine_.data() + 2 * (t & ((std::int64_t{1} << bits_) - 1));
    re = a[0] * b[0] - a[1] * b[1];
    im = a[0] * b[1] + a[1] * b[0];
  }

 private:
  static void put(WorkVector<double>& table, std::int64_t at, std::int64_t turn, std::int64_t n) {
    double re, im;
    unit(turn, n, re, im);
    table[static_cast<std::size_t>(2 * at)] = re;
    table[static_cast<std::size_t>(2 * at + 1)] = -im;
  }

  int bits_ = 0;
  WorkVector<double> fine_, coarse_;  // (., 2)
};

// A transform of one length, prepared.
class Plan {
 public:
  Plan(std::int64_t n, FourierFn kernel) : n_(n), kernel_(kernel) {
    std::vector<std::int64_t> radices;
    std::int64_t rest = n;
    for (; rest % 4 == 0; rest /= 4) radices.push_back(4);
    for (std::int64_t radix = 2; radix <= kMaxPrime && rest > 1; ++radix)
      for (; rest % radix == 0; rest /= radix) radices.push_back(radix);
    if (rest > 1) {
      make_convolution();
      return;
    }
    const Roots roots(n);
    std::int64_t done = 1;
    for (const std::int64_t radix : radices) {
      Pass pass{radix, n / done / radix, done, {}, {}};
      pass.turns.resize(static_cast<std::size_t>((radix - 1) * 2 * pass.rest));
      for (std::int64_t k = 1; k < radix; ++k) {
        double *re = pass.turns.data() + (2 * k - 2) * pass.rest, *im = re + pass.rest;
        for (std::int64_t p = 0; p < pass.rest; ++p) {
          if ((p & 0xfffff) == 0) throw_if_stopped();
          roots.get(k * p * done, re[p], im[p]);
        }
      }
      pass.wheel.resize(static_cast<std::size_t>(2 * radix));
      for (std::int64_t j = 0; j < radix; ++j) {
        double* at = pass.wheel.data() + 2 * j;
        unit(j, radix, at[0], at[1]);
        at[1] = -at[1];
      }
      passes_.push_back(std::move(pass));
      done *= radix;
    }
  }

  // Return the number of doubles of scratch for `lanes` rows.
  std::int64_t scratch(std::int64_t lanes) const noexcept {
    return inner_ ? 2 * inner_->n_ * lanes + inner_->scratch(lanes) : 2 * n_ * lanes;
  }

  // Transform x (n, lanes) with exp(-2 pi i ...); for the other sign, swap the real and imaginary parts. After a stop the result
  // is not whole.
  void run(Parts x, std::int64_t lanes, double* scratch, StopPoll& poll) const noexcept {
    if (inner_) return convolve(x, lanes, scratch, poll);
    Parts from = x, to{scratch, scratch + n_ * lanes};
    for (const Pass& pass : passes_) {
      if (!run_pass(pass, from, to, lanes, poll)) return;
      std::swap(from, to);
    }
    if (from.re == x.re) return;
    std::memcpy(x.re, from.re, static_cast<std::size_t>(n_ * lanes) * sizeof(double));
    std::memcpy(x.im, from.im, static_cast<std::size_t>(n_ * lanes) * sizeof(double));
  }

 private:
  struct Pass {
    std::int64_t radix, rest, done;
    WorkVector<double> turns, wheel;  // contents of FourierPass's fields
  };

  // A pass in pieces, between which the stop flag is polled.
  bool run_pass(const Pass& pass, Parts from, Parts to, std::int64_t lanes, StopPoll& poll) const noexcept {
    constexpr std::int64_t kPiece = 1 << 18;  // numbers
    const std::int64_t step = pass.done * lanes, width = std::min(step, std::max<std::int64_t>(1, kPiece / pass.radix));
    const std::int64_t count = std::min(pass.rest, std::max<std::int64_t>(1, kPiece / (width * pass.radix)));
    FourierPass piece;
    piece.radix = pass.radix, piece.rest = pass.rest, piece.step = step, piece.wheel = pass.wheel.data();
    for (std::int64_t p = 0; p < pass.rest; p += count)
      for (std::int64_t q = 0; q < step; q += width) {
        piece.count = std::min(count, pass.rest - p), piece.width = std::min(width, step - q);
        // A number costs as many operations as the radix has, and each counts for several elements.
        if (!poll.proceed(piece.count * piece.width * pass.radix * (pass.radix > 5 ? pass.radix : 4))) return false;
        const std::int64_t at = p * step + q, out = pass.radix * p * step + q;
        piece.re = from.re + at, piece.im = from.im + at;
        piece.out_re = to.re + out, piece.out_im = to.im + out;
        piece.turns = pass.turns.data() + p;
        kernel_(piece);
      }
    return true;
  }

  // With c[i] = exp(pi i * i^2 / n): the transform is conj(c) times the convolution of x conj(c) with c.
  void make_convolution() {
    std::int64_t length = 1;
    while (length < 2 * n_ - 1) length *= 2;
    inner_ = std::make_unique<Plan>(length, kernel_);
    const Roots roots(2 * n_);
    chirp_.resize(static_cast<std::size_t>(2 * n_));
    for (std::int64_t i = 0, turn = 0; i < n_; ++i) {  // turn is i^2 modulo 2 n
      double& im = chirp_[static_cast<std::size_t>(n_ + i)];
      roots.get(turn, chirp_[static_cast<std::size_t>(i)], im);
      im = -im;
      turn += 2 * i + 1;
      while (turn >= 2 * n_) turn -= 2 * n_;
    }
    throw_if_stopped();
    response_.assign(static_cast<std::size_t>(2 * length), 0.0);
    double *re = response_.data(), *im = re + length;
    for (std::int64_t i = 0; i < n_; ++i) {
      const std::int64_t back = i == 0 ? 0 : length - i;
      re[i] = re[back] = chirp_[static_cast<std::size_t>(i)] / static_cast<double>(length);
      im[i] = im[back] = chirp_[static_cast<std::size_t>(n_ + i)] / static_cast<double>(length);
    }
    WorkVector<double> work(static_cast<std::size_t>(inner_->scratch(1)));
    StopPoll poll;
    inner_->run({re, im}, 1, work.data(), poll);
    throw_if_stopped();
  }

  void convolve(Parts x, std::int64_t lanes, double* scratch, StopPoll& poll) const noexcept {
    const std::int64_t length = inner_->n_;
    const Parts y{scratch, scratch + length * lanes};
    scratch += 2 * length * lanes;
    std::fill(y.re + n_ * lanes, y.re + length * lanes, 0.0);
    std::fill(y.im + n_ * lanes, y.im + length * lanes, 0.0);
    const double *cr = chirp_.data(), *ci = cr + n_, *hr = response_.data(), *hi = hr + length;
    for (std::int64_t i = 0; i < n_; ++i)
      for (std::int64_t q = i * lanes; q < (i + 1) * lanes; ++q) {
        y.re[q] = x.re[q] * cr[i] + x.im[q] * ci[i];
        y.im[q] = x.im[q] * cr[i] - x.re[q] * ci[i];
      }
    inner_->run(y, lanes, scratch, poll);
    if (poll.stopped()) return;
    for (std::int64_t i = 0; i < length; ++i)
      for (std::int64_t q = i * lanes; q < (i + 1) * lanes; ++q) {
        const double re = y.re[q] * hr[i] - y.im[q] * hi[i], im = y.re[q] * hi[i] + y.im[q] * hr[i];
        y.re[q] = re;
        y.im[q] = im;
      }
    inner_->run({y.im, y.re}, lanes, scratch, poll);  // inverse transform
    for (std::int64_t i = 0; i < n_; ++i)
      for (std::int64_t q = i * lanes; q < (i + 1) * lanes; ++q) {
        x.re[q] = y.re[q] * cr[i] + y.im[q] * ci[i];
        x.im[q] = y.im[q] * cr[i] - y.re[q] * ci[i];
      }
  }

  std::int64_t n_;
  FourierFn kernel_;
  std::vector<Pass> passes_;
  std::unique_ptr<Plan> inner_;  // plan of the convolution, if there is one
  WorkVector<double> chirp_;     // (2, n)
  WorkVector<double> response_;  // the chirp's transform, over the inner length; (2, length)
};

// The forms of a transform of length n: complex to complex, real to complex (all numbers, or the first n / 2 + 1), and the
// inverse from the first n / 2 + 1 to real ones.
struct FourierForm {
  std::int64_t n;
  bool inverse, from_real, to_real, onesided;

  static FourierForm of(const Dims& shape, const Attributes& attributes) {
    FourierForm form{};
    form.inverse = attributes.get_int("inverse", 0) != 0;
    form.onesided = attributes.get_int("onesided", 0) != 0;
    form.to_real = form.inverse && form.onesided;
    form.from_real = shape[2] == 1;
    form.n = form.to_real ? attributes.get_int("length", 2 * (shape[1] - 1)) : shape[1];
    return form;
  }
};

// T is the type of the numbers, float or double.
template <class T>
class FourierStep final : public HostStep {
 public:
  explicit FourierStep(const StepRequest& request)
      : form_(FourierForm::of(request.inputs[0].shape, request.attributes)),
        batch_(request.result.shape[0]),
        halved_((form_.from_real || form_.to_real) && form_.n % 2 == 0),
        length_(halved_ ? form_.n / 2 : form_.n),
        scale_(request.attributes.get_float("scale", 1)),
        plan_(length_, request.table.fourier) {
    // Short rows are transformed side by side.
    constexpr std::int64_t kCached = 1 << 10, kMostLanes = 8;
    lanes_ = std::clamp(kCached / length_, std::int64_t{1}, std::min(kMostLanes, std::max<std::int64_t>(batch_, 1)));
    scratch_bytes_ = static_cast<std::size_t>(2 * (length_ + 1) * lanes_ + plan_.scratch(lanes_)) * sizeof(double);
    if (!halved_) return;
    const Roots roots(form_.n);
    turns_.resize(static_cast<std::size_t>(2 * (length_ / 2 + 1)));
    for (std::int64_t k = 0; k <= length_ / 2; ++k)
      roots.get(k, turns_[static_cast<std::size_t>(2 * k)], turns_[static_cast<std::size_t>(2 * k + 1)]);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto* from = reinterpret_cast<const T*>(inputs[0]);
    auto* to = reinterpret_cast<T*>(output);
    auto* work = reinterpret_cast<double*>(scratch);
    const std::int64_t in_row = form_.to_real ? 2 * (form_.n / 2 + 1) : form_.from_real ? form_.n : 2 * form_.n;
    const std::int64_t out_row = form_.to_real ? form_.n : form_.onesided ? 2 * (form_.n / 2 + 1) : 2 * form_.n;
    StopPoll poll;
    for (std::int64_t row = 0; row < batch_; row += lanes_) {
      const std::int64_t lanes = std::min(lanes_, batch_ - row);
      const Parts x{work, work + (length_ + 1) * lanes};
      for (std::int64_t lane = 0; lane < lanes; ++lane)
        load(from + (row + lane) * in_row, Parts{x.re + lane, x.im + lane}, lanes);
      plan_.run(form_.inverse ? Parts{x.im, x.re} : x, lanes, work + 2 * (length_ + 1) * lanes, poll);
      if (poll.stopped()) return;
      for (std::int64_t lane = 0; lane < lanes; ++lane)
        store(Parts{x.re + lane, x.im + lane}, lanes, to + (row + lane) * out_row);
    }
  }

 private:
  // Rows of x are `lanes` apart.
  void load(const T* line, Parts x, std::int64_t lanes) const noexcept {
    if (form_.to_real) return halved_ ? load_half(line, x, lanes) : load_mirrored(line, x, lanes);
    if (form_.from_real && !halved_) {
      for (std::int64_t i = 0; i < length_; ++i) x.re[i * lanes] = static_cast<double>(line[i]), x.im[i * lanes] = 0;
      return;
    }
    if (lanes == 1)
      for (std::int64_t i = 0; i < length_; ++i)
        x.re[i] = static_cast<double>(line[2 * i]), x.im[i] = static_cast<double>(line[2 * i + 1]);
    else
      for (std::int64_t i = 0; i < length_; ++i)
        x.re[i * lanes] = static_cast<double>(line[2 * i]), x.im[i * lanes] = static_cast<double>(line[2 * i + 1]);
  }

  void store(Parts x, std::int64_t lanes, T* line) const noexcept {
    const auto put = [line, scale = scale_](std::int64_t at, double value) { line[at] = static_cast<T>(value * scale); };
    if (halved_ && form_.from_real) return store_halved(x, lanes, put);
    if (form_.to_real && !halved_) {
      for (std::int64_t i = 0; i < length_; ++i) put(i, x.re[i * lanes]);
      return;
    }
    const std::int64_t count = form_.onesided && !form_.to_real ? form_.n / 2 + 1 : length_;
    if (lanes == 1)
      for (std::int64_t i = 0; i < count; ++i) put(2 * i, x.re[i]), put(2 * i + 1, x.im[i]);
    else
      for (std::int64_t i = 0; i < count; ++i) put(2 * i, x.re[i * lanes]), put(2 * i + 1, x.im[i * lanes]);
  }

  // Even n: with z[i] = x[2 i] + x[2 i + 1] i and its transform Z of length h, X[k] = E[k] + exp(-2 pi i k / n) O[k], where
  // E[k] = (Z[k] + conj(Z[h - k])) / 2 and O[k] = (Z[k] - conj(Z[h - k])) / 2i.
  template <class Put>
  void store_halved(Parts x, std::int64_t lanes, const Put& put) const noexcept {
    const std::int64_t h = length_;
    x.re[h * lanes] = x.re[0], x.im[h * lanes] = x.im[0];
    for (std::int64_t k = 0; k <= h / 2; ++k) {
      const std::int64_t mirror = h - k;
      const double c = turns_[static_cast<std::size_t>(2 * k)], turn = turns_[static_cast<std::size_t>(2 * k + 1)];
      const double s = form_.inverse ? -turn : turn;
      const double ar = x.re[k * lanes], ai = x.im[k * lanes], br = x.re[mirror * lanes], bi = x.im[mirror * lanes];
      const double even_r = 0.5 * (ar + br), even_i = 0.5 * (ai - bi), odd_r = 0.5 * (ai + bi), odd_i = 0.5 * (br - ar);
      const double turned_r = odd_r * c - odd_i * s, turned_i = odd_r * s + odd_i * c;
      put_conjugates(k, even_r + turned_r, even_i + turned_i, put);
      put_conjugates(mirror, even_r - turned_r, turned_i - even_i, put);  // E[h - k] and O[h - k] are conjugates
    }
  }
  template <class Put>
  void put_conjugates(std::int64_t k, double re, double im, const Put& put) const noexcept {
    put(2 * k, re), put(2 * k + 1, im);
    if (form_.onesided || k == 0 || 2 * k == form_.n) return;
    put(2 * (form_.n - k), re), put(2 * (form_.n - k) + 1, -im);
  }

  // The same backwards: Z[k] = (X[k] + conj(X[h - k])) + i exp(2 pi i k / n) (X[k] - conj(X[h - k])). The first and the last of a
  // real signal's numbers are real.
  void load_half(const T* line, Parts x, std::int64_t lanes) const noexcept {
    const std::int64_t h = length_;
    const auto imaginary = [&](std::int64_t k) { return k == 0 || k == h ? 0.0 : static_cast<double>(line[2 * k + 1]); };
    for (std::int64_t k = 0; k <= h / 2; ++k) {
      const std::int64_t mirror = h - k;
      const double c = turns_[static_cast<std::size_t>(2 * k)], s = -turns_[static_cast<std::size_t>(2 * k + 1)];
      const auto ar = static_cast<double>(line[2 * k]), br = static_cast<double>(line[2 * mirror]);
      const double ai = imaginary(k), bi = imaginary(mirror);
      const double sum_r = ar + br, sum_i = ai - bi, gap_r = ar - br, gap_i = ai + bi;
      const double turned_r = gap_r * c - gap_i * s, turned_i = gap_r * s + gap_i * c;
      x.re[k * lanes] = sum_r - turned_i, x.im[k * lanes] = sum_i + turned_r;
      if (k > 0) x.re[mirror * lanes] = sum_r + turned_i, x.im[mirror * lanes] = turned_r - sum_i;
    }
  }
  void load_mirrored(const T* line, Parts x, std::int64_t lanes) const noexcept {
    x.re[0] = static_cast<double>(line[0]), x.im[0] = 0;
    for (std::int64_t k = 1; k <= length_ / 2; ++k) {
      const auto re = static_cast<double>(line[2 * k]), im = static_cast<double>(line[2 * k + 1]);
      x.re[k * lanes] = x.re[(length_ - k) * lanes] = re;
      x.im[k * lanes] = im, x.im[(length_ - k) * lanes] = -im;
    }
  }

  FourierForm form_;
  std::int64_t batch_, lanes_ = 1;
  bool halved_;
  std::int64_t length_;
  double scale_;
  Plan plan_;
  WorkVector<double> turns_;  // exp(-2 pi i k / n), (., 2)
};

}  // namespace

// Input (batch, n, 1 or 2), float32 or float64: real numbers, or real and imaginary parts. Output (batch, n, 2); with `onesided`
// the first n / 2 + 1 numbers only. Attributes: inverse, the opposite sign of the exponent; with onesided, from (batch, length /
// 2
// + 1, 2) to real numbers (batch, length, 1); scale, a factor of the results.
TensorType infer_fourier_transform(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims& shape = operands[0].shape;
  const DType dtype = operands[0].dtype;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if ((dtype != DType::f32 && dtype != DType::f64) || shape.size() != 3 || shape[2] < 1 || shape[2] > 2 || shape[1] < 1 ||
      shape[1] > kMost)
    throw Error(ErrorKind::shape, "FourierTransform of " + std::string(dtype_name(dtype)) + " of shape " + to_string(shape) +
                                      "; it takes float32 or float64 (batch, 1 to 2^30, 1 or 2)");
  const FourierForm form = FourierForm::of(shape, attributes);
  const std::int64_t half = form.n / 2 + 1;
  if (form.to_real && (form.n < 1 || form.n > kMost || shape[1] != half || shape[2] != 2))
    throw Error(ErrorKind::shape, "FourierTransform of " + to_string(shape) + " to " + std::to_string(form.n) +
                                      " real numbers; it takes (batch, length / 2 + 1, 2)");
  if (form.onesided && !form.to_real && !form.from_real)
    throw Error(ErrorKind::shape, "FourierTransform of complex numbers has no onesided form");
  if (form.to_real) return {dtype, {shape[0], form.n, 1}};
  return {dtype, {shape[0], form.onesided ? half : form.n, 2}};
}

std::unique_ptr<HostStep> make_fourier_transform(const StepRequest& request) {
  if (request.result.dtype == DType::f32) return std::make_unique<FourierStep<float>>(request);
  return std::make_unique<FourierStep<double>>(request);
}

}  // namespace walle
