// Rasters between packed layouts NC/c: [batch, blocks, pixels..., c], whose regions move channels of whole planes in any order (a
// channel shuffle, a split or concatenation that is not aligned to blocks). Decoded once, they are permutations of lanes.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "atomic/atomic.h"
#include "geometry/region.h"

namespace walle {

// A block of the destination, gathered from blocks of the sources.
struct LaneBlock {
  struct Part {
    int source;                       // kItself: the destination, whose other lanes are kept
    std::int64_t offset;              // in elements, of its first pixel
    std::vector<std::int32_t> lanes;  // lanes in the form of LanePart
  };
  static constexpr int kItself = -1;
  std::int64_t offset;  // in elements
  std::vector<Part> parts;
};

struct LaneMap {
  std::int64_t pixels = 0;
  std::vector<LaneBlock> blocks;
};

// Return the permutations that the regions are; nothing where the result is not a packed float32 value of this `pack`, a source
// has another layout, a region moves part of a plane, or there are too few pixels or too many channels for a gain.
std::optional<LaneMap> find_lane_map(std::span<const Region> regions, std::span<const Layout> sources, const TensorType& result,
                                     std::int64_t pack);

}  // namespace walle
