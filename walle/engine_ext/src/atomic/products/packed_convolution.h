// Convolution of float32 in packed channel layouts NC/c: [batch, blocks, out..., c] with c the backend's `pack` (§4.1). Weights
// are constants, brought into an algorithm's own order once; bias, residual and a clamp are folded in.
#pragma once
#include "atomic/products/activation.h"
#include "atomic/products/convolution.h"

namespace walle {

struct PackedConv {
  ConvShape shape;
  const Table* table = nullptr;
  bool plain_input = false;  // x is [batch, channels, in...] and only the result is packed
  Activation activation{};   // after bounds; whatever algorithm computes it

  std::int64_t pack() const noexcept { return table->pack; }
  std::int64_t blocks_of(std::int64_t channels) const noexcept { return (channels + pack() - 1) / pack(); }
  std::int64_t channels_in() const noexcept { return shape.groups * shape.in_channels; }
  std::int64_t channels_out() const noexcept { return shape.groups * shape.out_channels; }
  // A step's operand, one number for each channel of the packed result; null where no activation has any.
  const float* slope(std::byte* const* inputs) const noexcept {
    return activation.has_slope() ? reinterpret_cast<const float*>(inputs[kSlope]) : nullptr;
  }
};

// What is counted of an algorithm's work: Q of eq. 3, by the rate at which this backend does each (see plan/rates.h).
struct Work {
  double panel = 0;     // floating-point operations of the tile kernel, the padding of tiles included
  double pairs = 0;     // of the tile kernel of bfloat16
  double lanes = 0;     // of lane by lane kernels: depthwise sums, Winograd transforms
  double streamed = 0;  // bytes of weights that no cache near the core holds, read once for each pass over them
  double moved = 0;     // bytes that are read and written between memory and memory, near the core
  double far = 0;       // the same where no cache near the core holds them
};

// One way to compute packed convolutions. `parameter` is its own: a Winograd unit, say.
struct PackedAlgorithm {
  std::string_view name;
  // The parameters that may be tried for such a convolution; none: it does not apply.
  std::vector<std::int64_t> (*parameters)(const PackedConv& conv);
  Work (*work)(const PackedConv& conv, std::int64_t parameter);
  // `w` is [groups * out_channels, in_channels, kernel...], row-major. What the step will read as its operand 1.
  Tensor (*pack)(const PackedConv& conv, std::int64_t parameter, const float* w);
  // A step whose operands are x, the packed weights, bias, residual and slope (each null where absent, the last left out where no
  // activation needs it); its result is packed, and is clamped to [low, high] before the activation.
  std::unique_ptr<Step> (*make)(const PackedConv& conv, std::int64_t parameter, float low, float high);
};
// In the order in which a tie is decided.
std::span<const PackedAlgorithm* const> packed_algorithms() noexcept;
// Of the algorithms of plain layouts for float32 (see convolution.h), which gather columns for one matrix product a group.
Work plain_conv_work(const ConvShape& shape) noexcept;

extern const PackedAlgorithm kPackedTiles;      // direct and 1x1, by the tile kernel
extern const PackedAlgorithm kPackedPairs;      // the same in bfloat16, where the backend has it
extern const PackedAlgorithm kPackedDepthwise;  // a group for each channel
extern const PackedAlgorithm kPackedGroups;     // groups that fill no blocks, several as one
extern const PackedAlgorithm kPackedWinograd;   // F(unit, kernel)

}  // namespace walle
