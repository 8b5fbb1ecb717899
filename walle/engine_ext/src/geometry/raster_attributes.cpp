#include "geometry/raster_attributes.h"

#include <algorithm>

namespace walle {

Attributes raster_attributes(const Dims& source_shape, std::span<const Region> regions) {
  Dims numbers;
  for (const Region& region : regions) {
    const auto axes = static_cast<std::ptrdiff_t>(region.axes);
    numbers.push_back(region.axes);
    numbers.insert(numbers.end(), region.size.begin(), region.size.begin() + axes);
    numbers.insert(numbers.end(), region.src.stride.begin(), region.src.stride.begin() + axes);
    numbers.insert(numbers.end(), region.dst.stride.begin(), region.dst.stride.begin() + axes);
    numbers.push_back(region.src.offset);
    numbers.push_back(region.dst.offset);
  }
  return {{"shape", source_shape}, {"regions", std::move(numbers)}};
}

Dims read_shape(const Attributes& attributes) {
  const auto shape = attributes.get_ints("shape");
  if (!shape || std::any_of(shape->begin(), shape->end(), [](std::int64_t size) { return size < 0; }))
    throw Error(ErrorKind::model, "attribute 'shape' of a raster is missing or negative");
  return *shape;
}

std::vector<Region> read_regions(const Attributes& attributes, std::int64_t source_extent, std::int64_t result_extent) {
  const Dims numbers = attributes.get_ints("regions").value_or(Dims());
  std::vector<Region> regions;
  for (std::size_t at = 0; at < numbers.size();) {
    const std::int64_t given = numbers[at++];
    if (given < 0 || given > kMaxAxes || numbers.size() - at < static_cast<std::size_t>(3 * given + 2))
      throw Error(ErrorKind::model, "attribute 'regions' of a raster is broken");
    const auto axes = static_cast<std::size_t>(given);
    const std::span<const std::int64_t> all(numbers);
    const auto size = all.subspan(at, axes), from = all.subspan(at + axes, axes), to = all.subspan(at + 2 * axes, axes);
    at += 3 * axes;
    std::int64_t count = 1;
    for (const std::int64_t length : size)
      if (length < 0 || __builtin_mul_overflow(count, length, &count) || count > result_extent)
        throw Error(ErrorKind::model, "attribute 'regions' of a raster writes elements twice");
    regions.push_back(Region::make(0, size, from, numbers[at], to, numbers[at + 1], source_extent, result_extent));
    at += 2;
  }
  return regions;
}

}  // namespace walle
