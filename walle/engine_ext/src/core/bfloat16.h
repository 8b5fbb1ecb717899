// Conversion of float32 to bfloat16 for packed weights: rounded to nearest, ties to even; NaN stays NaN.
#pragma once
#include <bit>
#include <cstdint>

namespace walle {

inline std::uint16_t to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace walle
