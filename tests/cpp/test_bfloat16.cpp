// Tests of the bfloat16 pair kernels of every instruction set that has them: rounding equal bit for bit to the plain kernels,
// sums within a stated bound of float64, in guarded buffers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "core/bfloat16.h"
#include "guarded.h"
#include "kernels/scalar/bfloat16.h"

using namespace walle;
using check::Guarded;

namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
float some(std::mt19937_64& random) { return std::normal_distribution<float>()(random); }
bool same(const Guarded& a, const Guarded& b, std::size_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}
double low_of(float pair) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(pair) << 16); }
double high_of(float pair) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(pair) & 0xffff0000); }

void rounding() {
  const float step = 1.0f / 128;  // distance of bfloat16 numbers from 1 to 2
  CHECK(to_bfloat16(1.0f) == 0x3f80);
  CHECK(to_bfloat16(1.0f + step / 2) == 0x3f80);  // ties to even
  CHECK(to_bfloat16(1.0f + 3 * step / 2) == 0x3f82);
  CHECK(to_bfloat16(1.0f + step / 2 + 1e-6f) == 0x3f81);
  CHECK(to_bfloat16(-1.0f - step) == 0xbf81);
  CHECK(to_bfloat16(INFINITY) == 0x7f80);
  CHECK(to_bfloat16(3.4e38f) == 0x7f80);
  CHECK((to_bfloat16(NAN) & 0x7fff) > 0x7f80);
}

void conversions(const Bfloat16& bf16) {
  std::mt19937_64 random(10);
  for (int round = 0; round < check::rounds(300); ++round) {
    const std::int64_t rows = check::whole(random, 0, 5), columns = check::whole(random, 1, 70);
    const std::int64_t in_step = columns + check::whole(random, 0, 1) * check::whole(random, 0, 5), pairs = (columns + 1) / 2;
    const std::int64_t out_step = pairs + check::whole(random, 0, 1) * check::whole(random, 0, 5);
    const std::size_t in_count = rows == 0 ? 0 : size((rows - 1) * in_step + columns),
                      out_count = rows == 0 ? 0 : size((rows - 1) * out_step + pairs);
    Guarded in(in_count), out(out_count), wanted(out_count);
    for (std::size_t i = 0; i < in_count; ++i) in.data()[i] = some(random);
    if (in_count > 0 && round % 3 == 0) in.data()[in_count / 2] = round % 2 == 0 ? INFINITY : -0.0f;
    for (std::size_t i = 0; i < out_count; ++i) out.data()[i] = wanted.data()[i] = 7;
    bf16.narrow(in.data(), in_step, rows, columns, out.data(), out_step);
    scalar::narrow(in.data(), in_step, rows, columns, wanted.data(), out_step);
    CHECK(same(out, wanted, out_count));

    const std::int64_t apart = check::whole(random, 1, 4);
    const std::size_t reach = size((columns - 1) * apart + 1);
    Guarded low(size(columns)), high(size(columns)), found(reach), meant(reach);
    for (std::size_t i = 0; i < size(columns); ++i) {
      low.data()[i] = some(random);
      high.data()[i] = some(random);
    }
    for (std::size_t i = 0; i < reach; ++i) found.data()[i] = meant.data()[i] = 7;
    const float* second = check::whole(random, 0, 2) == 0 ? nullptr : high.data();
    bf16.pair(low.data(), second, columns, found.data(), apart);
    scalar::pair(low.data(), second, columns, meant.data(), apart);
    CHECK(same(found, meant, reach));
    if (check::failures > 5) return;
  }
}

