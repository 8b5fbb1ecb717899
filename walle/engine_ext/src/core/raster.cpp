#include "core/raster.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace walle {

namespace {

// dst[i] = src[i * step], elements of type T at any byte address.
template <class T>
void move_row(const std::byte* src, std::int64_t src_step, std::byte* dst, std::int64_t dst_step, std::int64_t count) noexcept {
  if (src_step == 1 && dst_step == 1) {
    std::memcpy(dst, src, static_cast<std::size_t>(count) * sizeof(T));
    return;
  }
  T value;
  if (src_step == 0) {
    std::memcpy(&value, src, sizeof(T));
    for (std::int64_t i = 0; i < count; ++i) std::memcpy(dst + i * dst_step * std::int64_t{sizeof(T)}, &value, sizeof(T));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(&value, src + i * src_step * std::int64_t{sizeof(T)}, sizeof(T));
    std::memcpy(dst + i * dst_step * std::int64_t{sizeof(T)}, &value, sizeof(T));
  }
}

// The two innermost axes where the source runs along the outer one: blocks keep both sides' lines in cache.
template <class T>
void transpose(const std::byte* src, std::byte* dst, std::int64_t rows, std::int64_t columns, std::int64_t src_column,
               std::int64_t dst_row) noexcept {
  constexpr std::int64_t kBlock = 16;
  for (std::int64_t row = 0; row < rows; row += kBlock) {
    const std::int64_t row_end = std::min(row + kBlock, rows);
    for (std::int64_t column = 0; column < columns; column += kBlock) {
      const std::int64_t column_end = std::min(column + kBlock, columns);
      for (std::int64_t r = row; r < row_end; ++r)
        for (std::int64_t c = column; c < column_end; ++c)
          std::memcpy(dst + (r * dst_row + c) * std::int64_t{sizeof(T)}, src + (c * src_column + r) * std::int64_t{sizeof(T)},
                      sizeof(T));
    }
  }
}

template <class T>
void run(const Region& region, const std::byte* src, std::byte* dst) noexcept {
  const auto axes = static_cast<std::size_t>(region.axes);
  constexpr std::int64_t kItem = sizeof(T);
  src += region.src.offset * kItem;
  dst += region.dst.offset * kItem;
  if (axes == 0) {
    std::memcpy(dst, src, sizeof(T));
    return;
  }
  const std::size_t last = axes - 1;
  const bool pair = axes >= 2 && region.src.stride[last - 1] == 1 && region.src.stride[last] != 1 && region.dst.stride[last] == 1;
  const std::size_t outer = pair ? last - 1 : last;
  std::array<std::int64_t, kMaxAxes> at{};
  for (;;) {
    if (pair)
      transpose<T>(src, dst, region.size[last - 1], region.size[last], region.src.stride[last], region.dst.stride[last - 1]);
    else
      move_row<T>(src, region.src.stride[last], dst, region.dst.stride[last], region.size[last]);
    std::size_t axis = outer;
    for (;;) {
      if (axis == 0) return;
      --axis;
      src += region.src.stride[axis] * kItem;
      dst += region.dst.stride[axis] * kItem;
      if (++at[axis] < region.size[axis]) break;
      src -= region.size[axis] * region.src.stride[axis] * kItem;
      dst -= region.size[axis] * region.dst.stride[axis] * kItem;
      at[axis] = 0;
    }
  }
}

}  // namespace

void raster(const Region& region, const std::byte* src, std::byte* dst, std::size_t item) noexcept {
  if (region.count() == 0) return;
  switch (item) {
    case 1: return run<std::uint8_t>(region, src, dst);
    case 2: return run<std::uint16_t>(region, src, dst);
    case 4: return run<std::uint32_t>(region, src, dst);
    case 8: return run<std::uint64_t>(region, src, dst);
    default: assert(false && "an element has 1, 2, 4 or 8 bytes");
  }
}

}  // namespace walle
