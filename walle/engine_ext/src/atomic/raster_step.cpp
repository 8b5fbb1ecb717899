#include "atomic/raster_step.h"

#include <algorithm>

#include "atomic/lane_map.h"
#include "core/stop.h"
#include "geometry/raster.h"
#include "kernels/image.h"

namespace walle {

namespace {

// The two axes of a transpose of four-byte items, and the others.
struct Transposed {
  std::size_t row = 0, column = 0;
  std::array<std::size_t, kMaxAxes> outer{};
  std::size_t outer_count = 0;
};

std::optional<Transposed> transposed(const Region& region) {
  const auto axes = static_cast<std::size_t>(region.axes);
  if (axes < 2 || region.dst.stride[axes - 1] != 1 || region.src.stride[axes - 1] == 1) return std::nullopt;
  Transposed found;
  found.column = found.row = axes - 1;
  for (std::size_t i = 0; i + 1 < axes; ++i) {
    if (region.src.stride[i] == 1 && found.row == found.column)
      found.row = i;
    else
      found.outer[found.outer_count++] = i;
  }
  if (found.row == found.column || region.size[found.row] < 4 || region.size[found.column] < 4) return std::nullopt;
  return found;
}

void run_transposed(const Region& region, const Transposed& axes, TransposeFn kernel, const std::byte* src,
                    std::byte* dst) noexcept {
  constexpr std::int64_t kItem = 4;
  src += region.src.offset * kItem;
  dst += region.dst.offset * kItem;
  std::array<std::int64_t, kMaxAxes> at{};
  for (;;) {
    kernel(src, region.src.stride[axes.column], dst, region.dst.stride[axes.row], region.size[axes.row],
           region.size[axes.column]);
    std::size_t i = axes.outer_count;
    for (;;) {
      if (i == 0) return;
      const std::size_t axis = axes.outer[--i];
      src += region.src.stride[axis] * kItem;
      dst += region.dst.stride[axis] * kItem;
      if (++at[i] < region.size[axis]) break;
      src -= region.size[axis] * region.src.stride[axis] * kItem;
      dst -= region.size[axis] * region.dst.stride[axis] * kItem;
      at[i] = 0;
    }
  }
}

// Return, for rows of items of a few bytes that are read from their end, how many bytes an item has; 0 for another form. The
// innermost axis is part of the item where its elements stay together, such as the channels of a pixel.
std::int64_t mirrored(const Region& region, std::size_t item) {
  auto axes = static_cast<std::size_t>(region.axes);
  std::int64_t together = 1;
  if (axes >= 2 && region.src.stride[axes - 1] == 1 && region.dst.stride[axes - 1] == 1) together = region.size[--axes];
  const std::int64_t size = together * static_cast<std::int64_t>(item);
  const bool fits = axes >= 1 && region.src.stride[axes - 1] == -together && region.dst.stride[axes - 1] == together;
  return fits && size <= 16 && size * region.size[axes - 1] >= 32 ? size : 0;
}

void run_mirrored(const Region& region, std::int64_t size, std::size_t item, ReverseFn kernel, const std::byte* src,
                  std::byte* dst) noexcept {
  const auto bytes = static_cast<std::int64_t>(item);
  const std::size_t axes = static_cast<std::size_t>(region.axes) - (size == bytes ? 0 : 1), row = axes - 1;
  const std::int64_t count = region.size[row];
  src += region.src.offset * bytes - (count - 1) * size;  // first byte of a row
  dst += region.dst.offset * bytes;
  std::array<std::int64_t, kMaxAxes> at{};
  for (;;) {
    kernel(src, size, dst, count);
    std::size_t axis = row;
    for (;;) {
      if (axis == 0) return;
      --axis;
      src += region.src.stride[axis] * bytes;
      dst += region.dst.stride[axis] * bytes;
      if (++at[axis] < region.size[axis]) break;
      src -= region.size[axis] * region.src.stride[axis] * bytes;
      dst -= region.size[axis] * region.dst.stride[axis] * bytes;
      at[axis] = 0;
    }
  }
}

// Return whether the region splits triples of bytes into planes.
bool three_planes(const Region& region, std::size_t item) {
  return item == 1 && region.axes == 2 && region.size[0] == 3 && region.src.stride[0] == 1 && region.src.stride[1] == 3 &&
         region.dst.stride[1] == 1;
}

void move_bytes(const Region& region, const std::byte* source, std::byte* destination, std::size_t item,
                const Table& table) noexcept {
  if (table.image == nullptr) return raster(region, source, destination, item);
  if (const std::int64_t size = mirrored(region, item); size > 0)
    return run_mirrored(region, size, item, table.image->reverse, source, destination);
  if (three_planes(region, item))
    return table.image->planes3(source + region.src.offset, destination + region.dst.offset, region.dst.stride[0],
                                region.size[1]);
  raster(region, source, destination, item);
}

// Calls move(part) for parts of a region whose time is milliseconds, cut along its longest axis, until a stop is requested.
template <class F>
void move_in_parts(const Region& region, F&& move) noexcept {
  constexpr std::int64_t kPart = StopPoll::kInterval / 4;  // elements
  const std::int64_t parts = region.count() / kPart;
  if (parts <= 1) return move(region);
  const auto axis =
      static_cast<std::size_t>(std::max_element(region.size.begin(), region.size.begin() + region.axes) - region.size.begin());
  StopPoll poll;
  run_in_blocks(region.size[axis], std::max<std::int64_t>(region.count() / region.size[axis], 1), poll,
                [&](std::int64_t first, std::int64_t last) {
                  Region part = region;
                  part.size[axis] = last - first;
                  part.src.offset += first * part.src.stride[axis];
                  part.dst.offset += first * part.dst.stride[axis];
                  move(part);
                });
}

// Moving an element takes about as long as this many operations of a core: a team shares a raster that takes long enough.
constexpr double kOperations = 8;

class RegionsStep final : public SharedStep {
 public:
  RegionsStep(std::span<const Region> regions, std::size_t item, const Table& table)
      : item_(item), kernel_(table.transpose), table_(&table) {
    std::int64_t most = -1;
    for (const Region& region : regions) {
      moves_.push_back({region, item == 4 ? transposed(region) : std::nullopt});
      if (region.count() <= most) continue;
      most = region.count();
      algorithm_ = name(moves_.back());
    }
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    for (const Move& move : moves_) {
      const std::int64_t rows = move.region.axes == 0 ? 1 : move.region.size[0];
      const std::int64_t pieces = std::min<std::int64_t>(rows, team.size() == 1 ? 1 : 4 * team.size());
      team.each(
          pieces,
          [&](std::int64_t i, int) {
            Region part = move.region;
            if (pieces > 1) {
              const std::int64_t first = rows * i / pieces;
              part.size[0] = rows * (i + 1) / pieces - first;
              part.src.offset += first * part.src.stride[0];
              part.dst.offset += first * part.dst.stride[0];
            }
            move_in_parts(part, [&](const Region& one) {
              if (move.transposed)
                run_transposed(one, *move.transposed, kernel_, inputs[one.source], output);
              else
                move_bytes(one, inputs[one.source], output, item_, *table_);
            });
          },
          kOperations * static_cast<double>(move.region.count()));
    }
  }
  std::string_view algorithm() const noexcept override { return algorithm_; }

