// Steps of depthwise convolutions that transpose blocks of channels to lanes (depthwise_lanes.h).
#pragma once
#include "atomic/products/convolution.h"

namespace walle {

extern const ConvAlgorithm kLaneDepthwise;

// Return the gradient of a convolution by its input, or by its weights; null where it is not such a depthwise convolution.
std::unique_ptr<HostStep> make_lane_input_gradient(const ConvShape& shape, const Table& table);
std::unique_ptr<HostStep> make_lane_weight_gradient(const ConvShape& shape, const Table& table);

}  // namespace walle
