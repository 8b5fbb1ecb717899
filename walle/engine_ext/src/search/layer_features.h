// Features of a convolution layer, the inputs of the performance model (Mulder et al., §4.2; search/performance_model.h).
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace walle {

// A dense convolution of a square image by square kernels, of batch 1 and padding "same": k kernels of f x f, c channels, im
// pixels, stride s. Its output is ceil(im / s) pixels high and wide.
struct ConvLayer {
  double k = 1, c = 1, im = 1, s = 1, f = 1;
};

inline constexpr std::size_t kLayerFeatures = 32;

// Return the features' names, in order.
std::vector<std::string> layer_feature_names();
// Write the features of a layer whose five numbers are at least 1: logarithms of the numbers, of FLOPs and of bytes, of the parts
// of vector tiles and Winograd units that it fills, and flags of the kernel sizes and strides for which primitives exist.
// Departure from the paper, whose features are the five numbers.
void layer_features(const ConvLayer& layer, std::span<double, kLayerFeatures> features) noexcept;

}  // namespace walle
