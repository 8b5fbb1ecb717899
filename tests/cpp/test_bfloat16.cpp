// Tests of the bfloat16 pair kernels of every instruction set that has them: rounding equal bit for bit to the plain kernels,
// sums within a stated bound of float64, in guarded buffers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
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

}  // namespace

int main() {
  rounding();
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available || bfloat16(kernels(set.name)) == nullptr) continue;
    conversions(*bfloat16(kernels(set.name)));
    panels(*bfloat16(kernels(set.name)), kernels(set.name).pack);
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0;
}
