// A box of an output whose middle comes from the source and whose border reads a fill: used by Pad, Im2Col and SpaceToBatch.
#pragma once
#include <vector>

#include "geometry/transform/transform.h"

namespace walle {

struct Frame {
  Dims size;                    // the box, in its own coordinates
  Dims low, high;               // along each axis [low, high) comes from the source; low == high: nothing does
  Dims src_stride, dst_stride;  // one step along each axis
  std::int64_t src_offset;      // place of the middle's corner, `low`
  std::int64_t dst_offset;      // place of the box's corner, 0

  // Return the middle as one region from operand `source` of shape `from`, and the border as at most two regions for each axis,
  // which read the one element of `filler` (an operand or Movement::kFill).
  void add_to(std::vector<Region>& regions, int source, int filler, const Dims& from, const Dims& to) const;
};

}  // namespace walle
