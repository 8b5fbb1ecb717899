#include "geometry/raster.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>

namespace walle {

namespace {

// dst[i] = src[i], items of three bytes, contiguous in dst. They move as 4-byte words, each of which the next one overwrites; the
// fourth byte read belongs to the neighbouring item or the gap before it, so the item at the end is moved separately.
void move_triples(const std::byte* src, std::int64_t src_step, std::byte* dst, std::int64_t count) noexcept {
  const auto move = [&](std::size_t bytes) {
    std::memcpy(dst, src, bytes);
    src += src_step, dst += 3, --count;
  };
  if (src_step < 0 && count > 0) move(3);
  while (count > 4)
    for (int i = 0; i < 4; ++i) move(4);
  while (count > 1) move(4);
  if (count > 0) move(3);
}

// dst[i] = src[i], steps in bytes, items at any address.
template <class T>
void move_row(const std::byte* src, std::int64_t src_step, std::byte* dst, std::int64_t dst_step, std::int64_t count) noexcept {
  if (src_step == sizeof(T) && dst_step == sizeof(T)) {
    std::memcpy(dst, src, static_cast<std::size_t>(count) * sizeof(T));
    return;
  }
  T value;
  if (src_step == 0) {
    std::memcpy(&value, src, sizeof(T));
    if (dst_step == sizeof(T)) {  // a constant step lets the compiler vectorise
      for (std::int64_t i = 0; i < count; ++i) std::memcpy(dst + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) std::memcpy(dst + i * dst_step, &value, sizeof(T));
    return;
  }
  if constexpr (sizeof(T) == 3)
    if (dst_step == 3) return move_triples(src, src_step, dst, count);
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(&value, src + i * src_step, sizeof(T));
    std::memcpy(dst + i * dst_step, &value, sizeof(T));
  }
}

// Transpose to few columns, such as an image's planes to pixels; all steps except `src_column` are contiguous.
template <class T, int kColumns>
void weave(const std::byte* src, std::byte* dst, std::int64_t rows, std::int64_t src_column) noexcept {
  for (std::int64_t r = 0; r < rows; ++r, src += sizeof(T), dst += kColumns * sizeof(T))
    for (int c = 0; c < kColumns; ++c) std::memcpy(dst + c * sizeof(T), src + c * src_column, sizeof(T));
}
template <class T>
bool weave(const std::byte* src, std::byte* dst, std::int64_t rows, std::int64_t columns, std::int64_t src_column) noexcept {
  switch (columns) {
    case 2: weave<T, 2>(src, dst, rows, src_column); return true;
    case 3: weave<T, 3>(src, dst, rows, src_column); return true;
    case 4: weave<T, 4>(src, dst, rows, src_column); return true;
    default: return false;
  }
}

// Transpose the two innermost axes where the source is contiguous along the outer one: blocks keep the cache lines of both sides
// in cache. Steps in bytes; the others are contiguous.
template <class T>
void transpose(const std::byte* src, std::byte* dst, std::int64_t rows, std::int64_t columns, std::int64_t src_row,
               std::int64_t src_column, std::int64_t dst_row, std::int64_t dst_column) noexcept {
  constexpr std::int64_t kRows = 16, kColumns = sizeof(T) == 3 ? 64 : 16, kSize = sizeof(T);
  if (src_row == kSize && dst_column == kSize && dst_row == columns * kSize && weave<T>(src, dst, rows, columns, src_column))
    return;
  for (std::int64_t row = 0; row < rows; row += kRows) {
    const std::int64_t row_end = std::min(row + kRows, rows);
    for (std::int64_t column = 0; column < columns; column += kColumns) {
      const std::int64_t column_end = std::min(column + kColumns, columns);
      for (std::int64_t r = row; r < row_end; ++r)
        move_row<T>(src + r * src_row + column * src_column, src_column, dst + r * dst_row + column * dst_column, dst_column,
                    column_end - column);
    }
  }
}

// Move a T at each position of the region's first `axes` axes; strides are in elements of `item` bytes.
template <class T>
void run(const Region& region, std::size_t axes, std::int64_t item, const std::byte* src, std::byte* dst) noexcept {
  src += region.src.offset * item;
  dst += region.dst.offset * item;
  if (axes == 0) {
    std::memcpy(dst, src, sizeof(T));
    return;
  }
  const auto size = static_cast<std::int64_t>(sizeof(T));
  const std::size_t last = axes - 1;
  const auto near = [&](std::int64_t stride) { return std::abs(stride * item) == size; };
  const bool pair =
      axes >= 2 && near(region.src.stride[last - 1]) && !near(region.src.stride[last]) && near(region.dst.stride[last]);
  const std::size_t outer = pair ? last - 1 : last;
  std::array<std::int64_t, kMaxAxes> at{};
  for (;;) {
    if (pair)
      transpose<T>(src, dst, region.size[last - 1], region.size[last], region.src.stride[last - 1] * item,
                   region.src.stride[last] * item, region.dst.stride[last - 1] * item, region.dst.stride[last] * item);
    else
      move_row<T>(src, region.src.stride[last] * item, dst, region.dst.stride[last] * item, region.size[last]);
    std::size_t axis = outer;
    for (;;) {
      if (axis == 0) return;
      --axis;
      src += region.src.stride[axis] * item;
      dst += region.dst.stride[axis] * item;
      if (++at[axis] < region.size[axis]) break;
      src -= region.size[axis] * region.src.stride[axis] * item;
      dst -= region.size[axis] * region.dst.stride[axis] * item;
      at[axis] = 0;
    }
  }
}

template <std::size_t size>
using Few = std::array<std::byte, size>;

}  // namespace

void raster(const Region& region, const std::byte* src, std::byte* dst, std::size_t item) noexcept {
  if (region.count() == 0) return;
  const auto axes = static_cast<std::size_t>(region.axes);
  const auto bytes = static_cast<std::int64_t>(item);
  // A few contiguous elements, such as the channels of a pixel, move as one.
  if (axes >= 2 && region.src.stride[axes - 1] == 1 && region.dst.stride[axes - 1] == 1) {
    switch (region.size[axes - 1] * bytes) {
      case 2: return run<Few<2>>(region, axes - 1, bytes, src, dst);
      case 3: return run<Few<3>>(region, axes - 1, bytes, src, dst);
      case 4: return run<Few<4>>(region, axes - 1, bytes, src, dst);
      case 6: return run<Few<6>>(region, axes - 1, bytes, src, dst);
      case 8: return run<Few<8>>(region, axes - 1, bytes, src, dst);
      case 12: return run<Few<12>>(region, axes - 1, bytes, src, dst);
      case 16: return run<Few<16>>(region, axes - 1, bytes, src, dst);
      default: break;
    }
  }
  switch (item) {
    case 1: return run<std::uint8_t>(region, axes, bytes, src, dst);
    case 2: return run<std::uint16_t>(region, axes, bytes, src, dst);
    case 4: return run<std::uint32_t>(region, axes, bytes, src, dst);
    case 8: return run<std::uint64_t>(region, axes, bytes, src, dst);
    case 16: return run<Few<16>>(region, axes, bytes, src, dst);
    default: assert(false && "an element has 1, 2, 4, 8 or 16 bytes");
  }
}

}  // namespace walle
