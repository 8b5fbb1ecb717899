#include "host/packing.h"

#include <algorithm>

namespace walle {

namespace {

// A shape [batch, channels, spatial...] as batch x channels planes of `plane` elements.
struct Planes {
  std::int64_t batch, channels, plane;

  explicit Planes(const Dims& shape) : batch(shape[0]), channels(shape[1]), plane(1) {
    for (std::size_t i = 2; i < shape.size(); ++i) plane *= shape[i];
  }
};

struct Channel {
  int source = -1;
  std::int64_t channel = 0;
  bool operator==(const Channel&) const = default;
};

// Return the source of each channel of the result; nothing where planes are not moved whole, or are moved between images.
std::optional<std::vector<Channel>> channels_of(std::span<const Dims> sources, const Dims& result,
                                                std::span<const Region> regions) {
  const Planes to(result);
  std::vector<Channel> channels(static_cast<std::size_t>(to.channels));
  for (const Region& region : regions) {
    const Dims& source = sources[static_cast<std::size_t>(region.source)];
    if (source.size() < 3) return std::nullopt;
    const Planes from(source);
    if (from.plane != to.plane || from.batch != to.batch || region.axes == 0) return std::nullopt;
    const auto last = static_cast<std::size_t>(region.axes - 1);
    const std::int64_t size = region.size[last];
    const bool dense = to.plane == 1 || (region.src.stride[last] == 1 && region.dst.stride[last] == 1 && size % to.plane == 0);
    if (!dense || region.src.offset % to.plane != 0 || region.dst.offset % to.plane != 0) return std::nullopt;
    for (std::size_t i = 0; i < last; ++i)
      if (region.src.stride[i] % to.plane != 0 || region.dst.stride[i] % to.plane != 0) return std::nullopt;
    std::array<std::int64_t, kMaxAxes> place{};
    const std::int64_t run = to.plane == 1 ? 1 : size / to.plane;
    const std::size_t outer = to.plane == 1 ? last + 1 : last;
    for (;;) {
      std::int64_t src = region.src.offset, dst = region.dst.offset;
      for (std::size_t i = 0; i < outer; ++i) {
        src += place[i] * region.src.stride[i];
        dst += place[i] * region.dst.stride[i];
      }
      for (std::int64_t p = 0; p < run; ++p) {
        const std::int64_t src_plane = src / to.plane + p, dst_plane = dst / to.plane + p;
        if (src_plane / from.channels != dst_plane / to.channels) return std::nullopt;
        const Channel given{region.source, src_plane % from.channels};
        Channel& channel = channels[static_cast<std::size_t>(dst_plane % to.channels)];
        if (channel.source >= 0 && channel != given) return std::nullopt;  // images are permuted differently
        channel = given;
      }
      std::size_t axis = outer;
      while (axis-- > 0 && ++place[axis] == region.size[axis]) place[axis] = 0;
      if (axis == static_cast<std::size_t>(-1)) break;
    }
  }
  for (const Channel& channel : channels)
    if (channel.source < 0) return std::nullopt;
  return channels;
}

}  // namespace

Dims Packing::shape(const Dims& plain) const {
  Dims result = plain;
  result[1] = blocks_of(plain[1]);
  result.push_back(pack_);
  return result;
}

std::vector<Region> Packing::between(const Dims& shape, bool to_packed) const {
  const Planes planes(shape);
  const std::int64_t full = planes.channels / pack_, rest = planes.channels % pack_;
  const std::int64_t plain_extent = planes.batch * planes.channels * planes.plane;
  const std::int64_t packed_extent = planes.batch * blocks_of(planes.channels) * planes.plane * pack_;
  std::vector<Region> regions;
  const auto add = [&](std::int64_t first, std::int64_t count, std::int64_t lanes) {
    const Dims size{planes.batch, count, planes.plane, lanes};
    const Dims plain{planes.channels * planes.plane, pack_ * planes.plane, 1, planes.plane};
    const Dims packed{blocks_of(planes.channels) * planes.plane * pack_, planes.plane * pack_, pack_, 1};
    const std::int64_t offset = first * pack_ * planes.plane;  // the same in both
    regions.push_back(to_packed ? Region::make(0, size, plain, offset, packed, offset, plain_extent, packed_extent)
                                : Region::make(0, size, packed, offset, plain, offset, packed_extent, plain_extent));
  };
  if (full > 0) add(0, full, pack_);
  if (rest > 0) add(full, 1, rest);
  return regions;
}

std::optional<std::vector<Region>> Packing::follow(std::span<const Dims> sources, const Dims& result,
                                                   std::span<const Region> regions) const {
  if (result.size() < 3 || element_count(result) == 0) return std::nullopt;
  for (const Dims& source : sources)
    if (source.size() != result.size() && element_count(source) != 1) return std::nullopt;
  auto packed = whole_channels(sources, result, regions);
  return packed ? packed : within_planes(sources, result, regions);
}

std::optional<std::vector<Region>> Packing::whole_channels(std::span<const Dims> sources, const Dims& result,
                                                           std::span<const Region> regions) const {
  const auto extent = [&](const Dims& plain) { return element_count(shape(plain)); };
  const auto channels = channels_of(sources, result, regions);
  if (!channels) return std::nullopt;
  for (const Channel& channel : *channels)  // a source of one element stays plain: it has no block to copy
    if (element_count(sources[static_cast<std::size_t>(channel.source)]) == 1) return std::nullopt;
  const Planes to(result);
  std::vector<Region> packed;
  for (std::int64_t c = 0; c < to.channels;) {
    const Channel first = (*channels)[static_cast<std::size_t>(c)];
    const Dims& source = sources[static_cast<std::size_t>(first.source)];
    std::int64_t run = 1;
    while (c + run < to.channels && (*channels)[static_cast<std::size_t>(c + run)] == Channel{first.source, first.channel + run})
      ++run;
    const std::int64_t source_channels = source[1];
    // Whole blocks where both sides are at the start of one; a last, partly filled block is copied with its padding.
    std::int64_t blocks = 0;
    if (c % pack_ == 0 && first.channel % pack_ == 0) {
      blocks = run / pack_;
      if (c + run == to.channels && first.channel + run == source_channels && run % pack_ != 0) ++blocks;
    }
    const std::int64_t image_to = blocks_of(to.channels) * to.plane * pack_,
                       image_from = blocks_of(source_channels) * to.plane * pack_;
    const std::int64_t src = first.channel / pack_ * to.plane * pack_ + first.channel % pack_;
    const std::int64_t dst = c / pack_ * to.plane * pack_ + c % pack_;
    if (blocks > 0) {
      packed.push_back(Region::make(first.source, Dims{to.batch, blocks * to.plane * pack_}, Dims{image_from, 1}, src,
                                    Dims{image_to, 1}, dst, extent(sources[static_cast<std::size_t>(first.source)]),
                                    extent(result)));
      c += std::min(run, blocks * pack_);
      continue;
    }
    const std::int64_t lanes = std::min({run, pack_ - c % pack_, pack_ - first.channel % pack_});
    packed.push_back(Region::make(first.source, Dims{to.batch, to.plane, lanes}, Dims{image_from, pack_, 1}, src,
                                  Dims{image_to, pack_, 1}, dst, extent(sources[static_cast<std::size_t>(first.source)]),
                                  extent(result)));
    c += lanes;
  }
  return packed;
}

// Where each region moves elements the same way within every plane of one source with the result's channels (or repeats one
// number).
std::optional<std::vector<Region>> Packing::within_planes(std::span<const Dims> sources, const Dims& result,
                                                          std::span<const Region> regions) const {
  const auto extent = [&](const Dims& plain) { return element_count(shape(plain)); };
  const Planes to(result);
  const std::int64_t planes = to.batch * to.channels, packed_planes = to.batch * blocks_of(to.channels);
  std::vector<Region> packed;
  for (const Region& region : regions) {
    const Dims& source = sources[static_cast<std::size_t>(region.source)];
    const bool fill = element_count(source) == 1;
    const std::int64_t from_plane = fill ? 0 : Planes(source).plane;
    if (!fill && (source[0] != to.batch || source[1] != to.channels)) return std::nullopt;
    Dims size, src, dst;
    std::int64_t covered = 1;
    for (std::size_t i = 0; i < static_cast<std::size_t>(region.axes); ++i) {
      const std::int64_t count = region.size[i], from = region.src.stride[i], step = region.dst.stride[i];
      if (step >= to.plane) {
        if (step != to.plane || from != from_plane || covered != 1) return std::nullopt;
        covered = count;
      } else if (step * count > to.plane) {  // planes and a spatial axis that step as one
        const std::int64_t inner = to.plane / step;
        if (inner * step != to.plane || count % inner != 0 || from * inner != from_plane || covered != 1) return std::nullopt;
        covered = count / inner;
        size.push_back(inner);
        src.push_back(from * pack_);
        dst.push_back(step * pack_);
      } else {
        size.push_back(count);
        src.push_back(from * pack_);
        dst.push_back(step * pack_);
      }
    }
    if (covered != planes || region.dst.offset >= to.plane ||
        (!fill && (region.src.offset < 0 || region.src.offset >= from_plane)))
      return std::nullopt;
    size.insert(size.begin(), packed_planes);
    src.insert(src.begin(), from_plane * pack_);
    dst.insert(dst.begin(), to.plane * pack_);
    size.push_back(pack_);
    src.push_back(fill ? 0 : 1);
    dst.push_back(1);
    if (size.size() > kMaxAxes) return std::nullopt;
    packed.push_back(Region::make(region.source, size, src, fill ? 0 : region.src.offset * pack_, dst, region.dst.offset * pack_,
                                  fill ? 1 : extent(sources[static_cast<std::size_t>(region.source)]), extent(result)));
  }
  return packed;
}

}  // namespace walle
