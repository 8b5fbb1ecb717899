// Convolution: one operator with several algorithms (§4.1), on plain layouts and on packed channel layouts NC/c: [batch, blocks,
// out..., c] with c the instruction set's `pack`.
#pragma once
#include "atomic/algorithm.h"
#include "geometry/window.h"

namespace walle {

// x [batch, groups * in_channels, in...], w [groups * out_channels, in_channels, kernel...], result [batch, groups *
// out_channels, out...]; channels are those of one group.
struct ConvShape {
  DType dtype = DType::f32;
  std::int64_t batch = 1, groups = 1, in_channels = 1, out_channels = 1;
  Window window;

  std::size_t type() const noexcept { return static_cast<std::size_t>(compute_index(dtype)); }
  double multiplications() const noexcept;
  bool operator==(const ConvShape&) const = default;
};

// Of operands [batch, channels, in...] and [out channels, in channels, kernel...]; throws Error (shape, model, unsupported) where
// they do not fit.
ConvShape conv_shape(const Dims& x, const Dims& w, DType dtype, const Attributes& attributes);

struct ConvProblem {
  ConvShape shape;
  const Table* table = nullptr;
  bool packable = true;      // float32 by constant weights: the layouts may be packed
  bool plain_input = false;  // true for a packed algorithm where x is [batch, channels, in...] and only the result is packed

  std::int64_t pack() const noexcept { return table->pack; }
  std::int64_t blocks_of(std::int64_t channels) const noexcept { return (channels + pack() - 1) / pack(); }
  std::int64_t channels_in() const noexcept { return shape.groups * shape.in_channels; }
  std::int64_t channels_out() const noexcept { return shape.groups * shape.out_channels; }
  bool operator==(const ConvProblem&) const = default;
};

// An algorithm with `pack` reads x and the residual packed and gives a packed result; bias and slope then have whole blocks of
// numbers. One without reads and gives plain layouts.
using ConvAlgorithm = Algorithm<ConvProblem>;
using ConvChoice = Choice<ConvProblem>;

Algorithms<ConvProblem> conv_algorithms() noexcept;

// Return the algorithms, the cheapest first. `name`: the one that the model's attribute `algorithm` names; empty: all. Throws
// Error (unsupported) where none applies.
std::vector<ConvChoice> weigh_conv(const ConvProblem& problem, const Rates& rates, std::string_view name);

// Those that other files ask for by name; conv_algorithms() lists all.
extern const ConvAlgorithm kPackedTiles;  // direct and 1x1, by the tile kernel
extern const ConvAlgorithm kGroupTiles;   // the same in groups that fill no blocks, with weights of 0 between groups of a block
extern const ConvAlgorithm kPackedDepthwise;  // one input channel a group
extern const ConvAlgorithm kPackedWinograd;   // F(unit, kernel)

}  // namespace walle
