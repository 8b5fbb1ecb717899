// Layout of the slopes of a PRelu beside its operand.
#pragma once
#include <optional>
#include <utility>

#include "core/tensor.h"

namespace walle {

// The operand as (outer, slopes, plane): each slope is that of `plane` elements that follow each other.
struct SlopeLayout {
  std::int64_t outer = 1, slopes = 1, plane = 1;
};

// Return the layout of slopes whose axes that are not broadcast follow each other in x; none for others.
inline std::optional<SlopeLayout> slope_layout(const Dims& x, const Dims& slope) {
  if (slope.size() > x.size()) return std::nullopt;
  const std::size_t lead = x.size() - slope.size();
  SlopeLayout layout;
  for (std::size_t axis = 0; axis < x.size(); ++axis) {
    const std::int64_t own = axis < lead ? 1 : slope[axis - lead];
    if (own == 1) {
      layout.plane *= x[axis];
      continue;
    }
    const bool is_first = layout.slopes == 1;
    if (own != x[axis] || (!is_first && layout.plane != 1)) return std::nullopt;
    if (is_first) std::swap(layout.outer, layout.plane);
    layout.slopes *= own;
  }
  return layout;
}

}  // namespace walle
