// Conversion of floating-point values to 64-bit integers, defined for every input.
#pragma once
#include <cstdint>

namespace walle {

// Returns the value rounded towards 0. Values beyond +-2^60 become +-2^60, so that a sum of a few results fits 63 bits; NaN
// becomes 0. A plain conversion of such values is undefined behaviour.
inline std::int64_t truncate_to_int64(double value) noexcept {
  constexpr std::int64_t kMax = std::int64_t{1} << 60;
  constexpr auto kLimit = static_cast<double>(kMax);
  if (value != value) return 0;
  return value > -kLimit && value < kLimit ? static_cast<std::int64_t>(value) : value > 0 ? kMax : -kMax;
}

}  // namespace walle
