// Rasters that are views: operators that can read strided operands need no copy.
#pragma once
#include <optional>

#include "plan/program.h"

namespace walle {

// A value's elements in the memory of another one.
struct RasterView {
  int source;
  Dims strides;  // along all axes of the value; 0 along those of one element
  std::int64_t offset;
};

// Return the view that a raster of one region is. Nothing for a rename, or for more regions.
std::optional<RasterView> view_of(const Program& program, const ProgramOp& op);

}  // namespace walle
