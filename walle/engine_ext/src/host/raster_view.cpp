#include "host/raster_view.h"

#include <algorithm>

#include "graph/index.h"

namespace walle {

std::optional<RasterView> view_of(const Program& program, const ProgramOp& op) {
  if (!op.is_raster() || op.regions.size() != 1 || rename_offset(program, op)) return std::nullopt;
  const Region& region = op.regions[0];
  const Dims& shape = program.values[at(op.output)].shape;
  if (region.axes == 0 || region.dst.offset != 0 || region.count() != element_count(shape) || region.count() == 0)
    return std::nullopt;
  RasterView view{op.inputs[at(region.source)], Dims(shape.size()), region.src.offset};
  std::size_t axis = shape.size();
  for (auto i = static_cast<std::size_t>(region.axes); i-- > 0;) {  // one axis of a region is some of the value's
    std::int64_t size = 1;
    while (size < region.size[i] && axis > 0) {
      --axis;
      if (shape[axis] == 1) continue;
      view.strides[axis] = region.src.stride[i] * size;
      size *= shape[axis];
    }
    if (size != region.size[i]) return std::nullopt;
  }
  while (axis > 0)
    if (shape[--axis] != 1) return std::nullopt;
  return view;
}

std::optional<RasterParts> parts_of(const Program& program, const ProgramOp& op) {
  if (!op.is_raster() || op.regions.size() < 2) return std::nullopt;
  const Dims& shape = program.values[at(op.output)].shape;
  if (shape.size() < 2 || element_count(shape) == 0) return std::nullopt;
  const std::int64_t width = shape.back(), height = element_count(shape) / width;
  std::vector<Region> regions = op.regions;
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.dst.offset < b.dst.offset; });
  RasterParts found{{}, regions[1].dst.offset >= width};
  std::int64_t placed = 0;  // columns, rows of the value where it is transposed
  for (const Region& region : regions) {
    std::int64_t rows = 1, columns = 1, down = 1, right = 1;  // size of the part in the value, and its strides in the source
    for (int axis = 0; axis < region.axes; ++axis) {
      const auto i = static_cast<std::size_t>(axis);
      if (region.dst.stride[i] == width && rows == 1 && columns == 1) {
        rows = region.size[i];
        down = region.src.stride[i];
      } else if (region.dst.stride[i] == 1 && axis + 1 == region.axes) {
        columns = region.size[i];
        right = region.src.stride[i];
      } else {
        return std::nullopt;
      }
    }
    const bool fits = found.is_transposed ? columns == width && down == 1 && region.dst.offset == placed * width
                                          : rows == height && right == 1 && region.dst.offset == placed;
    if (!fits) return std::nullopt;
    placed += found.is_transposed ? rows : columns;
    found.parts.push_back({op.inputs[at(region.source)], found.is_transposed ? rows : columns, found.is_transposed ? right : down,
                           region.src.offset});
  }
  if (placed != (found.is_transposed ? height : width)) return std::nullopt;
  return found;
}

}  // namespace walle
