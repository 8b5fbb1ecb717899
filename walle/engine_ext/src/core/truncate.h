// The whole number that a floating one stands for.
#pragma once
#include <cstdint>

namespace walle {

// Towards 0. What lies beyond 2^60 becomes 2^60, so that sums of a few stay inside 63 bits; NaN becomes 0. A plain conversion of
// such numbers is undefined.
inline std::int64_t whole_of(double value) noexcept {
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  constexpr auto kLimit = static_cast<double>(kFar);
  if (value != value) return 0;
  return value > -kLimit && value < kLimit ? static_cast<std::int64_t>(value) : value > 0 ? kFar : -kFar;
}

}  // namespace walle
