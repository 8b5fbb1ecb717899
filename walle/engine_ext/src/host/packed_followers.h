// Operators that follow a convolution in its packed layout, because they compute the same there: elementwise ones, pooling, means
// over planes, and rasters that move whole channels or go the same way through every plane.
#pragma once
#include "host/packed_values.h"

namespace walle {

// Whether the op computes the same on the packed forms of `inputs` (its own, or for a raster the values that those rename), of
// which constants and a raster's values of one element stay plain.
bool can_follow_packed(const Program& program, const Packing& packing, const ProgramOp& op, std::span<const int> inputs);
// Adds the op upon packed values, where can_follow_packed() says that it may.
void follow_packed(PackedValues& values, ProgramOp op, std::vector<int> inputs, const Table& table);

}  // namespace walle
