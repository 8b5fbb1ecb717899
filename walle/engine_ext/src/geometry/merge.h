// Raster merging (§4.1). Vertical: a region that reads what another raster wrote is rewritten to read that raster's own sources,
// so that successive movements become one. The algebra here is pure; plan/lower.cpp applies it to a whole graph.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "geometry/region.h"

namespace walle {

// Return the regions that move the same elements as `reader`, but directly from the sources of `writers`. `reader` reads a tensor
// that the writers filled; each result's source is a writer's. Return nothing if the movement is not a short list of boxes (a
// reshape across uneven boundaries, for example), or reads an element that no writer wrote.
std::optional<std::vector<Region>> compose(const Region& reader, std::span<const Region> writers);

// Return whether `pieces` move exactly the elements that `reader` reads of `writers`, to the same destinations: the definition of
// compose, checked element by element.
bool is_composition(const Region& reader, std::span<const Region> writers, std::span<const Region> pieces);

// Whether compose checks each result with is_composition and aborts if one is wrong: in debug builds and builds with sanitizers.
#if defined(WALLE_CHECKED) || !defined(NDEBUG)
inline constexpr bool kCompositionsChecked = true;
#else
inline constexpr bool kCompositionsChecked = false;
#endif

}  // namespace walle
