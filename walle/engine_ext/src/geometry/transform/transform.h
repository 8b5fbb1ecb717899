// Transform operators: movements of elements, given as regions for the raster (§4.1). A maker is a pure function of its operands'
// types and shapes (and of the values of small constant operands such as axes), so shape inference, sessions and walle.np share
// it.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "geometry/emitter.h"
#include "geometry/operand.h"
#include "geometry/region.h"

namespace walle {

// One output: the regions fill every element of it once. Sources are operand numbers, their elements row-major; kFill reads
// `fill`, which has one or a few elements.
struct Movement {
  static constexpr int kFill = -1;

  DType dtype = DType::f32;
  Dims shape;
  std::vector<Region> regions;
  Tensor fill;
};

// `outputs` is the node's number of outputs. Throws Error (shape, dtype, unsupported) for invalid operands and attributes.
using TransformFn = std::vector<Movement> (*)(std::span<const Operand> operands, const Attributes& attributes, int outputs);

// For regions that depend on values known only at run time: the movement as operators (including indexed rasters).
using RunTimeFn = std::vector<int> (*)(Emitter& emitter, std::span<const int> inputs, const Attributes& attributes, int outputs);

struct Transform {
  std::string_view name;
  int min_inputs, max_inputs;
  TransformFn make;
  RunTimeFn at_run_time = nullptr;
};
// All transforms, in alphabetical order; each is defined in the file of its family.
std::span<const Transform> transforms() noexcept;

// Helpers shared by the makers.

// Return a region from an operand of shape `from` to an output of shape `to`, all strides and offsets in elements.
Region region_of(int source, const Dims& size, const Dims& src_stride, std::int64_t src_offset, const Dims& dst_stride,
                 std::int64_t dst_offset, const Dims& from, const Dims& to);
// Append a region, or several where one would need more than kMaxAxes axes: one for each position along its shortest axes.
void add_regions(std::vector<Region>& regions, int source, const Dims& size, const Dims& src_stride, std::int64_t src_offset,
                 const Dims& dst_stride, std::int64_t dst_offset, const Dims& from, const Dims& to);
// Return a fill of zeros, of one element.
Tensor zero_fill(DType dtype);

}  // namespace walle
