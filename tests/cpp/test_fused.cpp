// Tests of the fused kernels of every instruction set, compared with float64, for every tail length, in guarded buffers.
// tests/engine_ext/test_fused.py compares them with the decompositions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "guarded.h"
#include "kernels/table.h"

using namespace walle;
using check::Guarded;

namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

void fill(std::mt19937_64& random, const Guarded& to, std::int64_t count, float spread, float mean = 0) {
  std::normal_distribution<float> normal(mean, spread);
  for (std::int64_t i = 0; i < count; ++i) to.data()[i] = normal(random);
}

double exact(MapOp op, double x, double a, double b) {
  const auto inside = [](double y) { return std::clamp(y, 0.0, 1.0); };
  switch (op) {
    case MapOp::Elu: return x < 0 ? a * std::expm1(x) : x;
    case MapOp::GeluErf: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case MapOp::GeluTanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MapOp::HardSigmoid: return inside(a * x + b);
    case MapOp::HardSwish: return x * inside(x / 6 + 0.5);
    case MapOp::LeakyRelu: return x < 0 ? a * x : x;
    case MapOp::Mish: return x * std::tanh(std::log1p(std::exp(x)));
    case MapOp::Swish: return x / (1 + std::exp(-a * x));
    case MapOp::kCount: break;
  }
  return 0;
}

void maps(const Table& table) {
  std::mt19937_64 random(1);
  for (std::size_t op = 0; op < kCountOf<MapOp>; ++op)
    for (std::int64_t count = 0; count < 70; ++count) {
      const Guarded in(size(count)), out(size(count));
      fill(random, in, count, 3);
      table.map[op](in.data(), out.data(), count, 0.75F, 0.25F);
      for (std::int64_t i = 0; i < count; ++i) {
        const double wanted = exact(static_cast<MapOp>(op), in.data()[i], 0.75, 0.25);
        CHECK(std::fabs(out.data()[i] - wanted) <= 1e-6 * (std::fabs(in.data()[i]) + 1));
      }
      const Guarded slope(size(count));
      fill(random, slope, count, 1);
      for (const std::int64_t period : {std::int64_t{1}, std::int64_t{table.pack}, 2 * std::int64_t{table.pack}, count}) {
        if (period > count || (period == count && count == 0)) continue;
        const Guarded slopes(size(period));
        std::copy_n(slope.data(), period, slopes.data());
        table.prelu(in.data(), slopes.data(), period, out.data(), count);
        for (std::int64_t i = 0; i < count; ++i) {
          const float x = in.data()[i];
          CHECK(out.data()[i] == (x < 0 ? x * slopes.data()[i % period] : x));
        }
      }
    }
}

void softmaxes(const Table& table) {
  std::mt19937_64 random(2);
  for (int round = 0; round < check::rounds(600); ++round) {
    RowsArgs args;
    args.rows = check::whole(random, 0, 3);
    args.count = round % 20 == 0 ? 5000 : check::whole(random, 1, 70);
    args.columns = check::whole(random, 0, 1) == 0 ? 1 : check::whole(random, 1, 40);
    const std::int64_t whole = args.rows * args.count * args.columns;
    const Guarded in(size(whole)), out(size(whole));
    fill(random, in, whole, 8);
    args.in = in.data();
    args.out = out.data();
    for (const bool log : {false, true}) {
      (log ? table.log_softmax : table.softmax)(args);
      for (std::int64_t row = 0; row < args.rows; ++row)
        for (std::int64_t c = 0; c < args.columns; ++c) {
          const auto place = [&](std::int64_t i) { return (row * args.count + i) * args.columns + c; };
          double most = -std::numeric_limits<double>::infinity(), total = 0;
          for (std::int64_t i = 0; i < args.count; ++i) most = std::max(most, static_cast<double>(in.data()[place(i)]));
          for (std::int64_t i = 0; i < args.count; ++i) total += std::exp(in.data()[place(i)] - most);
          for (std::int64_t i = 0; i < args.count; ++i) {
            const double apart = in.data()[place(i)] - most, wanted = log ? apart - std::log(total) : std::exp(apart) / total;
            const double bound = (1e-6 + 1e-9 * static_cast<double>(args.count)) * std::max(1.0, std::fabs(wanted));
            CHECK(std::fabs(out.data()[place(i)] - wanted) <= bound);  // column sums are in float32
          }
        }
    }
    if (check::failures > 5) return;
  }
}

