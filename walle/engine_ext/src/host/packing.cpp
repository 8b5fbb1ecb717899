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

// Source of each channel of a raster's result.
class ChannelSources {
 public:
  ChannelSources(std::span<const Dims* const> sources, const Dims& result)
      : sources_(sources), to_(result), channels_(static_cast<std::size_t>(to_.channels)) {}

  // False where planes are not moved whole, or are moved between images.
  bool find(std::span<const Region> regions) {
    return std::all_of(regions.begin(), regions.end(), [&](const Region& region) { return add(region); }) &&
           std::all_of(channels_.begin(), channels_.end(), [](const Channel& channel) { return channel.source >= 0; });
  }
  const std::vector<Channel>& channels() const noexcept { return channels_; }

 private:
  bool add(const Region& region) {
    const Dims& source = *sources_[static_cast<std::size_t>(region.source)];
    // A source of one element stays plain: it has no block to copy.
    if (source.size() < 3 || region.axes == 0 || element_count(source) == 1) return false;
    const Planes from(source);
    const std::int64_t plane = to_.plane;
    if (from.batch != to_.batch || from.plane != plane) return false;
    const auto last = static_cast<std::size_t>(region.axes - 1);
    const std::int64_t size = region.size[last];
    if (size == 0) return true;
    const bool dense = plane == 1 || (region.src.stride[last] == 1 && region.dst.stride[last] == 1 && size % plane == 0);
    if (!dense || region.src.offset % plane != 0 || region.dst.offset % plane != 0) return false;
    // From here on in planes: the last axis is a run of them, the axes before it step over them.
    const std::int64_t run = plane == 1 ? 1 : size / plane;
    const std::size_t outer = plane == 1 ? last + 1 : last;
    std::array<std::int64_t, kMaxAxes> place{}, src_step{}, dst_step{};
    for (std::size_t i = 0; i < outer; ++i) {
      if (region.src.stride[i] % plane != 0 || region.dst.stride[i] % plane != 0) return false;
      src_step[i] = region.src.stride[i] / plane;
      dst_step[i] = region.dst.stride[i] / plane;
    }
    std::int64_t src = region.src.offset / plane, dst = region.dst.offset / plane;
    for (;;) {
      if (!add_run(region.source, from.channels, src, dst, run)) return false;
      std::size_t axis = outer;
      while (axis-- > 0) {
        src += src_step[axis];
        dst += dst_step[axis];
        if (++place[axis] < region.size[axis]) break;
        src -= src_step[axis] * region.size[axis];
        dst -= dst_step[axis] * region.size[axis];
        place[axis] = 0;
      }
      if (axis == static_cast<std::size_t>(-1)) return true;
    }
  }

  // Adds `run` planes from plane `src` of a source of `from` channels to plane `dst` of the result.
  bool add_run(int source, std::int64_t from, std::int64_t src, std::int64_t dst, std::int64_t run) {
    while (run > 0) {
      const std::int64_t src_image = src < from ? 0 : src / from, dst_image = dst < to_.channels ? 0 : dst / to_.channels;
      if (src_image != dst_image) return false;
      const std::int64_t first = src - src_image * from, to = dst - dst_image * to_.channels;
      const std::int64_t count = std::min({run, from - first, to_.channels - to});
      for (std::int64_t c = 0; c < count; ++c) {
        const Channel given{source, first + c};
        Channel& channel = channels_[static_cast<std::size_t>(to + c)];
        if (channel.source >= 0 && channel != given) return false;  // images are permuted differently
        channel = given;
      }
      src += count;
      dst += count;
      run -= count;
    }
    return true;
  }

  std::span<const Dims* const> sources_;
  const Planes to_;
  std::vector<Channel> channels_;
};

// Return the regions that move whole channels between packed forms.
std::vector<Region> regions_of(const Packing& packing, const std::vector<Channel>& channels, std::span<const Dims* const> sources,
                               const Dims& result) {
  const std::int64_t pack = packing.pack();
  const Planes to(result);
  const std::int64_t image_to = packing.blocks_of(to.channels) * to.plane * pack, extent_to = to.batch * image_to;
  std::vector<Region> packed;
  for (std::int64_t c = 0; c < to.channels;) {
    const Channel first = channels[static_cast<std::size_t>(c)];
    std::int64_t run = 1;
    while (c + run < to.channels && channels[static_cast<std::size_t>(c + run)] == Channel{first.source, first.channel + run})
      ++run;
    const std::int64_t source_channels = (*sources[static_cast<std::size_t>(first.source)])[1];
    // Whole blocks where both sides are at the start of one; a last, partly filled block is copied with its padding.
    std::int64_t blocks = 0;
    if (c % pack == 0 && first.channel % pack == 0) {
      blocks = run / pack;
      if (c + run == to.channels && first.channel + run == source_channels && run % pack != 0) ++blocks;
    }
    const std::int64_t image_from = packing.blocks_of(source_channels) * to.plane * pack, extent_from = to.batch * image_from;
    const std::int64_t src = first.channel / pack * to.plane * pack + first.channel % pack;
    const std::int64_t dst = c / pack * to.plane * pack + c % pack;
    if (blocks > 0) {
      packed.push_back(Region::make(first.source, Dims{to.batch, blocks * to.plane * pack}, Dims{image_from, 1}, src,
                                    Dims{image_to, 1}, dst, extent_from, extent_to));
      c += std::min(run, blocks * pack);
      continue;
    }
    const std::int64_t lanes = std::min({run, pack - c % pack, pack - first.channel % pack});
    packed.push_back(Region::make(first.source, Dims{to.batch, to.plane, lanes}, Dims{image_from, pack, 1}, src,
                                  Dims{image_to, pack, 1}, dst, extent_from, extent_to));
    c += lanes;
  }
  return packed;
}

bool has_planes(std::span<const Dims* const> sources, const Dims& result) {
  if (result.size() < 3 || element_count(result) == 0) return false;
  return std::all_of(sources.begin(), sources.end(),
                     [&](const Dims* source) { return source->size() == result.size() || element_count(*source) == 1; });
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

std::optional<std::vector<Region>> Packing::follow(std::span<const Dims* const> sources, const Dims& result,
                                                   std::span<const Region> regions) const {
  if (!has_planes(sources, result)) return std::nullopt;
  ChannelSources channels(sources, result);
  if (channels.find(regions)) return regions_of(*this, channels.channels(), sources, result);
  return within_planes(sources, result, regions);
}

bool Packing::can_follow(std::span<const Dims* const> sources, const Dims& result, std::span<const Region> regions) const {
  if (!has_planes(sources, result)) return false;
  return ChannelSources(sources, result).find(regions) || within_planes(sources, result, regions).has_value();
}

// Where each region moves elements the same way within every plane of one source with the result's channels (or repeats one
// number).
std::optional<std::vector<Region>> Packing::within_planes(std::span<const Dims* const> sources, const Dims& result,
                                                          std::span<const Region> regions) const {
  const auto extent = [&](const Dims& plain) { return element_count(shape(plain)); };
  const Planes to(result);
  const std::int64_t planes = to.batch * to.channels, packed_planes = to.batch * blocks_of(to.channels);
  std::vector<Region> packed;
  for (const Region& region : regions) {
    const Dims& source = *sources[static_cast<std::size_t>(region.source)];
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
                                  fill ? 1 : extent(source), extent(result)));
  }
  return packed;
}

}  // namespace walle
