// Tests of regions and the raster, compared with loops over coordinates.
#include <map>
#include <numeric>

#include "check.h"
#include "geometry/raster.h"

using namespace walle;

namespace {

struct Movement {
  Dims size, src, dst;
  std::int64_t src_offset = 0, dst_offset = 0, src_extent = 0, dst_extent = 0;
};

// A movement with random source strides whose destinations are distinct: a permutation of a padded box, possibly reversed.
Movement random_movement(std::mt19937_64& random, std::size_t rank) {
  Movement m;
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  m.size.resize(rank);
  m.src.resize(rank);
  m.dst.resize(rank);
  for (auto& size : m.size) size = check::whole(random, 1, 5);
  std::int64_t step = check::whole(random, 1, 2);
  for (const std::size_t axis : order) {
    m.dst[axis] = step;
    step *= m.size[axis] + check::whole(random, 0, 1);
  }
  m.dst_extent = step + 1;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    if (check::whole(random, 0, 3) == 0) {
      m.dst_offset += (m.size[axis] - 1) * m.dst[axis];
      m.dst[axis] = -m.dst[axis];
    }
    m.src[axis] = check::whole(random, -7, 7);
    if (m.src[axis] < 0) m.src_offset -= (m.size[axis] - 1) * m.src[axis];
  }
  m.src_extent = m.src_offset + 1;
  for (std::size_t axis = 0; axis < rank; ++axis)
    if (m.src[axis] > 0) m.src_extent += (m.size[axis] - 1) * m.src[axis];
  return m;
}

std::map<std::int64_t, std::int64_t> by_coordinates(const Movement& m) {
  std::map<std::int64_t, std::int64_t> moves;
  Dims at(m.size.size(), 0);
  for (;;) {
    std::int64_t src = m.src_offset, dst = m.dst_offset;
    for (std::size_t i = 0; i < at.size(); ++i) {
      src += at[i] * m.src[i];
      dst += at[i] * m.dst[i];
    }
    moves[dst] = src;
    std::size_t axis = at.size();
    while (axis > 0 && ++at[axis - 1] == m.size[axis - 1]) at[--axis] = 0;
    if (axis == 0) return moves;
  }
}

template <class T>
void compare(const Movement& m, const Region& region) {
  std::vector<T> src(static_cast<std::size_t>(m.src_extent)), dst(static_cast<std::size_t>(m.dst_extent), T{99});
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<T>(i + 100);
  auto expected = dst;
  for (const auto& [to, from] : by_coordinates(m)) expected[static_cast<std::size_t>(to)] = src[static_cast<std::size_t>(from)];
  raster(region, reinterpret_cast<const std::byte*>(src.data()), reinterpret_cast<std::byte*>(dst.data()), sizeof(T));
  CHECK(dst == expected);
}

void against_coordinates() {
  std::mt19937_64 random(1);
  for (int round = 0; round < check::rounds(3000); ++round) {
    const Movement m = random_movement(random, static_cast<std::size_t>(check::whole(random, 0, 5)));
    const Region region = Region::make(0, m.size, m.src, m.src_offset, m.dst, m.dst_offset, m.src_extent, m.dst_extent);
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(region.axes); ++axis) {
      CHECK(region.size[axis] > 1);
      CHECK(region.dst.stride[axis] > 0);
      CHECK(axis == 0 || region.dst.stride[axis - 1] >= region.dst.stride[axis]);
    }
    compare<std::uint8_t>(m, region);
    compare<std::uint16_t>(m, region);
    compare<std::uint32_t>(m, region);
    compare<std::uint64_t>(m, region);
    // Reordered axes make an equal region.
    Movement turned = m;
    std::reverse(turned.size.begin(), turned.size.end());
    std::reverse(turned.src.begin(), turned.src.end());
    std::reverse(turned.dst.begin(), turned.dst.end());
    std::int64_t distinct = 0;
    for (std::size_t i = 0; i + 1 < m.size.size(); ++i) distinct += std::abs(m.dst[i]) == std::abs(m.dst[i + 1]);
    if (distinct == 0)
      CHECK(region ==
            Region::make(0, turned.size, turned.src, m.src_offset, turned.dst, m.dst_offset, m.src_extent, m.dst_extent));
  }
}

void canonical_forms() {
  const Region whole = Region::make(0, Dims{2, 3, 4}, Dims{12, 4, 1}, 0, Dims{12, 4, 1}, 0, 24, 24);
  CHECK(whole.axes == 1 && whole.size[0] == 24 && whole.same_layout());
  const Region transposed = Region::make(0, Dims{4, 3}, Dims{1, 4}, 0, Dims{3, 1}, 0, 12, 12);
  CHECK(transposed.axes == 2);
  const Region empty = Region::make(0, Dims{3, 0}, Dims{1000, 1000}, 5000, Dims{1, 1}, 0, 0, 0);
  CHECK(empty.count() == 0);
  raster(empty, nullptr, nullptr, 4);
  const Region scalar = Region::make(0, Dims{}, Dims{}, 2, Dims{}, 1, 3, 2);
  CHECK(scalar.axes == 0 && scalar.count() == 1);
}

void refusals() {
  const Dims one{1}, five{5};
  CHECK_ERROR(Region::make(0, five, one, 0, one, 0, 4, 5), shape);
  CHECK_ERROR(Region::make(0, five, one, 0, one, 0, 5, 4), shape);
  CHECK_ERROR(Region::make(0, five, one, -1, one, 0, 5, 5), shape);
  CHECK_ERROR(Region::make(0, five, Dims{-1}, 3, one, 0, 5, 5), shape);
  CHECK_ERROR(Region::make(0, Dims{-1}, one, 0, one, 0, 5, 5), shape);
  CHECK_ERROR(Region::make(0, five, Dims{1, 1}, 0, one, 0, 5, 5), shape);
  CHECK_ERROR(Region::make(0, five, Dims{INT64_MAX / 2}, 0, one, 0, INT64_MAX, 5), shape);
  const Dims nine(9, 2);
  Dims src(9), dst(9);
  for (std::size_t i = 0; i < 9; ++i) {
    src[i] = std::int64_t{1} << i;
    dst[8 - i] = std::int64_t{1} << i;
  }
  CHECK_ERROR(Region::make(0, nine, src, 0, dst, 0, 512, 512), shape);
}

}  // namespace

int main() {
  against_coordinates();
  canonical_forms();
  refusals();
  return check::failures != 0;
}
