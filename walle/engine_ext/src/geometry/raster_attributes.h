// The regions of a raster as attributes of an operator (RasterGradient).
#pragma once
#include <span>
#include <vector>

#include "core/attributes.h"
#include "geometry/region.h"

namespace walle {

// Attributes `shape`, of the raster's source, and `regions`: for each the number of its axes, its size, the strides of source
// and result, and both offsets.
Attributes raster_attributes(const Dims& source_shape, std::span<const Region> regions);

// Return the source's shape. Throws Error (model) where it is missing or negative.
Dims read_shape(const Attributes& attributes);
// Return the regions. Throws Error (model, shape) where they are broken, or reach outside of source or result, whose extents are
// numbers of elements.
std::vector<Region> read_regions(const Attributes& attributes, std::int64_t source_extent, std::int64_t result_extent);

}  // namespace walle