void panels(const Bfloat16& bf16, std::int64_t pack) {
  std::mt19937_64 random(11);
  for (int round = 0; round < check::rounds(200); ++round) {
    PanelArgs args;
    args.rows = check::whole(random, 1, 31);
    args.blocks = check::whole(random, 1, 2);
    args.width = check::whole(random, 0, 1) == 0 ? pack : check::whole(random, 1, pack);
    args.a_step = check::whole(random, 0, 1) == 0 ? pack : check::whole(random, 1, 20);
    std::vector<Segment> segments(size(check::whole(random, 1, 3)));
    std::int64_t k = 0, reach = 0;
    for (Segment& segment : segments) {
      segment = {check::whole(random, 0, 40), check::whole(random, 1, 17)};
      k += segment.length;
      reach = std::max(reach, segment.offset + segment.length);
    }
    args.segments = segments.data();
    args.segment_count = static_cast<std::int64_t>(segments.size());
    args.out_step = pack;
    args.out_block = args.rows * pack;
    const std::int64_t columns = (args.blocks - 1) * pack + args.width;
    const std::size_t in_count = size((args.rows - 1) * args.a_step + reach), weights = size(k * args.blocks * pack),
                      out_count = size((args.rows - 1) * pack + (args.blocks - 1) * args.out_block + args.width);
    Guarded a(in_count), w(weights), out(out_count), plain(out_count), residual(out_count), bias(size(columns));
    const auto pairs = [&](const Guarded& to, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i)
        to.data()[i] = std::bit_cast<float>(to_bfloat16(some(random)) | std::uint32_t{to_bfloat16(some(random))} << 16);
    };
    pairs(a, in_count);
    pairs(w, weights);
    for (std::size_t i = 0; i < size(columns); ++i) bias.data()[i] = some(random);
    for (std::size_t i = 0; i < out_count; ++i) {
      residual.data()[i] = some(random);
      out.data()[i] = plain.data()[i] = some(random);
    }
    args.a = a.data();
    args.w = w.data();
    args.accumulate = check::whole(random, 0, 2) == 0;
    if (check::whole(random, 0, 1) == 0) args.finish.bias = bias.data();
    if (check::whole(random, 0, 1) == 0) args.finish.residual = residual.data();
    if (check::whole(random, 0, 1) == 0) args.finish.low = 0.0f;
    std::vector<float> before(out.data(), out.data() + out_count);
    args.out = out.data();
    bf16.panel(args);
    args.out = plain.data();
    scalar::panel_pairs(args, pack);
    for (std::int64_t row = 0; row < args.rows; ++row)
      for (std::int64_t j = 0; j < columns; ++j) {
        const std::size_t at = size(row * args.out_step + j / pack * args.out_block + j % pack);
        double total = 0, terms = 0;
        const auto add = [&](double term) {
          total += term;
          terms += std::fabs(term);
        };
        if (args.accumulate) {
          add(before[at]);
        } else {
          if (args.finish.bias != nullptr) add(bias.data()[j]);
          if (args.finish.residual != nullptr) add(residual.data()[at]);
        }
        const float* weight = w.data() + j;
        for (const Segment& segment : segments)
          for (std::int64_t i = 0; i < segment.length; ++i, weight += args.blocks * pack) {
            const float from = a.data()[row * args.a_step + segment.offset + i];
            add(low_of(from) * low_of(*weight));
            add(high_of(from) * high_of(*weight));
          }
        const double wanted = std::max<double>(total, args.finish.low);
        const double bound = 1.2e-7 * static_cast<double>(2 * k + 3) * terms;
        CHECK(std::fabs(out.data()[at] - wanted) <= bound);
        CHECK(std::fabs(plain.data()[at] - wanted) <= bound);
      }
    if (check::failures > 5) return;
  }
}

// Operands in either order, with gaps between their elements, or in parts. Products of few rows are those of float32.
void products(const Gemm& gemm) {
  std::mt19937_64 random(12);
  const std::int64_t sizes[] = {0, 1, 2, 3, 5, 7, 13, 16, 17, 31, 33, 64, 97};
  const auto any = [&] { return sizes[check::whole(random, 0, 12)]; };
  for (int round = 0; round < check::rounds(600); ++round) {
    GemmArgs args;
    do args.m = round % 40 == 0 ? 171 : any();
    while (args.m > 0 && args.m <= 4);
    args.n = round % 40 == 1 ? 527 : any();
    args.k = round % 40 == 2 ? 2051 : any();
    const std::int64_t gap = check::whole(random, 0, 4) == 0 ? 2 : 1;
    const auto steps = [&](std::int64_t rows, std::int64_t columns, std::int64_t& row, std::int64_t& column) {
      const bool turned = check::whole(random, 0, 2) == 0;
      row = turned ? gap : columns * gap;
      column = turned ? rows * gap : gap;
    };
    steps(args.m, args.k, args.a_row, args.a_col);
    steps(args.k, args.n, args.b_row, args.b_col);
    args.out_row = args.n + check::whole(random, 0, 2);
    args.accumulate = gemm.accumulates && check::whole(random, 0, 2) == 0;
    const auto count = [](std::int64_t rows, std::int64_t row, std::int64_t columns, std::int64_t column) {
      return rows == 0 || columns == 0 ? 0 : size((rows - 1) * row + (columns - 1) * column + 1);
    };
    const std::size_t a_count = count(args.m, args.a_row, args.k, args.a_col),
                      b_count = count(args.k, args.b_row, args.n, args.b_col), out_count = count(args.m, args.out_row, args.n, 1);
    Guarded a(a_count), b(b_count), out(out_count);
    for (std::size_t i = 0; i < a_count; ++i) a.data()[i] = some(random);
    for (std::size_t i = 0; i < b_count; ++i) b.data()[i] = some(random);
    for (std::size_t i = 0; i < out_count; ++i) out.data()[i] = args.accumulate ? some(random) : NAN;
    const std::vector<float> before(out.data(), out.data() + out_count);
    args.a = a.data();
    args.b = b.data();
    args.out = out.data();
    Guarded bias(size(args.n));
    for (std::int64_t n = 0; n < args.n; ++n) bias.data()[n] = some(random);
    const bool has_bias = !args.accumulate && round % 3 == 0;
    if (has_bias) args.finish.bias = bias.data();
    if (round % 5 == 0) args.finish.low = -0.5f, args.finish.high = 1.5f;
    const GemmArgs whole = args;
    std::vector<GemmPart> parts;
    args.parts_of_b = round % 2 == 0;
    if (args.k > 0 && (args.parts_of_b ? args.b_col : args.a_col) == 1) {
      const std::int64_t columns = args.parts_of_b ? args.n : args.k;
      const float* at = args.parts_of_b ? b.data() : a.data();
      for (std::int64_t left = columns; left > 0; left -= parts.back().columns, at += parts.back().columns)
        parts.push_back({at, args.parts_of_b ? args.b_row : args.a_row, check::whole(random, 1, left)});
      (args.parts_of_b ? args.b : args.a) = nullptr;
      args.parts = parts.data();
      args.part_count = static_cast<std::int64_t>(parts.size());
    }
    args.parts_of_b = args.parts_of_b && !parts.empty();
    Guarded scratch((gemm.scratch_bytes(args.m, args.n, args.k) + 63) / 64 * 16);
    args.scratch = scratch.data();
    gemm.run(args);
    const auto rounded = [](float x) { return low_of(std::bit_cast<float>(std::uint32_t{to_bfloat16(x)})); };
    for (std::int64_t m = 0; m < args.m; ++m)
      for (std::int64_t n = 0; n < args.n; ++n) {
        const std::size_t at = size(m * args.out_row + n);
        double exact = args.accumulate ? before[at] : has_bias ? bias.data()[n] : 0, terms = std::fabs(exact);
        for (std::int64_t k = 0; k < args.k; ++k) {
          const double term =
              rounded(a.data()[m * whole.a_row + k * whole.a_col]) * rounded(b.data()[k * whole.b_row + n * whole.b_col]);
          exact += term;
          terms += std::fabs(term);
        }
        const double wanted = std::clamp<double>(exact, args.finish.low, args.finish.high);
        CHECK(std::fabs(out.data()[at] - wanted) <= 1.2e-7 * static_cast<double>(args.k + 3) * terms);
      }
    if (check::failures > 5) return;
  }
}

