#include "geometry/indexed_raster.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "geometry/raster.h"

namespace walle {

namespace {

// Check a view's least and greatest address.
void check(const char* side, const Dims& size, const Dims& stride, std::int64_t offset, const Dims& weight, const Dims& extent,
           std::int64_t limit) {
  std::int64_t low = offset, high = offset;
  const auto reach = [&](std::int64_t steps, std::int64_t step) {
    std::int64_t span;
    if (__builtin_mul_overflow(steps, step, &span) ||
        __builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high))
      throw Error(ErrorKind::shape, std::string("an indexed raster's ") + side + " strides leave 63 bits");
  };
  for (std::size_t i = 0; i < size.size(); ++i) reach(size[i] - 1, stride[i]);
  for (std::size_t k = 0; k < weight.size(); ++k) reach(extent[k] - 1, weight[k]);
  if (low < 0 || high >= limit)
    throw Error(ErrorKind::shape, std::string("an indexed raster's ") + side + " view reaches elements " + std::to_string(low) +
                                      " to " + std::to_string(high) + " of a tensor of " + std::to_string(limit));
}

}  // namespace

Attributes IndexedMovement::attributes() const {
  return {{"size", size},
          {"indexed_stride", indexed_stride},
          {"plain_stride", plain_stride},
          {"index_stride", index_stride},
          {"offsets", Dims{indexed_offset, plain_offset, index_offset, index_step}},
          {"weight", weight},
          {"extent", extent}};
}

IndexedMovement IndexedMovement::from(const Attributes& attributes) {
  const auto list = [&](std::string_view name) {
    if (auto numbers = attributes.get_ints(name)) return *std::move(numbers);
    throw Error(ErrorKind::model, "an indexed raster needs the attribute '" + std::string(name) + "'");
  };
  IndexedMovement movement{list("size"),   list("indexed_stride"), list("plain_stride"), list("index_stride"), 0, 0, 0, 0,
                           list("weight"), list("extent")};
  const Dims offsets = list("offsets");
  const std::size_t axes = movement.size.size();
  if (movement.indexed_stride.size() != axes || movement.plain_stride.size() != axes || movement.index_stride.size() != axes ||
      movement.weight.size() != movement.extent.size() || offsets.size() != 4)
    throw Error(ErrorKind::model, "an indexed raster's lists differ in length");
  movement.indexed_offset = offsets[0];
  movement.plain_offset = offsets[1];
  movement.index_offset = offsets[2];
  movement.index_step = offsets[3];
  return movement;
}

bool IndexedMovement::fills_plain() const {
  if (element_count(size) == 0) return true;
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // stride and size
  for (std::size_t i = 0; i < size.size(); ++i)
    if (size[i] != 1) axes.emplace_back(plain_stride[i], size[i]);
  std::sort(axes.begin(), axes.end());
  std::int64_t next = 1;
  for (const auto& [stride, count] : axes) {
    if (stride != next) return false;
    next *= count;
  }
  return plain_offset == 0;
}

IndexedRaster::IndexedRaster(const IndexedMovement& movement, std::int64_t indexed_extent, std::int64_t plain_extent,
                             std::int64_t index_extent, bool gather)
    : movement_(movement), count_(element_count(movement.size)) {
  if (count_ == 0) return;
  bool empty = false;  // no index can be valid: the first one will fail
  for (const std::int64_t extent : movement.extent) empty = empty || extent < 1;
  if (!empty)
    check("indexed", movement.size, movement.indexed_stride, movement.indexed_offset, movement.weight, movement.extent,
          indexed_extent);
  check("plain", movement.size, movement.plain_stride, movement.plain_offset, {}, {}, plain_extent);
  const auto indices = static_cast<std::int64_t>(movement.weight.size());
  if (indices > 0)
    check("index", movement.size, movement.index_stride, movement.index_offset, {movement.index_step}, {indices}, index_extent);
  std::size_t last = 0;  // loop over the axes up to the last one that the indices depend on; the others form one region
  for (std::size_t i = 0; i < movement.size.size(); ++i)
    if (movement.index_stride[i] != 0) last = i + 1;
  Dims size, indexed, plain;
  movement_.size.clear();
  movement_.indexed_stride.clear();
  movement_.plain_stride.clear();
  movement_.index_stride.clear();
  for (std::size_t i = 0; i < movement.size.size(); ++i) {
    const bool walked = i < last;
    (walked ? movement_.size : size).push_back(movement.size[i]);
    (walked ? movement_.indexed_stride : indexed).push_back(empty ? 0 : movement.indexed_stride[i]);
    (walked ? movement_.plain_stride : plain).push_back(movement.plain_stride[i]);
    if (walked) movement_.index_stride.push_back(movement.index_stride[i]);
  }
  if (movement_.size.size() > kMaxIndexAxes) throw Error(ErrorKind::shape, "an indexed raster has too many axes");
  // The region's own addresses are relative to the loop's, which are checked above; strides may be negative, so it is made with
  // offsets that keep it inside, which are then reset to 0.
  const auto lowest = [&](const Dims& stride) {
    std::int64_t low = 0;
    for (std::size_t i = 0; i < size.size(); ++i) low += stride[i] < 0 ? (size[i] - 1) * stride[i] : 0;
    return low;
  };
  const std::int64_t indexed_low = lowest(indexed), plain_low = lowest(plain);
  const Dims &src = gather ? indexed : plain, &dst = gather ? plain : indexed;
  const std::int64_t src_low = gather ? indexed_low : plain_low, dst_low = gather ? plain_low : indexed_low;
  constexpr std::int64_t kAnywhere = INT64_MAX;  // bounds were checked for the whole movement
  region_ = Region::make(0, size, src, -src_low, dst, -dst_low, kAnywhere, kAnywhere);
  region_.src.offset += src_low;
  region_.dst.offset += dst_low;
}

