// Sizes of the parts of a step's scratch, which begin at whole lines of the cache.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/tensor.h"

namespace walle {

// Return the bytes of a part of `bytes`, with room for a vector kernel's last whole vector.
inline std::size_t scratch_part(std::size_t bytes) noexcept { return (bytes / Storage::kAlignment + 1) * Storage::kAlignment; }

// Return the float32 numbers of a part of `count`, which are used in whole lines.
inline std::int64_t scratch_floats(std::int64_t count) noexcept {
  constexpr std::int64_t kLine = Storage::kAlignment / static_cast<std::int64_t>(sizeof(float));
  return (count + kLine - 1) / kLine * kLine;
}

}  // namespace walle
