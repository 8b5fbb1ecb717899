// Depthwise sums of a row of outputs, tile by tile: an input pixel is loaded once for all outputs of a tile that it meets.
// `depthwise` of kernels/table.h takes kernels of any shape, and has no tiles. And the sums of the gradient by the weights.
#pragma once
#include "kernels/table.h"

namespace walle {

// Return whether the kernel sums `taps` taps along a row, for outputs that are `stride` pixels apart.
constexpr bool has_depthwise_row(std::int64_t taps, std::int64_t stride) noexcept {
  return (taps == 1 || taps == 3 || taps == 5 || taps == 7) && (stride == 1 || stride == 2);
}

// out[i, lane] = sum over lines and k < taps of in[offset + (i * stride + k) * pack + lane] * w[place + k * pack + lane] for
// `count` pixels of one block of channels; i * stride + k outside [first, last) is left out. `out` may be `in` where there is one
// tap of offset 0 and the stride is 1.
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

// sums[place + lane] += sum over rows and pixels i < count of gradient[row * gradient_row + i * pack + lane]
// * in[row * in_row + i * in_step + offset + lane], for each tap of one block of channels. One call's sums are accumulated in
// float32 before they are added: it has a few thousand pixels at most.
struct DepthwiseWeightArgs {
  std::int64_t rows = 0, count = 0;
  const float* gradient = nullptr;
  std::int64_t gradient_row = 0;
  const float* in = nullptr;
  std::int64_t in_row = 0, in_step = 0;
  const Tap* taps = nullptr;
  std::int64_t tap_count = 0;
  float* sums = nullptr;
};

}  // namespace walle
