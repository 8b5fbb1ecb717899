// Work of the recurrent cells.
#pragma once
#include "atomic/rates.h"
#include "core/attributes.h"

namespace walle {

// Return the number of gates of the cell that the attribute `cell` names: 1 (RNN), 3 (GRU) or 4 (LSTM); throw Error (model).
std::int64_t recurrent_gates(const Attributes& attributes);

// Return the work of RecurrentSteps, of operands projected (steps, batch, gates * h) and weights (gates * h, h).
Work recurrent_work(const Dims& projected, const Dims& weights, DType dtype);

}  // namespace walle
