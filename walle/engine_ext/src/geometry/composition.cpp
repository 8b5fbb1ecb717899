// Element-by-element composition of regions: the check on geometry/merge.cpp.
#include <algorithm>

#include "geometry/merge.h"

namespace walle {

namespace {

// The source of an element; none where nothing was moved there.
struct Origin {
  int source = 0;
  std::int64_t address = kNowhere;

  static constexpr std::int64_t kNowhere = -1;
  bool operator==(const Origin&) const = default;
};

// Call f(source address, destination address) for every element of a region.
template <class F>
void each_element(const Region& region, F&& f) {
  std::int64_t src = region.src.offset, dst = region.dst.offset;
  std::array<std::int64_t, kMaxAxes> at{};
  for (std::int64_t left = region.count(); left > 0; --left) {
    f(src, dst);
    for (std::size_t axis = static_cast<std::size_t>(region.axes); axis-- > 0;) {
      src += region.src.stride[axis];
      dst += region.dst.stride[axis];
      if (++at[axis] < region.size[axis]) break;
      src -= region.size[axis] * region.src.stride[axis];
      dst -= region.size[axis] * region.dst.stride[axis];
      at[axis] = 0;
    }
  }
}

}  // namespace

bool is_composition(const Region& reader, std::span<const Region> writers, std::span<const Region> pieces) {
  std::int64_t between = reader.bounds(reader.src)[1], last = reader.bounds(reader.dst)[1];
  for (const Region& writer : writers) between = std::max(between, writer.bounds(writer.dst)[1]);
  for (const Region& piece : pieces)
    if (piece.bounds(piece.dst)[1] > last) return false;
  std::vector<Origin> written(static_cast<std::size_t>(between + 1)), wanted(static_cast<std::size_t>(last + 1)), found(wanted);
  for (const Region& writer : writers)
    each_element(writer,
                 [&](std::int64_t src, std::int64_t dst) { written[static_cast<std::size_t>(dst)] = {writer.source, src}; });
  each_element(reader, [&](std::int64_t src, std::int64_t dst) {
    wanted[static_cast<std::size_t>(dst)] = written[static_cast<std::size_t>(src)];
  });
  for (const Region& piece : pieces)
    each_element(piece, [&](std::int64_t src, std::int64_t dst) { found[static_cast<std::size_t>(dst)] = {piece.source, src}; });
  return wanted == found;
}

}  // namespace walle
