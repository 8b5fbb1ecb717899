// FourierTransform: the discrete Fourier transform of each row, not scaled. Self-sorting passes of radix 4, 2 and small primes
// (Stockham, see Van Loan 1992); a length with a prime factor above kMaxPrime uses a convolution (Bluestein 1970). Several rows
// are transformed side by side, real and imaginary parts separate, so that the innermost loops are long and plain. All in
// float64.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <utility>

#include "atomic/conversion.h"

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

class Plan {
 public:
  explicit Plan(std::int64_t n) : n_(n) {
    std::int64_t rest = n;
    for (; rest % 4 == 0; rest /= 4) radices_.push_back(4);
    for (std::int64_t radix = 2; radix <= kMaxPrime && rest > 1; ++radix)
      for (; rest % radix == 0; rest /= radix) radices_.push_back(radix);
    if (rest > 1) {
      make_convolution();
      return;
    }
    roots_.resize(static_cast<std::size_t>(2 * n));
    StopPoll poll;
    const bool is_whole = run_in_blocks(n, kSine, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        unit(i, n, roots_[static_cast<std::size_t>(2 * i)], roots_[static_cast<std::size_t>(2 * i + 1)]);
    });
    if (!is_whole) throw WorkStopped();
  }

  // Return the number of doubles of scratch for `lanes` rows.
  std::int64_t scratch(std::int64_t lanes) const noexcept {
    return inner_ ? 2 * inner_->n_ * lanes + inner_->scratch(lanes) : 2 * n_ * lanes;
  }

  // Transform x (n, lanes) with exp(-2 pi i ...); for the other sign, swap the real and imaginary parts. Once `poll` is stopped,
  // x is not whole.
  void run(Parts x, std::int64_t lanes, double* scratch, StopPoll& poll) const noexcept {
    if (inner_) return convolve(x, lanes, scratch, poll);
    Parts from = x, to{scratch, scratch + n_ * lanes};
    std::int64_t done = 1;
    for (const std::int64_t radix : radices_) {
      const Pass pass{radix, n_ / done / radix, done, done * lanes};
      const bool is_whole = run_pieces(pass, poll, [&](const Piece& piece) {
        if (radix == 4)
          run_radix_4(from, to, pass, piece);
        else if (radix == 2)
          run_radix_2(from, to, pass, piece);
        else
          run_radix(from, to, pass, piece);
      });
      if (!is_whole) return;
      done *= radix;
      std::swap(from, to);
    }
    if (from.re == x.re) return;
    run_in_blocks(n_ * lanes, 2, poll, [&](std::int64_t first, std::int64_t last) {
      std::memcpy(x.re + first, from.re + first, static_cast<std::size_t>(last - first) * sizeof(double));
      std::memcpy(x.im + first, from.im + first, static_cast<std::size_t>(last - first) * sizeof(double));
    });
  }

 private:
  static constexpr std::int64_t kSine = 32;  // elements whose time a sine and a cosine take

  struct Root {
    double re, im;
  };
  // A pass over `rest` columns of each of `radix` parts, whose elements are `s` lanes.
  struct Pass {
    std::int64_t radix, rest, done, s;
  };
  // Columns [p, p_end) of it, and of each lanes [q, q_end).
  struct Piece {
    std::int64_t p, p_end, q, q_end;
  };

  // Calls run(piece) for pieces of a pass, polling before each: for blocks of columns, or for blocks of lanes of each column
  // where there are many.
  template <class Run>
  static bool run_pieces(const Pass& pass, StopPoll& poll, Run&& run) noexcept {
    const std::int64_t lane = pass.radix > 4 ? pass.radix * pass.radix : pass.radix;
    if (pass.s >= (1 << 16)) {
      for (std::int64_t p = 0; p < pass.rest; ++p)
        if (!run_in_blocks(pass.s, lane, poll, [&](std::int64_t q, std::int64_t q_end) { run(Piece{p, p + 1, q, q_end}); }))
          return false;
      return true;
    }
    return run_in_blocks(pass.rest, lane * pass.s, poll,
                         [&](std::int64_t p, std::int64_t p_end) { run(Piece{p, p_end, 0, pass.s}); });
  }

  Root root(std::int64_t turn) const noexcept {
    const double* at = roots_.data() + 2 * (turn % n_);
    return {at[0], -at[1]};
  }

  // Element q of column p of part k of x[k][p][q], k < radix, goes to y[p][k][q], rotated by p * k / (radix * rest) turns.
  void run_radix_2(Parts x, Parts y, const Pass& pass, const Piece& piece) const noexcept {
    const std::int64_t rest = pass.rest, done = pass.done, s = pass.s;
    for (std::int64_t p = piece.p; p < piece.p_end; ++p) {
      const Root w = root(p * done);
      const double *ar = x.re + p * s, *ai = x.im + p * s, *br = x.re + (p + rest) * s, *bi = x.im + (p + rest) * s;
      double *cr = y.re + 2 * p * s, *ci = y.im + 2 * p * s, *dr = cr + s, *di = ci + s;
      for (std::int64_t q = piece.q; q < piece.q_end; ++q) {
        const double xr = ar[q] - br[q], xi = ai[q] - bi[q];
        cr[q] = ar[q] + br[q];
        ci[q] = ai[q] + bi[q];
        dr[q] = xr * w.re - xi * w.im;
        di[q] = xr * w.im + xi * w.re;
      }
    }
  }

  void run_radix_4(Parts x, Parts y, const Pass& pass, const Piece& piece) const noexcept {
    const std::int64_t rest = pass.rest, done = pass.done, s = pass.s;
    for (std::int64_t p = piece.p; p < piece.p_end; ++p) {
      const Root w1 = root(p * done), w2 = root(2 * p * done), w3 = root(3 * p * done);
      const double *ar = x.re + p * s, *br = ar + rest * s, *cr = br + rest * s, *dr = cr + rest * s;
      const double *ai = x.im + p * s, *bi = ai + rest * s, *ci = bi + rest * s, *di = ci + rest * s;
      double *yr = y.re + 4 * p * s, *yi = y.im + 4 * p * s;
      for (std::int64_t q = piece.q; q < piece.q_end; ++q) {
        const double sum_r = ar[q] + cr[q], sum_i = ai[q] + ci[q], gap_r = ar[q] - cr[q], gap_i = ai[q] - ci[q];
        const double odd_r = br[q] + dr[q], odd_i = bi[q] + di[q], turn_r = bi[q] - di[q], turn_i = dr[q] - br[q];
        yr[q] = sum_r + odd_r;
        yi[q] = sum_i + odd_i;
        const double e_r = gap_r + turn_r, e_i = gap_i + turn_i, f_r = sum_r - odd_r, f_i = sum_i - odd_i;
        const double g_r = gap_r - turn_r, g_i = gap_i - turn_i;
        yr[q + s] = e_r * w1.re - e_i * w1.im;
        yi[q + s] = e_r * w1.im + e_i * w1.re;
        yr[q + 2 * s] = f_r * w2.re - f_i * w2.im;
        yi[q + 2 * s] = f_r * w2.im + f_i * w2.re;
        yr[q + 3 * s] = g_r * w3.re - g_i * w3.im;
        yi[q + 3 * s] = g_r * w3.im + g_i * w3.re;
      }
    }
  }

  void run_radix(Parts x, Parts y, const Pass& pass, const Piece& piece) const noexcept {
    const std::int64_t radix = pass.radix, done = pass.done, s = pass.s, part = pass.rest * s, step = n_ / radix;
    for (std::int64_t p = piece.p; p < piece.p_end; ++p)
      for (std::int64_t k = 0; k < radix; ++k) {
        double *yr = y.re + (radix * p + k) * s, *yi = y.im + (radix * p + k) * s;
        for (std::int64_t j = 0; j < radix; ++j) {
          const Root w = root(j * k % radix * step + p * k * done);  // both rotations at once
          const double *xr = x.re + p * s + j * part, *xi = x.im + p * s + j * part;
          for (std::int64_t q = piece.q; q < piece.q_end; ++q) {
            const double re = xr[q] * w.re - xi[q] * w.im, im = xr[q] * w.im + xi[q] * w.re;
            yr[q] = j == 0 ? re : yr[q] + re;
            yi[q] = j == 0 ? im : yi[q] + im;
          }
        }
      }
  }

  // With c[i] = exp(pi i * i^2 / n): the transform is conj(c) times the convolution of x conj(c) with c.
  void make_convolution() {
    std::int64_t length = 1;
    while (length < 2 * n_ - 1) length *= 2;
    inner_ = std::make_unique<Plan>(length);
    chirp_.resize(static_cast<std::size_t>(2 * n_));
    StopPoll poll;
    for (std::int64_t i = 0; i < n_; ++i) {
      if (!poll.proceed(kSine)) throw WorkStopped();
      const auto turn = static_cast<std::int64_t>(static_cast<unsigned __int128>(i) * static_cast<unsigned __int128>(i) %
                                                  static_cast<unsigned __int128>(2 * n_));
      unit(turn, 2 * n_, chirp_[static_cast<std::size_t>(i)], chirp_[static_cast<std::size_t>(n_ + i)]);
    }
    response_.assign(static_cast<std::size_t>(2 * length), 0.0);
    double *re = response_.data(), *im = re + length;
    for (std::int64_t i = 0; i < n_; ++i) {
      const std::int64_t back = i == 0 ? 0 : length - i;
      re[i] = re[back] = chirp_[static_cast<std::size_t>(i)] / static_cast<double>(length);
      im[i] = im[back] = chirp_[static_cast<std::size_t>(n_ + i)] / static_cast<double>(length);
    }
    std::vector<double> work(static_cast<std::size_t>(inner_->scratch(1)));
    inner_->run({re, im}, 1, work.data(), poll);
    if (poll.stopped()) throw WorkStopped();
  }

  void convolve(Parts x, std::int64_t lanes, double* scratch, StopPoll& poll) const noexcept {
    const std::int64_t length = inner_->n_;
    const Parts y{scratch, scratch + length * lanes};
    scratch += 2 * length * lanes;
    std::fill(y.re + n_ * lanes, y.re + length * lanes, 0.0);
    std::fill(y.im + n_ * lanes, y.im + length * lanes, 0.0);
    const double *cr = chirp_.data(), *ci = cr + n_, *hr = response_.data(), *hi = hr + length;
    run_in_blocks(n_, 4 * lanes, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        for (std::int64_t q = i * lanes; q < (i + 1) * lanes; ++q) {
          y.re[q] = x.re[q] * cr[i] + x.im[q] * ci[i];
          y.im[q] = x.im[q] * cr[i] - x.re[q] * ci[i];
        }
    });
    inner_->run(y, lanes, scratch, poll);
    run_in_blocks(length, 4 * lanes, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        for (std::int64_t q = i * lanes; q < (i + 1) * lanes; ++q) {
          const double re = y.re[q] * hr[i] - y.im[q] * hi[i], im = y.re[q] * hi[i] + y.im[q] * hr[i];
          y.re[q] = re;
          y.im[q] = im;
        }
    });
    inner_->run({y.im, y.re}, lanes, scratch, poll);  // inverse transform
    run_in_blocks(n_, 4 * lanes, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        for (std::int64_t q = i * lanes; q < (i + 1) * lanes; ++q) {
          x.re[q] = y.re[q] * cr[i] + y.im[q] * ci[i];
          x.im[q] = y.im[q] * cr[i] - y.re[q] * ci[i];
        }
    });
  }

  std::int64_t n_;
  std::vector<std::int64_t> radices_;
  std::vector<double> roots_;     // (n, 2)
  std::unique_ptr<Plan> inner_;   // of the convolution, if there is one
  std::vector<double> chirp_;     // (2, n)
  std::vector<double> response_;  // the chirp's transform, over the inner length; (2, length)
};

