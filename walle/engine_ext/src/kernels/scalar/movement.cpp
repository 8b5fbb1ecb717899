#include "kernels/scalar/set.h"

#include <cstring>

namespace walle::scalar {

namespace {

// Copy in blocks, so that the cache lines of both sides stay in cache.
void transpose(const void* src, std::int64_t src_column, void* dst, std::int64_t dst_row, std::int64_t rows,
               std::int64_t columns) noexcept {
  constexpr std::int64_t kBlock = 16, kItem = 4;
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(dst);
  for (std::int64_t row = 0; row < rows; row += kBlock)
    for (std::int64_t column = 0; column < columns; column += kBlock)
      for (std::int64_t r = row; r < rows && r < row + kBlock; ++r)
        for (std::int64_t c = column; c < columns && c < column + kBlock; ++c)
          std::memcpy(to + (r * dst_row + c) * kItem, from + (c * src_column + r) * kItem, kItem);
}

void permute_lanes(const LanePart* parts, std::int64_t count, float* out, std::int64_t pixels) noexcept {
  constexpr std::int64_t kPack = 4;
  for (std::int64_t i = 0; i < pixels; ++i) {
    float all[kPack] = {};
    for (std::int64_t p = 0; p < count; ++p)
      for (std::int64_t lane = 0; lane < kPack; ++lane)
        if (parts[p].lanes[lane] >= 0) std::memcpy(&all[lane], parts[p].in + i * kPack + parts[p].lanes[lane], sizeof(float));
    std::memcpy(out + i * kPack, all, sizeof(all));
  }
}

}  // namespace

void fill_movement(Table& table) noexcept {
  table.transpose = &transpose;
  table.permute_lanes = &permute_lanes;
}

}  // namespace walle::scalar