// One pair, in a tile whose sums are in one part: the instruction adds the product of the second numbers, then that of the first,
// each sum rounded once; subnormal operands and sums count as 0.
void instruction(const Bfloat16& bf16, std::int64_t pack) {
  const auto flushed = [](float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; };
  const auto paired = [](float low, float high) {
    return std::bit_cast<float>(to_bfloat16(low) | std::uint32_t{to_bfloat16(high)} << 16);
  };
  const float numbers[] = {0.0f,   -0.0f,  1.0f,    -3.0f,    1.0078125f, 3.0e38f, -3.0e38f,
                           1e-38f, 1e-39f, -1e-40f, 1.5e-19f, -1e-20f,    INFINITY};
  constexpr std::int64_t kRows = 8;
  const Segment segment{0, 1};
  std::vector<float> a(kRows), w(size(pack)), out(size(kRows * pack));
  for (const float first : numbers)
    for (const float second : numbers)
      for (const float low : numbers)
        for (const float high : numbers)
          for (const float before : numbers) {
            std::fill(a.begin(), a.end(), paired(first, second));
            std::fill(w.begin(), w.end(), paired(low, high));
            std::fill(out.begin(), out.end(), before);
            PanelArgs args;
            args.rows = kRows;
            args.a = a.data();
            args.a_step = 1;
            args.segments = &segment;
            args.segment_count = args.blocks = 1;
            args.w = w.data();
            args.width = args.out_step = pack;
            args.out = out.data();
            args.accumulate = true;
            bf16.panel(args);
            const auto add = [&](float x, float y, float sum) { return flushed(std::fma(flushed(x), flushed(y), sum)); };
            const auto real = [](double x) { return static_cast<float>(x); };
            const float half = add(real(high_of(a[0])), real(high_of(w[0])), flushed(before));
            const float wanted = add(real(low_of(a[0])), real(low_of(w[0])), half);
            for (const float found : out)
              CHECK(std::isnan(wanted) ? std::isnan(found)
                                       : std::bit_cast<std::uint32_t>(wanted) == std::bit_cast<std::uint32_t>(found));
            if (check::failures > 5) return;
          }
}

}  // namespace

int main() {
  rounding();
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available || bfloat16(kernels(set.name)) == nullptr) continue;
    conversions(*bfloat16(kernels(set.name)));
    panels(*bfloat16(kernels(set.name)), kernels(set.name).pack);
    instruction(*bfloat16(kernels(set.name)), kernels(set.name).pack);
    products(kernels(set.name).gemm[static_cast<std::size_t>(Compute::f32)]);
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0;
}
