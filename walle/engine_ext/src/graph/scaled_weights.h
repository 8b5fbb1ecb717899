// Weights of a product times a factor for each output channel: what a normalisation behind the product becomes.
#pragma once
#include <string>
#include <vector>

#include "core/tensor.h"

namespace walle {

// The product is computed where it is read, so that packing makes the only copy: weights are large, and mapped from the file.
struct ScaledWeights {
  Tensor weights;
  std::vector<double> factors;  // one for each output channel
  std::size_t axis = 0;         // axis of the output channels
  std::int64_t groups = 1;      // axis 0 holds the groups in a transposed convolution, where `axis` counts channels of one group
  std::string key;              // name of these factors, distinct within a graph
};

// Return the weights times their factors in the weights' type, multiplied in float64 and rounded once. With `scratch`, float32
// weights are written to its memory, which is made larger where it must be: the result lasts until the next call.
Tensor multiplied(const ScaledWeights& scaled, std::shared_ptr<Storage>* scratch = nullptr);

}  // namespace walle
