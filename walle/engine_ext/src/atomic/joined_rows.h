// Rows of equal length joined element by element (added, say) in blocks: rows are joined to a first partial result, which is
// joined to a second one after kBlock rows, and so on. The error of a sum grows with the rows of a block and with the levels, not
// with the number of rows (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/table.h"

namespace walle {

class JoinedRows {
 public:
  static constexpr std::int64_t kBlock = 32;       // rows of a partial result
  static constexpr std::int64_t kBytes = 1 << 13;  // limit of a row's bytes

  JoinedRows(BinaryFn join, UnaryFn copy) noexcept : join_(join), copy_(copy) {}

  // Joins a row of `width` elements, `stride` apart; all rows have one width, of kBytes at most.
  void add(const std::byte* row, std::int64_t stride, std::int64_t width) noexcept {
    if (rows_[0] == kBlock) carry(0, width);
    add_to(0, row, stride, width);
  }
  // Joins `width` elements to the start of the last row.
  void add_start(const std::byte* row, std::int64_t width) noexcept { join_(parts_[0], 1, row, 1, parts_[0], width); }

  // Returns all rows, of which there is one at least, joined to one; valid until the next add().
  std::byte* finish(std::int64_t width) noexcept {
    for (int level = 0; level + 1 < kLevels; ++level) {
      bool more = false;
      for (int above = level + 1; above < kLevels; ++above) more = more || rows_[above] > 0;
      if (!more) return parts_[level];
      add_to(level + 1, parts_[level], 1, width);
    }
    return parts_[kLevels - 1];
  }

 private:
  static constexpr int kLevels = 4;  // the last one takes any number of rows

  void add_to(int level, const std::byte* row, std::int64_t stride, std::int64_t width) noexcept {
    if (rows_[level]++ == 0)
      copy_(row, stride, parts_[level], width);
    else
      join_(parts_[level], 1, row, stride, parts_[level], width);
  }
  void carry(int level, std::int64_t width) noexcept {
    if (level + 2 < kLevels && rows_[level + 1] == kBlock) carry(level + 1, width);
    add_to(level + 1, parts_[level], 1, width);
    rows_[level] = 0;
  }

  BinaryFn join_;
  UnaryFn copy_;
  std::int64_t rows_[kLevels] = {};
  alignas(64) std::byte parts_[kLevels][kBytes];
};

}  // namespace walle
