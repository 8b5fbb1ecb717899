// Gates of an applied program that become part of the gradient of the normalisation before their bounds: one pass over memory
// less.
#pragma once
#include "kernels/table.h"
#include "plan/program.h"

namespace walle {

// Removes a Gate behind a ChannelNormalize with the same bounds, where only that one's gradients read it.
void join_gates(Program& program, const Table& table);

}  // namespace walle
