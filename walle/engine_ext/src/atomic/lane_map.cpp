#include "atomic/lane_map.h"

#include <algorithm>
#include <cmath>

#include "kernels/table.h"

namespace walle {

namespace {

// A permutation is faster where many pixels share it. It takes memory for each channel.
constexpr std::int64_t kLeastPixels = 2, kMostChannels = 1 << 13;

// Return the pixels of a packed shape; 0 where the shape is not packed.
std::int64_t pixels_of(const Dims& shape, std::int64_t pack) {
  if (shape.size() < 3 || shape.back() != pack) return 0;
  std::int64_t pixels = 1;
  for (std::size_t axis = 2; axis + 1 < shape.size(); ++axis) pixels *= shape[axis];
  return pixels;
}

struct Axis {
  std::int64_t size, src, dst;
};

// The region's axes but for the one of pixels; nothing where it does not move whole planes. A fill's source stands still.
std::optional<std::vector<Axis>> channel_axes(const Region& region, bool is_fill, std::int64_t pixels, std::int64_t pack) {
  std::vector<Axis> axes;
  bool planes = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(region.axes); ++i) {
    const Axis axis{region.size[i], region.src.stride[i], region.dst.stride[i]};
    const std::int64_t plane = pixels * pack, moves = is_fill ? 0 : 1;
    if (is_fill && axis.src != 0) return std::nullopt;
    if (!planes && axis.dst == pack && axis.src == pack * moves && axis.size % pixels == 0) {
      planes = true;  // blocks of them may follow each other
      if (axis.size > pixels) axes.push_back({axis.size / pixels, plane * moves, plane});
    } else if (!planes && axis.dst == 1 && axis.src == moves && axis.size % plane == 0) {
      planes = true;
      if (axis.size > plane) axes.push_back({axis.size / plane, plane * moves, plane});
      axes.push_back({pack, moves, 1});
    } else {
      axes.push_back(axis);
    }
  }
  if (!planes) return std::nullopt;
  return axes;
}

// The source of each lane of each block of the destination.
struct Origin {
  static constexpr int kNone = -1, kZero = -2;
  int source = kNone;
  std::int64_t block = 0;
  std::int32_t lane = 0;
};

bool decode(const Region& region, bool is_fill, std::int64_t pixels, std::int64_t pack, std::vector<Origin>& origins) {
  const auto axes = channel_axes(region, is_fill, pixels, pack);
  if (!axes) return false;
  std::int64_t count = 1;
  for (const Axis& axis : *axes) count *= axis.size;
  const std::int64_t plane = pixels * pack;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t from = region.src.offset, to = region.dst.offset, rest = i;
    for (const Axis& axis : *axes) {
      from += rest % axis.size * axis.src;
      to += rest % axis.size * axis.dst;
      rest /= axis.size;
    }
    if (from % plane >= pack || to % plane >= pack) return false;
    origins[static_cast<std::size_t>(to / plane * pack + to % plane)] = {is_fill ? Origin::kZero : region.source, from / plane,
                                                                         static_cast<std::int32_t>(from % plane)};
  }
  return true;
}

// Splits into as many passes as needed; each keeps the lanes of those before.
void gather(std::span<const Origin> lanes, std::int64_t place, std::int64_t plane, std::vector<LaneBlock>& blocks) {
  std::vector<LaneBlock::Part> parts;
  std::vector<std::int32_t> kept(lanes.size(), -1);
  bool keeps = false;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].source != Origin::kZero) kept[i] = static_cast<std::int32_t>(i);
    keeps = keeps || lanes[i].source == Origin::kNone;
    if (lanes[i].source < 0) continue;
    const std::int64_t offset = lanes[i].block * plane;
    auto part = std::find_if(parts.begin(), parts.end(), [&](const LaneBlock::Part& known) {
      return known.source == lanes[i].source && known.offset == offset;
    });
    if (part == parts.end()) part = parts.insert(part, {lanes[i].source, offset, std::vector<std::int32_t>(lanes.size(), -1)});
    part->lanes[i] = lanes[i].lane;
  }
  constexpr auto kMost = static_cast<std::size_t>(kMostLaneParts);
  keeps = keeps || parts.empty() || parts.size() > kMost;
  do {
    LaneBlock& block = blocks.emplace_back(LaneBlock{place, {}});
    if (keeps) block.parts.push_back({LaneBlock::kItself, place, kept});
    while (!parts.empty() && block.parts.size() < kMost) {
      block.parts.push_back(std::move(parts.back()));
      parts.pop_back();
    }
    keeps = true;
  } while (!parts.empty());
}

bool is_zero(const Layout& source) {
  if (source.constant == nullptr || source.dtype != DType::f32) return false;
  const auto* first = source.constant->data<float>();
  return std::all_of(first, first + source.constant->size(), [](float x) { return x == 0 && !std::signbit(x); });
}

}  // namespace

std::optional<LaneMap> find_lane_map(std::span<const Region> regions, std::span<const Layout> sources, const TensorType& result,
                                     std::int64_t pack) {
  const std::int64_t pixels = pixels_of(result.shape, pack);
  if (pixels < kLeastPixels || result.dtype != DType::f32 || element_count(result.shape) / pixels > kMostChannels)
    return std::nullopt;
  std::vector<Origin> origins(static_cast<std::size_t>(element_count(result.shape) / pixels));
  for (const Region& region : regions) {
    if (region.count() == 0) continue;
    const Layout& source = sources[static_cast<std::size_t>(region.source)];
    const bool is_fill = is_zero(source);
    if (!is_fill && pixels_of(source.shape, pack) != pixels) return std::nullopt;
    if (!decode(region, is_fill, pixels, pack, origins)) return std::nullopt;
  }
  LaneMap map;
  map.pixels = pixels;
  const auto lanes = static_cast<std::size_t>(pack);
  for (std::size_t first = 0; first < origins.size(); first += lanes) {
    const auto block = std::span(origins).subspan(first, lanes);
    if (std::any_of(block.begin(), block.end(), [](const Origin& origin) { return origin.source != Origin::kNone; }))
      gather(block, static_cast<std::int64_t>(first) * pixels, pixels * pack, map.blocks);
  }
  return map;
}

}  // namespace walle
