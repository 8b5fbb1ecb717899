// Raster: the one movement operator. Every transform operator of the engine is a list of regions for it (§4.1).
#pragma once
#include <cstddef>

#include "geometry/region.h"

namespace walle {

// Move one region's elements of `item` bytes (1, 2, 4 or 8) from `src` to `dst`, the addresses of the tensors' element 0. Source
// and destination do not overlap. Tries, in order: one memcpy, a memcpy per row, a blocked transpose, strided loops.
void raster(const Region& region, const std::byte* src, std::byte* dst, std::size_t item) noexcept;

}  // namespace walle
