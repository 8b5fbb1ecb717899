// Tests of the kernels of packed layouts (PanelArgs, LaneArgs, depthwise.h) of every instruction set, compared with sums in
// float64, for every block width: every row count, partial last blocks, steps and segments, in guarded buffers.
#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"
#include "guarded.h"
#include "kernels/depthwise.h"
#include "kernels/table.h"

using namespace walle;
using check::Guarded;

namespace {

void fill(std::mt19937_64& random, const Guarded& to, std::size_t count) {
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < count; ++i) to.data()[i] = normal(random);
}
std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// A sum in float64, the sum of its absolute terms, and the result of Finish on it.
struct Exact {
  double total = 0, terms = 0;
  void add(double term) {
    total += term;
    terms += std::fabs(term);
  }
  double finished(const Finish& finish) const {
    return std::clamp(total, static_cast<double>(finish.low), static_cast<double>(finish.high));
  }
  bool near(float found, const Finish& finish, std::int64_t count) const {
    return std::fabs(found - finished(finish)) <= 1.2e-7 * static_cast<double>(count + 3) * terms;
  }
};

void panels(const Table& table) {
  std::mt19937_64 random(8);
  const std::int64_t pack = table.pack;
  for (int round = 0; round < check::rounds(400); ++round) {
    PanelArgs args;
    args.rows = check::whole(random, 0, 31);
    args.blocks = check::whole(random, 1, 2);
    args.width = check::whole(random, 0, 1) == 0 ? pack : check::whole(random, 1, pack);
    args.a_step = check::whole(random, 0, 1) == 0 ? pack : check::whole(random, 1, 20);
    std::vector<Segment> segments(size(check::whole(random, 0, 4)));
    std::int64_t k = 0, reach = 0;
    for (Segment& segment : segments) {
      segment = {check::whole(random, 0, 40), check::whole(random, 0, 17)};
      k += segment.length;
      if (segment.length > 0) reach = std::max(reach, segment.offset + segment.length);
    }
    args.segments = segments.data();
    args.segment_count = static_cast<std::int64_t>(segments.size());
    // Blocks side by side in rows, or one after another.
    const std::int64_t columns = (args.blocks - 1) * pack + args.width;
    const bool rows_first = check::whole(random, 0, 1) == 0;
    args.out_step = rows_first ? columns : pack;
    args.out_block = rows_first ? pack : args.rows * pack;
    const std::size_t in_count = args.rows == 0 || reach == 0 ? 0 : size((args.rows - 1) * args.a_step + reach);
    const std::size_t out_count =
        args.rows == 0 ? 0 : size((args.rows - 1) * args.out_step + (args.blocks - 1) * args.out_block + args.width);
    Guarded a(in_count), w(size(k * args.blocks * pack)), out(out_count), before(out_count), residual(out_count),
        bias(size(columns));
    fill(random, a, in_count);
    fill(random, w, size(k * args.blocks * pack));
    fill(random, before, out_count);
    fill(random, residual, out_count);
    fill(random, bias, size(columns));
    std::copy_n(before.data(), out_count, out.data());
    args.a = a.data();
    args.w = w.data();
    args.out = out.data();
    args.accumulate = check::whole(random, 0, 2) == 0;
    if (check::whole(random, 0, 1) == 0) args.finish.bias = bias.data();
    if (check::whole(random, 0, 1) == 0) args.finish.residual = residual.data();
    if (check::whole(random, 0, 1) == 0) args.finish.low = 0.0f;
    if (check::whole(random, 0, 2) == 0) args.finish.high = 2.0f;
    table.panel(args);
    std::vector<bool> written(out_count);
    for (std::int64_t row = 0; row < args.rows; ++row) {
      for (std::int64_t j = 0; j < columns; ++j) {
        const std::size_t at = size(row * args.out_step + j / pack * args.out_block + j % pack);
        written[at] = true;
        Exact exact;
        if (args.accumulate) {
          exact.add(before.data()[at]);
        } else {
          if (args.finish.bias != nullptr) exact.add(bias.data()[j]);
          if (args.finish.residual != nullptr) exact.add(residual.data()[at]);
        }
        const float* weight = w.data() + j;
        for (const Segment& segment : segments)
          for (std::int64_t i = 0; i < segment.length; ++i, weight += args.blocks * pack)
            exact.add(double{a.data()[row * args.a_step + segment.offset + i]} * double{*weight});
        CHECK(exact.near(out.data()[at], args.finish, k));
      }
    }
    for (std::size_t i = 0; i < out_count; ++i) CHECK(written[i] || out.data()[i] == before.data()[i]);
    if (check::failures > 5) return;
  }
}

