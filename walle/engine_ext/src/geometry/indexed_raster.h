// The indexed raster: a movement whose addresses on one side also depend on a tensor of indices that is known only at run time.
// Gather, GatherElements, GatherND and the Scatter family are one each; with constant indices a Gather is plain regions instead.
#pragma once
#include <algorithm>

#include "core/attributes.h"
#include "core/stop.h"
#include "geometry/region.h"

namespace walle {

// For every coordinate c of `size`, with
//   index_k = indices[index_offset + k * index_step + sum(c * index_stride)], counted from the end of extent[k] where negative,
// the indexed address is indexed_offset + sum(c * indexed_stride) + sum_k(index_k * weight[k]), and
// the plain one is plain_offset + sum(c * plain_stride). A gather reads at the indexed address, a scatter writes there.
struct IndexedMovement {
  Dims size, indexed_stride, plain_stride, index_stride;
  std::int64_t indexed_offset = 0, plain_offset = 0, index_offset = 0, index_step = 0;
  Dims weight, extent;

  // Convert to and from attributes of the atomic operators IndexedGather and IndexedScatter (Error (model) if they are invalid).
  Attributes attributes() const;
  static IndexedMovement from(const Attributes& attributes);
  // Return whether the plain addresses are those from 0 to the number of coordinates, each once.
  bool fills_plain() const;
};

// A prepared indexed movement: it loops over the axes up to the last one that the indices depend on; for each of their
// coordinates the remaining axes are one plain region.
class IndexedRaster {
 public:
  // Extents are in elements. Throws Error (shape) if an address could lie outside for indices within their extents, or an index
  // would be read outside.
  IndexedRaster(const IndexedMovement& movement, std::int64_t indexed_extent, std::int64_t plain_extent,
                std::int64_t index_extent, bool gather);

  // Return whether each index moves one element.
  bool by_elements() const noexcept { return region_.axes == 0; }
  // Move elements of `item` bytes from `src` to `dst`, which do not overlap; return false if an index is out of its extent.
  template <class Index>
  bool gather(const Index* indices, const std::byte* src, std::byte* dst, std::size_t item) const noexcept;
  template <class Index>
  bool scatter(const Index* indices, const std::byte* src, std::byte* dst, std::size_t item) const noexcept;

  // Call move(region, indexed address, plain address) for every coordinate of the indexed axes, addresses in elements; return
  // false at the first index out of its extent. A stop ends it early.
  template <class Index, class Move>
  bool walk(const Index* indices, Move&& move) const noexcept {
    if (count_ == 0) return true;
    const std::size_t axes = movement_.size.size();
    std::array<std::int64_t, kMaxIndexAxes> at{};
    std::int64_t indexed = movement_.indexed_offset, plain = movement_.plain_offset, from = movement_.index_offset;
    // The last loop axis is the inner loop; one index per element is the common case.
    const std::size_t inner = axes > 0 ? axes - 1 : 0;
    const std::int64_t steps = axes > 0 ? movement_.size[inner] : 1;
    const std::int64_t indexed_step = axes > 0 ? movement_.indexed_stride[inner] : 0,
                       plain_step = axes > 0 ? movement_.plain_stride[inner] : 0,
                       from_step = axes > 0 ? movement_.index_stride[inner] : 0;
    const std::size_t terms = movement_.weight.size();
    const std::int64_t* weight = movement_.weight.data();
    const std::int64_t* extent = movement_.extent.data();
    StopPoll poll;
    const std::int64_t one = 4 + region_.count(), at_once = std::max<std::int64_t>(StopPoll::kInterval / 4 / one, 1);
    for (;;) {
      for (std::int64_t first = 0; first < steps; first += at_once) {
        const std::int64_t last = std::min(first + at_once, steps);
        if (!poll.proceed((last - first) * one)) return true;
        for (std::int64_t i = first; i < last && terms == 1; ++i) {
          std::int64_t index = indices[from + i * from_step];
          index += index < 0 ? extent[0] : 0;
          if (static_cast<std::uint64_t>(index) >= static_cast<std::uint64_t>(extent[0])) return false;
          move(region_, indexed + i * indexed_step + index * weight[0], plain + i * plain_step);
        }
        for (std::int64_t i = first; i < last && terms != 1; ++i) {
          std::int64_t address = indexed + i * indexed_step;
          for (std::size_t k = 0; k < terms; ++k) {
            std::int64_t index = indices[from + i * from_step + static_cast<std::int64_t>(k) * movement_.index_step];
            if (index < 0) index += extent[k];
            if (index < 0 || index >= extent[k]) return false;
            address += index * weight[k];
          }
          move(region_, address, plain + i * plain_step);
        }
      }
      std::size_t axis = inner;
      for (;;) {
        if (axis == 0) return true;
        --axis;
        indexed += movement_.indexed_stride[axis];
        plain += movement_.plain_stride[axis];
        from += movement_.index_stride[axis];
        if (++at[axis] < movement_.size[axis]) break;
        indexed -= movement_.size[axis] * movement_.indexed_stride[axis];
        plain -= movement_.size[axis] * movement_.plain_stride[axis];
        from -= movement_.size[axis] * movement_.index_stride[axis];
        at[axis] = 0;
      }
    }
  }

 private:
  static constexpr std::size_t kMaxIndexAxes = 32;

  IndexedMovement movement_;  // only the axes of the loop
  Region region_;             // over the other axes
  std::int64_t count_ = 0;
};

}  // namespace walle
