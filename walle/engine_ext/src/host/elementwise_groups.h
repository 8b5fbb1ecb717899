// Groups of elementwise operators of an applied program, each computed by one step (atomic/elementwise_group.h). Most of the time
// of an elementwise operator is that of moving its values, and of small ones that of beginning a step.
#pragma once
#include "kernels/table.h"
#include "plan/program.h"

namespace walle {

// Joins elementwise operators whose results have one shape, where no operator outside the group reads the results between.
void join_elementwise(Program& program, const Table& table);

}  // namespace walle
