// Packed channel layouts as shapes and regions: [batch, channels, spatial...] kept as [batch, blocks, spatial..., pack].
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

  // The regions between a plain value of this shape and its packed form; lanes behind the last channel are not touched.
  std::vector<Region> to_packed(const Dims& plain) const { return between(plain, true); }
  std::vector<Region> to_plain(const Dims& plain) const { return between(plain, false); }

  // The regions of a raster between the packed forms of its sources (a source of one element stays as it is) and of its result,
  // all shapes plain: where it moves whole channels, or goes the same way through every plane of one source. Nothing otherwise.
  std::optional<std::vector<Region>> follow(std::span<const Dims> sources, const Dims& result,
                                            std::span<const Region> regions) const;

 private:
  std::vector<Region> between(const Dims& plain, bool to_packed) const;
  std::optional<std::vector<Region>> whole_channels(std::span<const Dims> sources, const Dims& result,
                                                    std::span<const Region> regions) const;
  std::optional<std::vector<Region>> within_planes(std::span<const Dims> sources, const Dims& result,
                                                   std::span<const Region> regions) const;

  std::int64_t pack_;
};

}  // namespace walle
