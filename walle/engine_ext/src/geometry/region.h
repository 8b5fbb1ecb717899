// A region: one piece of data movement (§4.1). For every coordinate of a loop nest it moves the element at
// src.offset + sum(coordinate * src.stride) of a source tensor to dst.offset + sum(coordinate * dst.stride) of the destination.
//
// MNN's regions have three axes, and a movement of more is cut into many regions. Ours have up to kMaxAxes after
// canonicalisation (which leaves at most three for nearly everything), so that one movement stays one region and merging is
// algebra on a pair of regions; the raster's inner loops see the innermost two axes in either case.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace walle {

// A linear map from coordinates to element addresses.
struct View {
  std::int64_t offset = 0;
  std::array<std::int64_t, kMaxAxes> stride{};

  bool operator==(const View&) const = default;
};

struct Region {
  int source = 0;  // index of the raster's source that this region reads
  int axes = 0;
  std::array<std::int64_t, kMaxAxes> size{};
  View src, dst;

  // Make the canonical region: axes of size 1 are dropped, destination strides are positive and descending, neighbouring axes
  // that step as one are merged; a region without elements has one axis of size 0. Equal movements to the same destination by
  // nests of boxes therefore compare equal. The destination must not be written twice: the caller guarantees it, and it is not
  // checked.
  //
  // Throws Error (shape) if an element is outside [0, src_extent) or [0, dst_extent), strides exceed 63 bits, or more than
  // kMaxAxes axes remain.
  static Region make(int source, std::span<const std::int64_t> size, std::span<const std::int64_t> src_stride,
                     std::int64_t src_offset, std::span<const std::int64_t> dst_stride, std::int64_t dst_offset,
                     std::int64_t src_extent, std::int64_t dst_extent);

  // Return the axes that the canonical region of such a nest has; make() supports at most kMaxAxes.
  static int axes_needed(std::span<const std::int64_t> size, std::span<const std::int64_t> src_stride,
                         std::span<const std::int64_t> dst_stride);

  std::int64_t count() const noexcept;
  // Return the first and the last address of the view; {0, -1} for a region without elements.
  std::array<std::int64_t, 2> bounds(const View& view) const noexcept;
  // Return whether the region is a rename: the elements have the same layout in the source as in the destination, shifted by
  // src.offset - dst.offset.
  bool same_layout() const noexcept;

  bool operator==(const Region&) const = default;
};

}  // namespace walle
