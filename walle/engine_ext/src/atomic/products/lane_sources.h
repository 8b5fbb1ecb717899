// Planes of packed layouts whose lanes are what the lanes of an output block read: one channel of each lane's group.
#pragma once
#include <algorithm>
#include <vector>

#include "atomic/products/convolution.h"

namespace walle {

// The lanes of one input block that an output block reads as one channel of their groups; -1: another block has it.
struct LaneSource {
  std::int64_t block;
  std::vector<std::int32_t> lanes;
};

// Return the sources of channel `in` of the groups of an output block.
inline std::vector<LaneSource> lane_sources(const ConvProblem& conv, std::int64_t block, std::int64_t in) {
  const std::int64_t pack = conv.pack(), last = std::min(conv.channels_out(), (block + 1) * pack);
  std::vector<LaneSource> sources;
  for (std::int64_t channel = block * pack; channel < last; ++channel) {
    const std::int64_t from = channel / conv.shape.out_channels * conv.shape.in_channels + in;
    if (sources.empty() || sources.back().block != from / pack)
      sources.push_back({from / pack, std::vector<std::int32_t>(static_cast<std::size_t>(pack), -1)});
    sources.back().lanes[static_cast<std::size_t>(channel % pack)] = static_cast<std::int32_t>(from % pack);
  }
  return sources;
}

// Gathers `pixels` pixels of a plane; those of input block b begin at `image` + b * `block_floats`. At most kMostLaneParts
// sources.
inline void gather_lanes(const Table& table, const std::vector<LaneSource>& sources, const float* image,
                         std::int64_t block_floats, float* plane, std::int64_t pixels) noexcept {
  LanePart parts[kMostLaneParts];
  std::int64_t count = 0;
  for (const LaneSource& source : sources) parts[count++] = {image + source.block * block_floats, source.lanes.data()};
  table.permute_lanes(parts, count, plane, pixels);
}

// Pack weights as [output block][channel of a group][tap][lane], for sums lane by lane.
Tensor pack_lane_weights(const ConvProblem& conv, std::int64_t parameter, const float* w);

}  // namespace walle
