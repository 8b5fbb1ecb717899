// Bias and Relu behind products of values that are not constant, in training.
#pragma once
#include "kernels/table.h"
#include "plan/program.h"

namespace walle {

// Moves the bias and the Relu of a product into it, where nothing else reads the value between.
void join_epilogues(Program& program, const Table& table);

}  // namespace walle