class FourierStep final : public Step {
 public:
  explicit FourierStep(const StepRequest& request)
      : batch_(request.result.shape[0]),
        n_(request.result.shape[1]),
        real_(request.inputs[0].shape[2] == 1),
        inverse_(request.attributes.get_int("inverse", 0) != 0),
        plan_(n_) {
    // Two real rows are transformed as one complex row.
    const std::int64_t rows = real_ ? (batch_ + 1) / 2 : batch_;
    constexpr std::int64_t kCached = 1 << 13, kMostLanes = 8;
    lanes_ = std::clamp(kCached / std::max<std::int64_t>(n_, 1), std::int64_t{1},
                        std::min(kMostLanes, std::max<std::int64_t>(rows, 1)));
    scratch_bytes_ = static_cast<std::size_t>(2 * n_ * lanes_ + plan_.scratch(lanes_)) * sizeof(double);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto* from = reinterpret_cast<const double*>(inputs[0]);
    auto* to = reinterpret_cast<double*>(output);
    auto* work = reinterpret_cast<double*>(scratch);
    const std::int64_t each = real_ ? 2 : 1;
    StopPoll poll;
    for (std::int64_t row = 0; row < batch_ && !poll.stopped(); row += each * lanes_) {
      const std::int64_t lanes = std::min(lanes_, (batch_ - row + each - 1) / each);
      const Parts x{work, work + n_ * lanes};
      real_ ? load_pairs(from, row, x, lanes, poll) : load(from, row, x, lanes, poll);
      plan_.run(inverse_ ? Parts{x.im, x.re} : x, lanes, work + 2 * n_ * lanes, poll);
      real_ ? store_pairs(x, row, to, lanes, poll) : store(x, row, to, lanes, poll);
    }
  }

