// Normalisations of an applied program that become part of the depthwise convolution behind them and of its gradient by weights:
// the normalised value is computed twice, and is never in memory.
#pragma once
#include "kernels/table.h"
#include "plan/program.h"

namespace walle {

// Removes a ChannelNormalize, with its bounds, that only such operators read. Its input is then in use as long as its result was.
void join_normals(Program& program, const Table& table);

}  // namespace walle
