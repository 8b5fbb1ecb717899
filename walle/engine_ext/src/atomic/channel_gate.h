// Steps of ChannelSums and ChannelAffine with a gate in the same pass: the gradient of a normalisation with bounds behind it.
#pragma once
#include <cmath>
#include <optional>

#include "atomic/atomic.h"

namespace walle {

// Find the numbers a and b of each channel with which a normalisation is a * x + b.
template <class T>
void find_normal_factors(const T* moments, const T* scale, const T* bias, std::int64_t channels, double epsilon, T* a,
                         T* b) noexcept {
  for (std::int64_t c = 0; c < channels; ++c) {
    const double factor = static_cast<double>(scale[c]) / std::sqrt(static_cast<double>(moments[channels + c]) + epsilon);
    a[c] = static_cast<T>(factor);
    b[c] = static_cast<T>(static_cast<double>(bias[c]) - static_cast<double>(moments[c]) * factor);
  }
}

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
