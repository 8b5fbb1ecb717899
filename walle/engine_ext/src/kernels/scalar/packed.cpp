#include "kernels/scalar/set.h"

#include <cmath>

#include "kernels/depthwise.h"

namespace walle::scalar {

namespace {

constexpr std::int64_t kPack = 4;

// NaN stays NaN.
float clamp(float x, const Finish& finish) noexcept { return x < finish.low ? finish.low : x > finish.high ? finish.high : x; }

void panel(const PanelArgs& args) noexcept {
  const std::int64_t columns = (args.blocks - 1) * kPack + args.width;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    float sums[2 * kPack];
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t at = row * args.out_step + j / kPack * args.out_block + j % kPack;
      sums[j] = args.finish.bias == nullptr ? 0.0f : args.finish.bias[j];
      if (args.finish.residual != nullptr) sums[j] += args.finish.residual[at];
      if (args.accumulate) sums[j] = args.out[at];
    }
    const float* w = args.w;
    for (std::int64_t s = 0; s < args.segment_count; ++s) {
      const float* a = args.a + row * args.a_step + args.segments[s].offset;
      for (std::int64_t k = 0; k < args.segments[s].length; ++k, w += args.blocks * kPack)
        for (std::int64_t j = 0; j < columns; ++j) sums[j] += a[k] * w[j];
    }
    for (std::int64_t j = 0; j < columns; ++j)
      args.out[row * args.out_step + j / kPack * args.out_block + j % kPack] = clamp(sums[j], args.finish);
  }
}

void depthwise(const LaneArgs& args) noexcept {
  for (std::int64_t i = 0; i < args.count; ++i)
    for (std::int64_t lane = 0; lane < kPack; ++lane) {
      float sum = 0;
      for (std::int64_t t = 0; t < args.tap_count; ++t)
        sum += args.in[i * args.in_step + args.taps[t].offset + lane] * args.w[args.taps[t].place + lane];
      if (args.finish.bias != nullptr) sum += args.finish.bias[lane];
      if (args.finish.residual != nullptr) sum += args.finish.residual[i * kPack + lane];
      args.out[i * kPack + lane] = clamp(sum, args.finish);
    }
}

void depthwise_row(const DepthwiseRowArgs& args) noexcept {
  for (std::int64_t i = 0; i < args.count; ++i) {
    const std::int64_t at = i * args.stride, first = args.first > at ? args.first - at : 0;
    const std::int64_t last = args.last - at < args.taps ? args.last - at : args.taps;
    float sums[kPack] = {};
    for (std::int64_t line = 0; line < args.line_count; ++line) {
      const float* in = args.in + args.lines[line].offset + at * kPack;
      const float* w = args.w + args.lines[line].place;
      for (std::int64_t k = first; k < last; ++k)
        for (std::int64_t lane = 0; lane < kPack; ++lane) sums[lane] += in[k * kPack + lane] * w[k * kPack + lane];
    }
    for (std::int64_t lane = 0; lane < kPack; ++lane) {
      if (args.finish.bias != nullptr) sums[lane] += args.finish.bias[lane];
      if (args.finish.residual != nullptr) sums[lane] += args.finish.residual[i * kPack + lane];
      args.out[i * kPack + lane] = clamp(sums[lane], args.finish);
    }
  }
}

void depthwise_weights(const DepthwiseWeightArgs& args) noexcept {
  for (std::int64_t t = 0; t < args.tap_count; ++t) {
    float sums[kPack] = {};
    for (std::int64_t row = 0; row < args.rows; ++row) {
      const float* g = args.gradient + row * args.gradient_row;
      const float* in = args.in + row * args.in_row + args.taps[t].offset;
      for (std::int64_t i = 0; i < args.count; ++i)
        for (std::int64_t lane = 0; lane < kPack; ++lane) sums[lane] += g[i * kPack + lane] * in[i * args.in_step + lane];
    }
    for (std::int64_t lane = 0; lane < kPack; ++lane) args.sums[args.taps[t].place + lane] += sums[lane];
  }
}

void pool_max(const LaneArgs& args) noexcept {
  for (std::int64_t i = 0; i < args.count; ++i)
    for (std::int64_t lane = 0; lane < kPack; ++lane) {
      float most = -std::numeric_limits<float>::infinity();
      for (std::int64_t t = 0; t < args.tap_count; ++t) {
        const float x = args.in[i * args.in_step + args.taps[t].offset + lane];
        if (std::isnan(x) || x > most) most = x;
        if (std::isnan(most)) break;
      }
      args.out[i * kPack + lane] = most;
    }
}

void pool_sum(const LaneArgs& args) noexcept {
  for (std::int64_t i = 0; i < args.count; ++i)
    for (std::int64_t lane = 0; lane < kPack; ++lane) {
      double sum = 0;
      for (std::int64_t t = 0; t < args.tap_count; ++t)
        sum += static_cast<double>(args.in[i * args.in_step + args.taps[t].offset + lane]);
      args.out[i * kPack + lane] = static_cast<float>(sum) * args.w[0];
    }
}

float peak(std::int64_t rounds) noexcept {
  float chains[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) chains[i] = 1e-6f * static_cast<float>(i);
  for (; rounds > 0; --rounds)
    for (float& chain : chains) chain = chain * 0.999999f + 1e-6f;
  float total = 0;
  for (const float chain : chains) total += chain;
  return total;
}

}  // namespace

void fill_packed(Table& table) noexcept {
  table.pack = kPack;
  table.panel = &panel;
  table.depthwise = &depthwise;
  table.depthwise_row = &depthwise_row;
  table.depthwise_weights = &depthwise_weights;
  table.pool_max = &pool_max;
  table.pool_sum = &pool_sum;
  table.peak = &peak;
}

}  // namespace walle::scalar
