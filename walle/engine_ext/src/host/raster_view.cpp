#include "host/raster_view.h"

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

}  // namespace walle
