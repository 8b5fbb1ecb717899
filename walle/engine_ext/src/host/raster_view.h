// Rasters that are views, or views side by side: operators that can read such operands need no copy.
#pragma once
#include <optional>
#include <vector>

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

// A matrix in the memory of a value, whose rows are `row` elements apart.
struct RasterPart {
  int source;
  std::int64_t columns, row, offset;
};

// Matrices side by side, in their order.
struct RasterParts {
  std::vector<RasterPart> parts;
  bool is_transposed;  // the value is what they make together, transposed
};

// Return the matrices that a raster of several regions puts side by side; nothing where it moves elements otherwise.
std::optional<RasterParts> parts_of(const Program& program, const ProgramOp& op);

}  // namespace walle