 private:
  static constexpr std::int64_t kMoved = 4;  // elements whose time moving a number of two parts takes

  void load(const double* from, std::int64_t row, Parts x, std::int64_t lanes, StopPoll& poll) const noexcept {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const double* line = from + (row + lane) * n_ * 2;
      run_in_blocks(n_, kMoved, poll, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          x.re[i * lanes + lane] = line[2 * i];
          x.im[i * lanes + lane] = line[2 * i + 1];
        }
      });
    }
  }
  void store(Parts x, std::int64_t row, double* to, std::int64_t lanes, StopPoll& poll) const noexcept {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      double* line = to + (row + lane) * n_ * 2;
      run_in_blocks(n_, kMoved, poll, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          line[2 * i] = x.re[i * lanes + lane];
          line[2 * i + 1] = x.im[i * lanes + lane];
        }
      });
    }
  }
  void load_pairs(const double* from, std::int64_t row, Parts x, std::int64_t lanes, StopPoll& poll) const noexcept {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const double* line = from + (row + 2 * lane) * n_;
      const bool two = row + 2 * lane + 1 < batch_;
      run_in_blocks(n_, kMoved, poll, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          x.re[i * lanes + lane] = line[i];
          x.im[i * lanes + lane] = two ? line[n_ + i] : 0;
        }
      });
    }
  }
  // The transform of a real row is conjugate symmetric, which separates the two rows.
  void store_pairs(Parts x, std::int64_t row, double* to, std::int64_t lanes, StopPoll& poll) const noexcept {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      double* line = to + (row + 2 * lane) * n_ * 2;
      const bool two = row + 2 * lane + 1 < batch_;
      run_in_blocks(n_, 2 * kMoved, poll, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t at = i * lanes + lane, mirror = (i == 0 ? 0 : n_ - i) * lanes + lane;
          line[2 * i] = (x.re[at] + x.re[mirror]) / 2;
          line[2 * i + 1] = (x.im[at] - x.im[mirror]) / 2;
          if (!two) continue;
          line[2 * (n_ + i)] = (x.im[at] + x.im[mirror]) / 2;
          line[2 * (n_ + i) + 1] = (x.re[mirror] - x.re[at]) / 2;
        }
      });
    }
  }

  std::int64_t batch_, n_, lanes_;
  bool real_, inverse_;
  Plan plan_;
};

}  // namespace

// Input (batch, n, 1 or 2), float64: real numbers, or real and imaginary parts. Output (batch, n, 2). Attribute inverse: the
// opposite sign of the exponent.
TensorType infer_fourier_transform(std::span<const Operand> operands, const Attributes&) {
  const Dims& shape = operands[0].shape;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (operands[0].dtype != DType::f64 || shape.size() != 3 || shape[2] < 1 || shape[2] > 2 || shape[1] < 1 || shape[1] > kMost)
    throw Error(ErrorKind::shape, "FourierTransform of " + std::string(dtype_name(operands[0].dtype)) + " of shape " +
                                      to_string(shape) + "; it takes float64 (batch, 1 to 2^30, 1 or 2)");
  return {DType::f64, {shape[0], shape[1], 2}};
}

std::unique_ptr<Step> make_fourier_transform(const StepRequest& request) { return std::make_unique<FourierStep>(request); }

}  // namespace walle
