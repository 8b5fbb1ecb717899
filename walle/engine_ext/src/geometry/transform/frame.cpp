#include "geometry/transform/frame.h"

#include <algorithm>

namespace walle {

void Frame::add_to(std::vector<Region>& regions, int source, int filler, const Dims& from, const Dims& to) const {
  const std::size_t rank = size.size();
  Dims middle(rank);
  if (element_count(size) == 0) return;
  std::int64_t dst = dst_offset;
  for (std::size_t i = 0; i < rank; ++i) {
    middle[i] = high[i] - low[i];
    dst += low[i] * dst_stride[i];
  }
  if (element_count(middle) > 0) regions.push_back(region_of(source, middle, src_stride, src_offset, dst_stride, dst, from, to));
  // Remove the border axis by axis: the boxes after an axis span only its middle.
  const Dims still(rank, 0), one{1};
  Dims box = size;
  std::int64_t corner = dst_offset;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    for (const auto& [begin, end] : {std::pair{std::int64_t{0}, low[axis]}, std::pair{high[axis], size[axis]}}) {
      Dims side = box;
      side[axis] = end - begin;
      if (element_count(side) > 0)
        regions.push_back(region_of(filler, side, still, 0, dst_stride, corner + begin * dst_stride[axis], one, to));
    }
    box[axis] = middle[axis];
    corner += low[axis] * dst_stride[axis];
  }
}

}  // namespace walle
