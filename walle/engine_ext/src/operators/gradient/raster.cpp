#include "operators/gradient/raster.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>

namespace walle {

namespace {

// Most elements of several layers together: 16 GiB of float32. Few regions, each small, can ask for any number.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 32;

// Axes of a view, by number.
using Axes = std::vector<std::size_t>;

// Whether no two coordinates of these axes have one address: each step is larger than the reach of all smaller ones together.
bool reads_once(const Region& region, Axes axes) {
  const auto step = [&](std::size_t axis) { return std::abs(region.src.stride[axis]); };
  std::ranges::sort(axes, {}, step);
  std::int64_t reach = 0;
  for (const std::size_t axis : axes) {
    if (step(axis) <= reach) return false;
    reach += (region.size[axis] - 1) * step(axis);
  }
  return true;
}

// Return the axes along which the region repeats elements: few and short ones, so that there are few layers.
Axes repeated_axes_of(const Region& region) {
  Axes by_size, unique_axes, repeated_axes;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(region.axes); ++axis) by_size.push_back(axis);
  std::ranges::stable_sort(by_size, std::greater(), [&](std::size_t axis) { return region.size[axis]; });
  for (const std::size_t axis : by_size) {
    unique_axes.push_back(axis);
    if (region.src.stride[axis] != 0 && reads_once(region, unique_axes)) continue;
    unique_axes.pop_back();
    repeated_axes.push_back(axis);
  }
  return repeated_axes;
}

// The layers [first, last) that a region writes, and the elements of the source that it reads there.
struct Part {
  std::int64_t first, last, low, high;
};

bool share_elements(const Part& a, const Part& b) { return a.low <= b.high && b.low <= a.high; }

// Throw Error (shape) where several layers of `source_extent` elements each are too large. One is as large as the source.
void check_layers(std::int64_t layers, std::int64_t source_extent) {
  if (layers == 1) return;
  std::int64_t elements;
  if (__builtin_mul_overflow(layers, source_extent, &elements) || elements > kMaxElements)
    throw Error(ErrorKind::shape, "the gradient of a raster needs " + std::to_string(layers) + " layers of " +
                                      std::to_string(source_extent) + " elements; at most " + std::to_string(kMaxElements) +
                                      " elements are supported: copy the part that is read many times before it is repeated");
}

}  // namespace

RasterGradient raster_gradient(std::span<const Region> regions, int source, std::int64_t source_extent,
                               std::int64_t result_extent) {
  struct Swapped {
    const Region* region;
    std::array<std::int64_t, kMaxAxes> layer_step{};  // step of each axis, in layers
    std::int64_t first_layer = 0;
  };
  RasterGradient gradient;
  std::vector<Swapped> swapped;
  std::vector<Part> parts;
  for (const Region& region : regions) {
    if (region.source != source || region.count() == 0) continue;
    Swapped one{&region};
    std::int64_t layers = 1;
    for (const std::size_t axis : repeated_axes_of(region)) {
      one.layer_step[axis] = layers;
      if (__builtin_mul_overflow(layers, region.size[axis], &layers)) layers = std::numeric_limits<std::int64_t>::max();
      check_layers(layers, source_extent);
    }
    const auto [low, high] = region.bounds(region.src);
    Part part{0, layers, low, high};
    // The first layers that fit: parts are in the order of their first layer, so that one pass finds them.
    for (const Part& other : parts) {
      if (other.first >= part.first + layers) break;
      if (share_elements(part, other)) part.first = std::max(part.first, other.last);
    }
    part.last = part.first + layers;
    check_layers(part.last, source_extent);
    one.first_layer = part.first;
    gradient.layers = std::max(gradient.layers, part.last);
    parts.insert(std::ranges::upper_bound(parts, part.first, {}, &Part::first), part);
    swapped.push_back(one);
  }
  for (const Swapped& one : swapped) {
    const Region& region = *one.region;
    const auto axes = static_cast<std::size_t>(region.axes);
    std::array<std::int64_t, kMaxAxes> to{};
    for (std::size_t axis = 0; axis < axes; ++axis) to[axis] = region.src.stride[axis] + one.layer_step[axis] * source_extent;
    gradient.regions.push_back(Region::make(0, {region.size.data(), axes}, {region.dst.stride.data(), axes}, region.dst.offset,
                                            {to.data(), axes}, region.src.offset + one.first_layer * source_extent, result_extent,
                                            gradient.layers * source_extent));
  }
  return gradient;
}

}  // namespace walle