void lanes(const Table& table) {
  std::mt19937_64 random(9);
  const std::int64_t pack = table.pack;
  for (int round = 0; round < check::rounds(200); ++round) {
    LaneArgs args;
    args.count = check::whole(random, 0, 20);
    args.in_step = pack * check::whole(random, 1, 3);
    std::vector<Tap> taps(size(check::whole(random, 1, 9)));
    std::int64_t reach = 0;
    for (std::size_t t = 0; t < taps.size(); ++t) {
      taps[t] = {pack * check::whole(random, 0, 8), pack * static_cast<std::int64_t>(t)};
      reach = std::max(reach, taps[t].offset + pack);
    }
    args.taps = taps.data();
    args.tap_count = static_cast<std::int64_t>(taps.size());
    const std::size_t in_count = args.count == 0 ? 0 : size((args.count - 1) * args.in_step + reach),
                      weights = taps.size() * size(pack), out_count = size(args.count * pack);
    Guarded in(in_count), w(weights), out(out_count), residual(out_count), bias(size(pack));
    fill(random, in, in_count);
    fill(random, w, weights);
    fill(random, residual, out_count);
    fill(random, bias, size(pack));
    args.in = in.data();
    args.out = out.data();
    const auto each = [&](const auto& holds) {
      for (std::int64_t i = 0; i < args.count; ++i)
        for (std::int64_t lane = 0; lane < pack; ++lane) CHECK(holds(i, lane, out.data()[i * pack + lane]));
    };
    const auto at = [&](std::int64_t i, const Tap& tap, std::int64_t lane) {
      return in.data()[i * args.in_step + tap.offset + lane];
    };
    const float scale = 0.3f;
    args.w = &scale;
    table.pool_sum(args);
    each([&](std::int64_t i, std::int64_t lane, float found) {
      Exact exact;
      for (const Tap& tap : taps) exact.add(double{at(i, tap, lane)} * double{scale});
      return exact.near(found, args.finish, args.tap_count);
    });
    args.w = w.data();
    if (check::whole(random, 0, 1) == 0) args.finish.bias = bias.data();
    if (check::whole(random, 0, 1) == 0) args.finish.residual = residual.data();
    if (check::whole(random, 0, 1) == 0) args.finish.low = 0.0f;
    if (check::whole(random, 0, 2) == 0) args.finish.high = 2.0f;
    table.depthwise(args);
    each([&](std::int64_t i, std::int64_t lane, float found) {
      Exact exact;
      for (const Tap& tap : taps) exact.add(double{at(i, tap, lane)} * double{w.data()[tap.place + lane]});
      if (args.finish.bias != nullptr) exact.add(bias.data()[lane]);
      if (args.finish.residual != nullptr) exact.add(residual.data()[i * pack + lane]);
      return exact.near(found, args.finish, args.tap_count);
    });
    if (in_count > 0) in.data()[check::whole(random, 0, static_cast<std::int64_t>(in_count) - 1)] = NAN;
    args.finish = {};
    table.pool_max(args);
    each([&](std::int64_t i, std::int64_t lane, float found) {
      float most = -INFINITY;
      bool nan = false;
      for (const Tap& tap : taps) {
        nan = nan || std::isnan(at(i, tap, lane));
        most = std::fmax(most, at(i, tap, lane));
      }
      return nan ? std::isnan(found) : found == most;
    });
    if (check::failures > 5) return;
  }
}