void normalisations(const Table& table) {
  std::mt19937_64 random(3);
  for (int round = 0; round < check::rounds(600); ++round) {
    RowsArgs args;
    args.rows = check::whole(random, 0, 4);
    args.count = round % 20 == 0 ? 5000 : check::whole(random, 1, 70);
    args.epsilon = 1e-3F;
    const Guarded in(size(args.rows * args.count)), out(size(args.rows * args.count)), scale(size(args.count)),
        shift(size(args.count));
    fill(random, in, args.rows * args.count, 2, 3);
    fill(random, scale, args.count, 1);
    fill(random, shift, args.count, 1);
    args.in = in.data();
    args.out = out.data();
    args.scale = scale.data();
    args.shift = check::whole(random, 0, 1) ? shift.data() : nullptr;
    for (const bool centred : {false, true}) {
      (centred ? table.layer_norm : table.rms_norm)(args);
      for (std::int64_t row = 0; row < args.rows; ++row) {
        const float* x = in.data() + row * args.count;
        const auto count = static_cast<double>(args.count);
        double mean = 0, squares = 0;
        for (std::int64_t i = 0; centred && i < args.count; ++i) mean += x[i] / count;
        for (std::int64_t i = 0; i < args.count; ++i) squares += (x[i] - mean) * (x[i] - mean);
        const double factor = 1 / std::sqrt(squares / count + static_cast<double>(args.epsilon));
        for (std::int64_t i = 0; i < args.count; ++i) {
          const double normal = (x[i] - mean) * factor, add = args.shift == nullptr ? 0 : args.shift[i];
          // The rounding of the mean to float32 is multiplied by the factor.
          const double bound =
              1e-6 * (std::fabs(args.scale[i]) * (std::fabs(normal) + std::fabs(mean) * factor) + std::fabs(add));
          CHECK(std::fabs(out.data()[row * args.count + i] - (normal * args.scale[i] + add)) <= bound + 1e-7);
        }
      }
    }
    if (check::failures > 5) return;
  }
}

void sums(const Table& table) {
  std::mt19937_64 random(4);
  for (int round = 0; round < check::rounds(400); ++round) {
    const std::int64_t rows = round % 20 == 0 ? kMostSummedRows : check::whole(random, 0, 20),
                       columns = check::whole(random, 0, 40);
    const std::int64_t step = columns + check::whole(random, 0, 3);
    const std::int64_t whole = rows == 0 || columns == 0 ? 0 : (rows - 1) * step + columns;
    const Guarded in(size(whole)), out(size(columns));
    fill(random, in, whole, 1);
    table.sum_rows(in.data(), step, rows, out.data(), columns);
    for (std::int64_t c = 0; c < columns; ++c) {
      double total = 0, terms = 0;
      for (std::int64_t row = 0; row < rows; ++row) {
        total += in.data()[row * step + c];
        terms += std::fabs(in.data()[row * step + c]);
      }
      CHECK(std::fabs(out.data()[c] - total) <= 2e-6 * terms);
    }
  }
}

}  // namespace

int main() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    const Table& table = kernels(set.name);
    if (table.softmax == nullptr) continue;  // only decompositions
    maps(table);
    softmaxes(table);
    normalisations(table);
    sums(table);
    std::printf("%s: %d failures\n", std::string(set.name).c_str(), check::failures);
  }
  return check::failures != 0;
}
