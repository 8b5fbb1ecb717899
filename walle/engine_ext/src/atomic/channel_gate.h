// Steps of ChannelSums and ChannelAffine with a gate in the same pass: the gradient of a normalisation with bounds behind it.
#pragma once
#include <optional>

#include "atomic/atomic.h"

namespace walle {

// A gradient passes where low < y < high for y, the normalised x before its bounds; without `high`, where low < y.
struct NormalGate {
  double epsilon = 1e-5, low = 0;
  std::optional<double> high;
};

// Steps for x of this shape, float32 or float64. Behind the operands of ChannelSums (three) and ChannelAffine (five) they take
// those of the normalisation: the moments of x, the scale and the bias.
std::unique_ptr<HostStep> make_gated_sums(const TensorType& x, const NormalGate& gate, const Table& table);
std::unique_ptr<HostStep> make_gated_affine(const TensorType& x, const NormalGate& gate, const Table& table);

}  // namespace walle
