// Matrix products of an applied program that read transposed operands where they lie, and write a transposed result: a training
// step has three products of a layer's weights, of which two are by a transposed matrix.
#pragma once
#include "kernels/table.h"
#include "plan/program.h"

namespace walle {

// Removes rasters that only transpose a product's operand or its result, where that takes no more memory.
void join_transposes(Program& program, const Table& table);

}  // namespace walle
