// Tests of the float32 kernels of every instruction set of this CPU, compared with scalar: odd tails, zero sizes, strides,
// unaligned addresses, and guarded buffers (the sanitizer or the unmapped page detects an access out of bounds).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "guarded.h"
#include "kernels/channels.h"
#include "kernels/table.h"

using namespace walle;
using check::Guarded;

namespace {

void fill(std::mt19937_64& random, float* data, std::size_t count, float scale) {
  std::normal_distribution<float> normal(0.0f, scale);
  for (std::size_t i = 0; i < count; ++i) data[i] = normal(random);
  const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, -1e-42f, 88.8f, -88.8f, -104.0f, 3e38f};
  for (const float value : special)
    if (count > 0 && check::whole(random, 0, 2) == 0)
      data[static_cast<std::size_t>(check::whole(random, 0, static_cast<std::int64_t>(count) - 1))] = value;
}

bool close(float a, float b, float relative, float absolute) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::fabs(a - b) <= absolute + relative * std::fabs(b);
}

constexpr std::size_t kLengths[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 100, 1023, 1025};
constexpr float kUlp = 1.2e-7f;

void elementwise(const Table& fast, const Table& plain) {
  std::mt19937_64 random(4);
  for (const std::size_t count : kLengths) {
    Guarded a(count), b(count), out(count), expected(count);
    fill(random, a.data(), count, 4.0f);
    fill(random, b.data(), count, 4.0f);
    const auto n = static_cast<std::int64_t>(count);
    const auto same = [&](const char* kind, std::size_t op, float absolute = 3e-38f) {
      for (std::size_t i = 0; i < count; ++i)
        check::report(close(out.data()[i], expected.data()[i], 5 * kUlp, absolute), __FILE__, __LINE__,
                      std::string(kind) + " " + std::to_string(op) + " of " + std::to_string(a.data()[i]) + ", " +
                          std::to_string(b.data()[i]) + ": " + std::to_string(out.data()[i]) + ", scalar " +
                          std::to_string(expected.data()[i]));
    };
    for (std::size_t op = 0; op < kCountOf<UnaryOp>; ++op) {
      if (plain.unary[op][0] == nullptr) continue;
      fast.unary[op][0](a.data(), 1, out.data(), n);
      plain.unary[op][0](a.data(), 1, expected.data(), n);
      same("unary", op);
      fast.unary[op][0](a.data(), 2, out.data(), n / 2);
      plain.unary[op][0](a.data(), 2, expected.data(), n / 2);
      same("strided unary", op);
    }
    for (std::size_t op = 0; op < kCountOf<BinaryOp>; ++op) {
      if (plain.binary[op][0] == nullptr) continue;
      // The logarithm of a sum near 1 is the small difference of two numbers, and both backends round each of them.
      const float absolute = op == static_cast<std::size_t>(BinaryOp::LogAddExp) ? 8 * kUlp : 3e-38f;
      for (const auto& [sa, sb] : {std::pair{1, 1}, {0, 1}, {1, 0}, {0, 0}}) {
        if (count == 0 && (sa == 0 || sb == 0)) continue;
        fast.binary[op][0](a.data(), sa, b.data(), sb, out.data(), n);
        plain.binary[op][0](a.data(), sa, b.data(), sb, expected.data(), n);
        same("binary", op, absolute);
      }
      std::memcpy(out.data(), a.data(), count * sizeof(float));  // result over its operand
      fast.binary[op][0](out.data(), 1, b.data(), 1, out.data(), n);
      plain.binary[op][0](a.data(), 1, b.data(), 1, expected.data(), n);
      same("in-place binary", op, absolute);
    }
    for (std::size_t op = 0; op < kCountOf<ReduceOp> && count > 0; ++op) {
      float got, wanted;
      std::vector<float> tame(count);
      for (std::size_t i = 0; i < count; ++i)
        tame[i] = std::isfinite(a.data()[i]) && std::fabs(a.data()[i]) < 100 ? a.data()[i] : 1.5f;
      std::memcpy(b.data(), tame.data(), count * sizeof(float));
      fast.reduce[op][0](b.data(), 1, n, &got);
      plain.reduce[op][0](b.data(), 1, n, &wanted);
      float scale = 0;
      for (const float value : tame) scale += std::fabs(value);
      check::report(
          close(got, wanted, 4 * kUlp, 40 * kUlp * scale / static_cast<float>(count) * std::sqrt(static_cast<float>(count))),
          __FILE__, __LINE__, "reduce " + std::to_string(op));
    }
  }
}

