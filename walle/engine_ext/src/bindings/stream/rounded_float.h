// Floats that are rounded to decimal digits, as Python's `round` does it.
#pragma once
#include <cstdint>

namespace walle::columns {

inline constexpr std::int64_t kMaxRoundedDigits = 15;

// Returns round(number, digits); the number itself where `digits` is negative. Needs the GIL; throws std::bad_alloc.
double rounded(double number, std::int32_t digits);

}  // namespace walle::columns
