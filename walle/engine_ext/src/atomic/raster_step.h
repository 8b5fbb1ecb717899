// Steps of rasters: the algorithm is chosen once, by the form of the regions.
#pragma once
#include <memory>
#include <span>

#include "atomic/atomic.h"
#include "geometry/region.h"

namespace walle {

// Return the step of a raster. Its algorithm() is the one that moves most of the elements: "lanes" (a permutation of lanes of
// packed layouts), "copy", "transpose", "rows" (many short copies) or "strided". `sources` are those that the regions count in.
std::unique_ptr<HostStep> make_raster_step(std::span<const Region> regions, std::span<const Layout> sources,
                                           const TensorType& result, const Table& table);

// Moves a region, by a kernel of the table where one has its form, else element by element.
void move_region(const Region& region, const std::byte* source, std::byte* destination, std::size_t item,
                 const Table& table) noexcept;

}  // namespace walle