 private:
  struct Move {
    Region region;
    std::optional<Transposed> transposed;
  };

  static std::string_view name(const Move& move) {
    if (move.transposed) return "transpose";
    const auto axes = static_cast<std::size_t>(move.region.axes);
    const bool dense = axes == 0 || (move.region.src.stride[axes - 1] == 1 && move.region.dst.stride[axes - 1] == 1);
    return !dense ? "strided" : axes <= 1 ? "copy" : "rows";
  }

  std::size_t item_;
  TransposeFn kernel_;
  const Table* table_;
  std::vector<Move> moves_;
  std::string_view algorithm_;
};

class LanesStep final : public SharedStep {
 public:
  LanesStep(LaneMap map, const Table& table) : map_(std::move(map)), pack_(table.pack), kernel_(table.permute_lanes) {}

  // In pieces of pixels: the passes over a block must follow each other.
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::int64_t elements = map_.pixels * pack_ * static_cast<std::int64_t>(map_.blocks.size());
    const std::int64_t pieces = std::min<std::int64_t>(
        map_.pixels, std::max<std::int64_t>(team.size() == 1 ? 1 : 4 * team.size(), elements / StopPoll::kInterval));
    team.each(
        pieces,
        [&](std::int64_t i, int) {
          const std::int64_t first = map_.pixels * i / pieces;
          run_pixels(inputs, output, first, map_.pixels * (i + 1) / pieces - first);
        },
        kOperations * static_cast<double>(map_.pixels * pack_) * static_cast<double>(map_.blocks.size()));
  }
  std::string_view algorithm() const noexcept override { return "lanes"; }

 private:
  void run_pixels(std::byte* const* inputs, std::byte* output, std::int64_t first, std::int64_t count) const noexcept {
    auto* out = reinterpret_cast<float*>(output) + first * pack_;
    for (const LaneBlock& block : map_.blocks) {
      std::array<LanePart, kMostLaneParts> parts;
      for (std::size_t i = 0; i < block.parts.size(); ++i) {
        const LaneBlock::Part& part = block.parts[i];
        const std::byte* source = part.source == LaneBlock::kItself ? output : inputs[part.source];
        parts[i] = {reinterpret_cast<const float*>(source) + part.offset + first * pack_, part.lanes.data()};
      }
      kernel_(parts.data(), static_cast<std::int64_t>(block.parts.size()), out + block.offset, count);
    }
  }

  LaneMap map_;
  std::int64_t pack_;
  PermuteLanesFn kernel_;
};

}  // namespace

void move_region(const Region& region, const std::byte* source, std::byte* destination, std::size_t item,
                 const Table& table) noexcept {
  const auto axes = item == 4 ? transposed(region) : std::nullopt;
  move_in_parts(region, [&](const Region& part) {
    if (axes)
      run_transposed(part, *axes, table.transpose, source, destination);
    else
      move_bytes(part, source, destination, item, table);
  });
}

std::unique_ptr<HostStep> make_raster_step(std::span<const Region> regions, std::span<const Layout> sources,
                                           const TensorType& result, const Table& table) {
  const bool plain = std::all_of(regions.begin(), regions.end(), [](const Region& region) {
    return region.axes <= 1 && region.src.stride[0] == 1 && region.dst.stride[0] == 1;
  });
  if (!plain)
    if (auto map = find_lane_map(regions, sources, result, table.pack))
      return std::make_unique<LanesStep>(std::move(*map), table);
  return std::make_unique<RegionsStep>(regions, item_size(result.dtype), table);
}

}  // namespace walle
