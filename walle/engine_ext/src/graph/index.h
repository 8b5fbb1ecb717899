// Conversion of tensor and node indices, which are ints, to positions in vectors.
#pragma once
#include <cstddef>

namespace walle {

inline std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }

}  // namespace walle
