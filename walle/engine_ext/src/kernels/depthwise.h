// Depthwise sums of a row of outputs, tile by tile: an input pixel is loaded once for all outputs of a tile that it meets.
// `depthwise` of kernels/table.h takes kernels of any shape, and has no tiles.
#pragma once
#include "kernels/table.h"

namespace walle {

// Return whether the kernel sums `taps` taps along a row, for outputs that are `stride` pixels apart.
constexpr bool has_depthwise_row(std::int64_t taps, std::int64_t stride) noexcept {
  return (taps == 1 || taps == 3 || taps == 5 || taps == 7) && (stride == 1 || stride == 2);
}

// out[i, lane] = sum over lines and k < taps of in[offset + (i * stride + k) * pack + lane] * w[place + k * pack + lane] for
// `count` pixels of one block of channels; i * stride + k outside [first, last) is left out.
struct DepthwiseRowArgs {
  std::int64_t count = 0, taps = 1, stride = 1;
  const float* in = nullptr;
  std::int64_t first = 0, last = 0;
  const Tap* lines = nullptr;  // rows of the input, and of the weights
  std::int64_t line_count = 0;
  const float* w = nullptr;
  float* out = nullptr;  // pixels `pack` apart
  Finish finish;         // bias has `pack` numbers
};

}  // namespace walle
