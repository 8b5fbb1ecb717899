#include "kernels/scalar/bfloat16.h"

#include <algorithm>
#include <bit>

#include "core/bfloat16.h"

namespace walle::scalar {

namespace {

float joined(float low, float high) noexcept {
  return std::bit_cast<float>(to_bfloat16(low) | std::uint32_t{to_bfloat16(high)} << 16);
}
float low_of(float pair) noexcept { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(pair) << 16); }
float high_of(float pair) noexcept { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(pair) & 0xffff0000); }

}  // namespace

void panel_pairs(const PanelArgs& args, std::int64_t pack) noexcept {
  const std::int64_t columns = (args.blocks - 1) * pack + args.width;
  for (std::int64_t row = 0; row < args.rows; ++row)
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t at = row * args.out_step + j / pack * args.out_block + j % pack;
      float sum = args.finish.bias == nullptr ? 0.0f : args.finish.bias[j];
      if (args.finish.residual != nullptr) sum += args.finish.residual[at];
      if (args.accumulate) sum = args.out[at];
      const float* w = args.w + j;
      for (std::int64_t s = 0; s < args.segment_count; ++s) {
        const float* a = args.a + row * args.a_step + args.segments[s].offset;
        for (std::int64_t k = 0; k < args.segments[s].length; ++k, w += args.blocks * pack) {
          sum += high_of(a[k]) * high_of(*w);
          sum += low_of(a[k]) * low_of(*w);
        }
      }
      args.out[at] = sum < args.finish.low ? args.finish.low : sum > args.finish.high ? args.finish.high : sum;
    }
}

void narrow(const float* in, std::int64_t in_step, std::int64_t rows, std::int64_t columns, float* out,
            std::int64_t out_step) noexcept {
  for (std::int64_t row = 0; row < rows; ++row, in += in_step, out += out_step)
    for (std::int64_t i = 0; i < columns; i += 2) out[i / 2] = joined(in[i], i + 1 < columns ? in[i + 1] : 0.0f);
}

void pair(const float* low, const float* high, std::int64_t count, float* out, std::int64_t out_step) noexcept {
  for (std::int64_t i = 0; i < count; ++i) out[i * out_step] = joined(low[i], high == nullptr ? 0.0f : high[i]);
}

}  // namespace walle::scalar
