// Work of the recurrent cells.
#pragma once
#include "atomic/rates.h"
#include "core/tensor.h"

namespace walle {

// Return the work of RecurrentSteps, of operands projected (steps, batch, gates * h) and weights (gates * h, h).
Work recurrent_work(const Dims& projected, const Dims& weights, DType dtype);

}  // namespace walle