void accumulation(const Table& fast, const Table& plain) {
  std::mt19937_64 random(6);
  for (const std::size_t count : kLengths) {
    for (const std::int64_t stride : {1, 2, 3}) {
      const std::size_t read = count == 0 ? 0 : (count - 1) * static_cast<std::size_t>(stride) + 1;
      Guarded in(read), out(count), expected(count);
      fill(random, in.data(), read, 4.0f);
      fill(random, out.data(), count, 4.0f);
      std::memcpy(expected.data(), out.data(), count * sizeof(float));
      const float factor = -0.7f;  // an unfused product that overflows is infinite, a fused one is not
      std::vector<float> size(count);
      for (std::size_t i = 0; i < count; ++i) size[i] = std::fabs(factor * in.data()[static_cast<std::int64_t>(i) * stride]);
      fast.axpy[0](&factor, in.data(), stride, out.data(), static_cast<std::int64_t>(count));
      plain.axpy[0](&factor, in.data(), stride, expected.data(), static_cast<std::int64_t>(count));
      for (std::size_t i = 0; i < count; ++i) CHECK(close(out.data()[i], expected.data()[i], kUlp, kUlp * size[i] + 3e-45f));
    }
  }
}

// Gates of 2 x - 3, which has no rounding where x is a multiple of 1/8: values on the bounds are among them, and NaN and
// infinity.
void gated_channels(const ChannelKernels& kernels, const Guarded& x, const Guarded& g, const Guarded& out, std::size_t count) {
  const auto n = static_cast<std::int64_t>(count);
  std::vector<float> eighths(count);
  for (std::size_t i = 0; i < count; ++i) eighths[i] = std::round(8 * x.data()[i]) / 8;
  for (const bool has_high : {true, false}) {
    const ChannelGate gate{2, -3, 2, 4, has_high};
    const auto passes = [&](float at) { return 2 * at - 3 > 2 && (!has_high || 2 * at - 3 < 4); };
    double sum = 0, product = 0, size = 0, found[2];
    for (std::size_t i = 0; i < count; ++i) {
      const double passed = passes(eighths[i]) ? double{g.data()[i]} : 0, term = passed * (double{eighths[i]} - 2.5);
      sum += passed;
      product += term;
      size += std::fabs(passed) + std::fabs(term);
    }
    kernels.sums(g.data(), eighths.data(), 2.5, &gate, {1, n, 0}, found);
    CHECK(std::fabs(found[0] - sum) <= 1e-6 * size && std::fabs(found[1] - product) <= 1e-6 * size);
    std::vector<float> special = eighths;
    special[0] = NAN;
    special[count / 2] = INFINITY;
    AffineArgs args{special.data(), g.data(), 0, 0, 1, out.data(), n, &gate};
    args.x = special.data();
    kernels.affine(args);
    for (std::size_t i = 0; i < count; ++i)
      if (std::isfinite(special[i])) CHECK(out.data()[i] == (passes(special[i]) ? g.data()[i] : 0));
  }
}

