// Packed channel layouts as shapes and regions: [batch, channels, spatial...] stored as [batch, blocks, spatial..., pack].
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "geometry/region.h"

namespace walle {

class Packing {
 public:
  explicit Packing(std::int64_t pack) : pack_(pack) {}

  std::int64_t pack() const noexcept { return pack_; }
  std::int64_t blocks_of(std::int64_t channels) const noexcept { return (channels + pack_ - 1) / pack_; }
  Dims shape(const Dims& plain) const;

  // Return the regions between a plain value of this shape and its packed form; lanes after the last channel are not touched.
  std::vector<Region> to_packed(const Dims& plain) const { return between(plain, true); }
  std::vector<Region> to_plain(const Dims& plain) const { return between(plain, false); }

  // Return the regions of a raster between the packed forms of its sources (a source of one element stays plain) and of its
  // result, where it moves whole channels, or moves elements the same way within every plane of one source; nothing otherwise.
  // All shapes are plain ones.
  std::optional<std::vector<Region>> follow(std::span<const Dims* const> sources, const Dims& result,
                                            std::span<const Region> regions) const;
  // Return whether follow() returns regions. It makes none for whole channels, of which a channel shuffle has hundreds.
  bool can_follow(std::span<const Dims* const> sources, const Dims& result, std::span<const Region> regions) const;

 private:
  std::vector<Region> between(const Dims& plain, bool to_packed) const;
  std::optional<std::vector<Region>> within_planes(std::span<const Dims* const> sources, const Dims& result,
                                                   std::span<const Region> regions) const;

  std::int64_t pack_;
};

}  // namespace walle
