#include "geometry/region.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace walle {

namespace {

struct ViewAxis {
  std::int64_t size, src, dst;
};

void check_bounds(const char* side, std::span<const ViewAxis> axes, std::int64_t ViewAxis::* stride, std::int64_t offset,
                  std::int64_t extent) {
  std::int64_t low = offset, high = offset;
  for (const ViewAxis& axis : axes) {
    std::int64_t span;
    if (__builtin_mul_overflow(axis.size - 1, axis.*stride, &span) ||
        __builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high))
      throw Error(ErrorKind::shape, std::string("a region's ") + side + " strides leave 63 bits");
  }
  if (low < 0 || high >= extent)
    throw Error(ErrorKind::shape, std::string("a region's ") + side + " view reaches elements " + std::to_string(low) + " to " +
                                      std::to_string(high) + " of a tensor of " + std::to_string(extent));
}

// Sort the axes by destination stride, descending, and merge neighbours that step as one; return how many remain.
std::size_t merge_axes(std::span<ViewAxis> axes) {
  std::stable_sort(axes.begin(), axes.end(), [](const ViewAxis& a, const ViewAxis& b) { return a.dst > b.dst; });
  std::size_t kept = 0;
  for (const ViewAxis axis : axes) {
    if (kept > 0 && axes[kept - 1].src == axis.src * axis.size && axes[kept - 1].dst == axis.dst * axis.size)
      axes[kept - 1] = {axes[kept - 1].size * axis.size, axis.src, axis.dst};
    else
      axes[kept++] = axis;
  }
  return kept;
}

}  // namespace

int Region::axes_needed(std::span<const std::int64_t> size, std::span<const std::int64_t> src_stride,
                        std::span<const std::int64_t> dst_stride) {
  std::vector<ViewAxis> axes;
  for (std::size_t i = 0; i < size.size(); ++i) {
    if (size[i] == 0) return 1;
    if (size[i] != 1) axes.push_back({size[i], dst_stride[i] < 0 ? -src_stride[i] : src_stride[i], std::abs(dst_stride[i])});
  }
  return static_cast<int>(merge_axes(axes));
}

Region Region::make(int source, std::span<const std::int64_t> size, std::span<const std::int64_t> src_stride,
                    std::int64_t src_offset, std::span<const std::int64_t> dst_stride, std::int64_t dst_offset,
                    std::int64_t src_extent, std::int64_t dst_extent) {
  constexpr std::size_t kLimit = 64;
  if (size.size() != src_stride.size() || size.size() != dst_stride.size() || size.size() > kLimit)
    throw Error(ErrorKind::shape,
                "a region's size and strides must have one entry per axis and at most " + std::to_string(kLimit));
  Region region;
  region.source = source;
  std::array<ViewAxis, kLimit> axes;
  std::size_t count = 0;
  for (std::size_t i = 0; i < size.size(); ++i) {
    if (size[i] < 0) throw Error(ErrorKind::shape, "a region has a negative size");
    if (size[i] == 0) {  // nothing moves; the views are ignored
      region.axes = 1;
      return region;
    }
    if (size[i] != 1) axes[count++] = {size[i], src_stride[i], dst_stride[i]};
  }
  const std::span<ViewAxis> used(axes.data(), count);
  check_bounds("source", used, &ViewAxis::src, src_offset, src_extent);
  check_bounds("destination", used, &ViewAxis::dst, dst_offset, dst_extent);

  for (ViewAxis& axis : used) {
    if (axis.dst < 0) {  // reverse its direction
      src_offset += (axis.size - 1) * axis.src;
      dst_offset += (axis.size - 1) * axis.dst;
      axis = {axis.size, -axis.src, -axis.dst};
    }
  }
  const std::size_t kept = merge_axes(used);
  if (kept > kMaxAxes)
    throw Error(ErrorKind::shape, "a region needs " + std::to_string(kept) + " axes; at most " + std::to_string(kMaxAxes) +
                                      " are supported after merging");
  region.axes = static_cast<int>(kept);
  region.src.offset = src_offset;
  region.dst.offset = dst_offset;
  for (std::size_t i = 0; i < kept; ++i) {
    region.size[i] = axes[i].size;
    region.src.stride[i] = axes[i].src;
    region.dst.stride[i] = axes[i].dst;
  }
  return region;
}

std::int64_t Region::count() const noexcept {
  std::int64_t product = 1;
  for (int i = 0; i < axes; ++i) product *= size[static_cast<std::size_t>(i)];
  return product;
}

std::array<std::int64_t, 2> Region::bounds(const View& view) const noexcept {
  if (count() == 0) return {0, -1};
  std::int64_t low = view.offset, high = view.offset;
  for (std::size_t i = 0; i < static_cast<std::size_t>(axes); ++i) {
    const std::int64_t span = (size[i] - 1) * view.stride[i];
    (span < 0 ? low : high) += span;
  }
  return {low, high};
}

bool Region::same_layout() const noexcept { return src.stride == dst.stride; }

}  // namespace walle