// Elements to the bit, with NaN and both zeros where the slope begins, and sums against float64. The lines of g, x and out end
// at unmapped pages.
void prelu_gradients(const ChannelKernels& kernels, std::size_t count) {
  std::mt19937_64 random(41);
  std::normal_distribution<float> normal;
  const auto n = static_cast<std::int64_t>(count);
  Guarded g(count), x(count), slopes(count), out(count), sums(count);
  double sum = 0, size = 1e-30;
  for (std::size_t i = 0; i < count; ++i) {
    g.data()[i] = normal(random), x.data()[i] = normal(random), slopes.data()[i] = normal(random), sums.data()[i] = 1;
    if (i % 7 == 3) x.data()[i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (x.data()[i] > 0) continue;
    sum += double{g.data()[i]} * double{x.data()[i]};
    size += std::fabs(double{g.data()[i]} * double{x.data()[i]});
  }
  CHECK(std::fabs(kernels.prelu_gradient(g.data(), x.data(), -0.3, out.data(), n) - sum) <= 1e-6 * size);
  x.data()[count / 2] = INFINITY, g.data()[count / 2] = -INFINITY;
  CHECK(std::isfinite(kernels.prelu_gradient(g.data(), x.data(), -0.3, out.data(), n)));
  x.data()[count - 1] = NAN;
  CHECK(std::isnan(kernels.prelu_gradient(g.data(), x.data(), -0.3, out.data(), n)));
  const auto is_out = [&](std::size_t i, float slope) {
    return out.data()[i] == (x.data()[i] > 0 ? g.data()[i] : g.data()[i] * slope);
  };
  for (std::size_t i = 0; i < count; ++i) CHECK(is_out(i, -0.3f));
  kernels.prelu_gradient_row(g.data(), x.data(), slopes.data(), out.data(), sums.data(), n);
  for (std::size_t i = 0; i < count; ++i) {
    CHECK(is_out(i, slopes.data()[i]));
    const float product = x.data()[i] > 0 ? 0 : g.data()[i] * x.data()[i];
    CHECK(std::isnan(product) ? std::isnan(sums.data()[i]) : close(sums.data()[i], 1 + product, kUlp, kUlp));
  }
}

// Against float64 of the same numbers; without special values, of which sums are not numbers.
void channels(const Table& fast) {
  std::mt19937_64 random(35);
  std::normal_distribution<float> normal(3.0f, 2.0f);
  const ChannelKernels& kernels = *fast.channels[0];
  for (const std::size_t count : kLengths) {
    if (count == 0) continue;
    const auto n = static_cast<std::int64_t>(count);
    Guarded x(count), g(count), out(count);
    for (std::size_t i = 0; i < count; ++i) x.data()[i] = normal(random), g.data()[i] = normal(random);
    double mean = 0, squares = 0, sum = 0, product = 0, size = 0, found[2];
    for (std::size_t i = 0; i < count; ++i) mean += double{x.data()[i]} / static_cast<double>(count);
    for (std::size_t i = 0; i < count; ++i) {
      squares += (double{x.data()[i]} - mean) * (double{x.data()[i]} - mean);
      sum += double{g.data()[i]};
      product += double{g.data()[i]} * (double{x.data()[i]} - 2.5);
      size += std::fabs(double{g.data()[i]} * (double{x.data()[i]} - 2.5));
    }
    const ChannelRows one{1, n, 0};
    kernels.moments(x.data(), one, found);
    CHECK(std::fabs(found[0] - mean) <= 1e-6 * std::fabs(mean) && std::fabs(found[1] - squares) <= 1e-6 * squares + 1e-9);
    kernels.sums(g.data(), x.data(), 2.5, nullptr, one, found);
    CHECK(std::fabs(found[0] - sum) <= 1e-6 * std::fabs(sum) && std::fabs(found[1] - product) <= 1e-6 * size);
    AffineArgs affine{x.data(), nullptr, 1.5, -0.25, 0, out.data(), n};
    for (const bool both : {false, true}) {
      if (both) affine.g = g.data(), affine.p = 0.75;
      kernels.affine(affine);
      for (std::size_t i = 0; i < count; ++i)
        CHECK(close(out.data()[i], 1.5f * x.data()[i] - 0.25f + (both ? 0.75f * g.data()[i] : 0), kUlp, 4 * 8 * kUlp));
    }
    affine.low = 3, affine.high = 5;
    kernels.affine(affine);
    for (std::size_t i = 0; i < count; ++i)
      CHECK(close(out.data()[i], std::clamp(1.5f * x.data()[i] - 0.25f + 0.75f * g.data()[i], 3.0f, 5.0f), kUlp, 4 * 8 * kUlp));
    gated_channels(kernels, x, g, out, count);
    prelu_gradients(kernels, count);
    GateArgs gate{g.data(), x.data(), 2, 4, true, true, false, out.data(), n};
    x.data()[0] = 2;
    x.data()[count / 2] = NAN;
    x.data()[count - 1] = INFINITY;
    for (int form = 0; form < 8; ++form) {
      gate.has_low = form % 2 == 0;
      gate.has_high = form / 2 % 2 == 0;
      gate.includes_bounds = form >= 4;
      kernels.gate(gate);
      for (std::size_t i = 0; i < count; ++i) {
        const float at = x.data()[i];
        const bool strict = (!gate.has_low || at > 2) && (!gate.has_high || at < 4);
        const bool wide = !(gate.has_low && at < 2) && !(gate.has_high && at > 4);
        CHECK(out.data()[i] == ((gate.includes_bounds ? wide : strict) ? g.data()[i] : 0));
      }
    }
  }
}

void products(const Table& fast) {
  std::mt19937_64 random(5);
  const std::int64_t sizes[] = {0, 1, 2, 3, 5, 6, 7, 13, 16, 17, 33, 97};
  for (int round = 0; round < check::rounds(600); ++round) {
    GemmArgs args;
    args.m = sizes[check::whole(random, 0, 11)];
    args.n = sizes[check::whole(random, 0, 11)];
    args.k = round % 50 == 0 ? 300 : sizes[check::whole(random, 0, 11)];
    const bool a_turned = check::whole(random, 0, 2) == 0, b_turned = check::whole(random, 0, 2) == 0;
    args.a_row = a_turned ? 1 : args.k;
    args.a_col = a_turned ? args.m : 1;
    args.b_row = b_turned ? 1 : args.n;
    args.b_col = b_turned ? args.k : 1;
    args.out_row = args.n;
    Guarded a(static_cast<std::size_t>(args.m * args.k)), b(static_cast<std::size_t>(args.k * args.n)),
        out(static_cast<std::size_t>(args.m * args.n));
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < args.m * args.k; ++i) a.data()[i] = normal(random);
    for (std::int64_t i = 0; i < args.k * args.n; ++i) b.data()[i] = normal(random);
    for (std::int64_t i = 0; i < args.m * args.n; ++i) out.data()[i] = NAN;
    args.a = a.data();
    args.b = b.data();
    args.out = out.data();
    const std::size_t bytes = fast.gemm[0].scratch_bytes(args.m, args.n, args.k);
    Guarded scratch((bytes + 63) / 64 * 16);
    args.scratch = scratch.data();
    fast.gemm[0].run(args);
    for (std::int64_t m = 0; m < args.m; ++m) {
      for (std::int64_t n = 0; n < args.n; ++n) {
        double exact = 0, size = 0;
        for (std::int64_t k = 0; k < args.k; ++k) {
          const double term =
              double{a.data()[m * args.a_row + k * args.a_col]} * double{b.data()[k * args.b_row + n * args.b_col]};
          exact += term;
          size += std::fabs(term);
        }
        const double bound = 2.0 * static_cast<double>(args.k) * 6e-8 * size;
        CHECK(std::fabs(out.data()[m * args.n + n] - exact) <= bound);
      }
    }
    if (check::failures > 5) return;
  }
}

}  // namespace

int main() {
  const Table& plain = kernels("scalar");
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    elementwise(kernels(set.name), plain);
    accumulation(kernels(set.name), plain);
    if (set.exact) products(kernels(set.name));
    channels(kernels(set.name));
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  CHECK_ERROR(kernels("sse9"), backend);
#if defined(__aarch64__)
  CHECK(kernels("neon").lanes == 4);
  CHECK_ERROR(kernels("avx2"), backend);
#else
  CHECK_ERROR(kernels("neon"), backend);
#endif
  return check::failures != 0;
}