namespace {

// Move the piece of each index: one element, one run of elements, or a region. `gather`: read at the index, else write there.
template <class T, bool gather, class Index>
bool move_all(const IndexedRaster& raster, const Region& piece, const Index* indices, const std::byte* src,
              std::byte* dst) noexcept {
  constexpr auto kItem = static_cast<std::int64_t>(sizeof(T));
  const auto from = [&](std::int64_t indexed, std::int64_t plain) { return src + (gather ? indexed : plain) * kItem; };
  const auto to = [&](std::int64_t indexed, std::int64_t plain) { return dst + (gather ? plain : indexed) * kItem; };
  if (piece.axes == 0)
    return raster.walk(indices, [&](const Region&, std::int64_t indexed, std::int64_t plain) {
      std::memcpy(to(indexed, plain), from(indexed, plain), sizeof(T));
    });
  const bool run = piece.axes == 1 && piece.src.stride[0] == 1 && piece.dst.stride[0] == 1;
  if (run) {
    src += piece.src.offset * kItem;
    dst += piece.dst.offset * kItem;
    const std::size_t bytes = static_cast<std::size_t>(piece.size[0]) * sizeof(T);
    return raster.walk(indices, [&](const Region&, std::int64_t indexed, std::int64_t plain) {
      std::memcpy(to(indexed, plain), from(indexed, plain), bytes);
    });
  }
  return raster.walk(indices, [&](const Region& region, std::int64_t indexed, std::int64_t plain) {
    walle::raster(region, from(indexed, plain), to(indexed, plain), sizeof(T));
  });
}

template <bool gather, class Index>
bool move_items(const IndexedRaster& raster, const Region& piece, const Index* indices, const std::byte* src, std::byte* dst,
                std::size_t item) noexcept {
  switch (item) {
    case 1: return move_all<std::uint8_t, gather>(raster, piece, indices, src, dst);
    case 2: return move_all<std::uint16_t, gather>(raster, piece, indices, src, dst);
    case 4: return move_all<std::uint32_t, gather>(raster, piece, indices, src, dst);
    case 8: return move_all<std::uint64_t, gather>(raster, piece, indices, src, dst);
    default: return move_all<std::array<std::uint64_t, 2>, gather>(raster, piece, indices, src, dst);
  }
}

}  // namespace

template <class Index>
bool IndexedRaster::gather(const Index* indices, const std::byte* src, std::byte* dst, std::size_t item) const noexcept {
  return move_items<true>(*this, region_, indices, src, dst, item);
}
template <class Index>
bool IndexedRaster::scatter(const Index* indices, const std::byte* src, std::byte* dst, std::size_t item) const noexcept {
  return move_items<false>(*this, region_, indices, src, dst, item);
}
template bool IndexedRaster::gather(const std::int32_t*, const std::byte*, std::byte*, std::size_t) const noexcept;
template bool IndexedRaster::gather(const std::int64_t*, const std::byte*, std::byte*, std::size_t) const noexcept;
template bool IndexedRaster::scatter(const std::int32_t*, const std::byte*, std::byte*, std::size_t) const noexcept;
template bool IndexedRaster::scatter(const std::int64_t*, const std::byte*, std::byte*, std::size_t) const noexcept;

}  // namespace walle
