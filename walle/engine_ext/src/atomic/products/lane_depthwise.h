// Steps of depthwise convolutions that transpose blocks of channels to lanes (depthwise_lanes.h).
#pragma once
#include "atomic/products/depthwise_lanes.h"

namespace walle {

extern const ConvAlgorithm kLaneDepthwise;

// Return the gradient of a convolution by its input, or by its weights; null where it is not such a depthwise convolution.
std::unique_ptr<HostStep> make_lane_input_gradient(const ConvShape& shape, const Table& table);
std::unique_ptr<HostStep> make_lane_weight_gradient(const ConvShape& shape, const Table& table);

// The convolution, or its gradient by the weights, of an input that is normalised first, for shapes that DepthwiseLanes takes.
// Behind the two operands are the moments, the scale and the bias.
std::unique_ptr<HostStep> make_normalised_depthwise(const ConvShape& shape, const Table& table, const InputNormal& normal);
std::unique_ptr<HostStep> make_normalised_weight_gradient(const ConvShape& shape, const Table& table, const InputNormal& normal);

}  // namespace walle