// Pixels outside [first, last) are left out: the buffer ends where they would be.
void depthwise_rows(const Table& table) {
  std::mt19937_64 random(10);
  const std::int64_t pack = table.pack;
  for (int round = 0; round < check::rounds(400); ++round) {
    DepthwiseRowArgs args;
    args.taps = check::whole(random, 0, 3) * 2 + 1;
    args.stride = check::whole(random, 1, 2);
    CHECK(has_depthwise_row(args.taps, args.stride));
    args.count = check::whole(random, 0, 23);
    const std::int64_t width = std::max<std::int64_t>(0, (args.count - 1) * args.stride + args.taps);
    args.first = std::min(width, check::whole(random, 0, 3));
    args.last = std::max(args.first, width - check::whole(random, 0, 3));
    std::vector<Tap> lines(size(check::whole(random, 0, 4)));
    const std::int64_t line = (args.last - args.first) * pack;
    for (std::size_t i = 0; i < lines.size(); ++i)
      lines[i] = {static_cast<std::int64_t>(i) * line - args.first * pack, static_cast<std::int64_t>(i) * args.taps * pack};
    args.lines = lines.data();
    args.line_count = static_cast<std::int64_t>(lines.size());
    const std::size_t in_count = lines.size() * size(line), weights = lines.size() * size(args.taps * pack),
                      out_count = size(args.count * pack);
    Guarded in(in_count), w(weights), out(out_count), residual(out_count), bias(size(pack));
    fill(random, in, in_count);
    fill(random, w, weights);
    fill(random, residual, out_count);
    fill(random, bias, size(pack));
    args.in = in.data();
    args.w = w.data();
    args.out = out.data();
    if (check::whole(random, 0, 1) == 0) args.finish.bias = bias.data();
    if (check::whole(random, 0, 1) == 0) args.finish.residual = residual.data();
    if (check::whole(random, 0, 1) == 0) args.finish.low = 0.0f;
    if (check::whole(random, 0, 2) == 0) args.finish.high = 2.0f;
    table.depthwise_row(args);
    for (std::int64_t i = 0; i < args.count; ++i)
      for (std::int64_t lane = 0; lane < pack; ++lane) {
        Exact exact;
        for (const Tap& from : lines)
          for (std::int64_t k = 0; k < args.taps; ++k) {
            const std::int64_t pixel = i * args.stride + k;
            if (pixel < args.first || pixel >= args.last) continue;
            exact.add(double{in.data()[from.offset + pixel * pack + lane]} * double{w.data()[from.place + k * pack + lane]});
          }
        if (args.finish.bias != nullptr) exact.add(bias.data()[lane]);
        if (args.finish.residual != nullptr) exact.add(residual.data()[i * pack + lane]);
        CHECK(exact.near(out.data()[i * pack + lane], args.finish, args.line_count * args.taps));
      }
    if (check::failures > 5) return;
  }
}

// Rows of pixels at places that taps read, with other values between them; the last tap ends where the buffer does.
void depthwise_weights(const Table& table) {
  std::mt19937_64 random(11);
  const std::int64_t pack = table.pack;
  for (int round = 0; round < check::rounds(300); ++round) {
    DepthwiseWeightArgs args;
    args.rows = check::whole(random, 0, 4);
    args.count = check::whole(random, 0, 9);
    args.gradient_row = (args.count + check::whole(random, 0, 2)) * pack;
    args.in_step = check::whole(random, 1, 3) * pack;
    args.in_row = args.count * args.in_step + check::whole(random, 0, 2) * pack;
    std::vector<Tap> taps(size(check::whole(random, 0, 26)));
    std::int64_t reach = 0;
    for (std::size_t t = 0; t < taps.size(); ++t) {
      taps[t] = {check::whole(random, 0, 5) * pack, static_cast<std::int64_t>(t) * pack};
      reach = std::max(reach, taps[t].offset + pack);
    }
    args.taps = taps.data();
    args.tap_count = static_cast<std::int64_t>(taps.size());
    const bool any = args.rows > 0 && args.count > 0;
    const std::size_t in_count = any ? size((args.rows - 1) * args.in_row + (args.count - 1) * args.in_step + reach) : 0,
                      g_count = any ? size((args.rows - 1) * args.gradient_row + args.count * pack) : 0,
                      sum_count = taps.size() * size(pack);
    Guarded in(in_count), g(g_count), sums(sum_count);
    fill(random, in, in_count);
    fill(random, g, g_count);
    fill(random, sums, sum_count);
    const std::vector<float> before(sums.data(), sums.data() + sum_count);
    args.in = in.data();
    args.gradient = g.data();
    args.sums = sums.data();
    table.depthwise_weights(args);
    for (const Tap& tap : taps)
      for (std::int64_t lane = 0; lane < pack; ++lane) {
        Exact exact;
        exact.add(before[size(tap.place + lane)]);
        for (std::int64_t row = 0; row < args.rows; ++row)
          for (std::int64_t i = 0; i < args.count; ++i)
            exact.add(double{g.data()[row * args.gradient_row + i * pack + lane]} *
                      double{in.data()[row * args.in_row + i * args.in_step + tap.offset + lane]});
        CHECK(exact.near(sums.data()[tap.place + lane], {}, args.rows * args.count));
      }
    if (check::failures > 5) return;
  }
}

}  // namespace

int main() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    panels(kernels(set.name));
    lanes(kernels(set.name));
    depthwise_rows(kernels(set.name));
    depthwise_weights(kernels(set.name));
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0;
}
