// Gradient of a raster: a raster with its views swapped, summed where a source is read more than once (§4.2).
#pragma once
#include <span>
#include <vector>

#include "geometry/region.h"

namespace walle {

// The raster from the gradient of the result to (layers, elements of the source). The gradient of the source is its sum over the
// layers, in which an element that is read n times has n addends. No element is written twice; those that no region writes are 0.
struct RasterGradient {
  std::vector<Region> regions;
  std::int64_t layers = 0;  // 0: the source is not read
};

// Return the gradient for one source of a raster, which its regions count as `source`. Extents are numbers of elements. Throws
// Error (shape) where several layers together have more than 2^32 elements.
RasterGradient raster_gradient(std::span<const Region> regions, int source, std::int64_t source_extent,
                               std::int64_t result_extent);

}  // namespace walle
