// Merging rasters (§4.1). Vertical: a region that reads what another raster wrote is rewritten to read that raster's own
// sources, so that successive movements become one. The algebra here is pure; plan/lower.cpp applies it to a whole graph.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "geometry/region.h"

namespace walle {

// The regions that move the same elements as `reader` but straight from the sources of `writers`. `reader` reads a tensor that
// the writers filled; each result's source is a writer's. Nothing where the movement is no short list of boxes (a reshape across
// uneven boundaries, say), or where it reads an element that no writer wrote.
std::optional<std::vector<Region>> compose(const Region& reader, std::span<const Region> writers);

// Whether `pieces` move just what `reader` reads of what `writers` wrote, to the same places: the meaning of compose, by walking
// over every element.
bool is_composition(const Region& reader, std::span<const Region> writers, std::span<const Region> pieces);

// Whether compose holds each of its answers to is_composition, and aborts where one is wrong: in debug builds, and in those with
// sanitizers.
#if defined(WALLE_CHECKED) || !defined(NDEBUG)
inline constexpr bool kCompositionsChecked = true;
#else
inline constexpr bool kCompositionsChecked = false;
#endif

}  // namespace walle
