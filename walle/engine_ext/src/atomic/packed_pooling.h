// PoolMax, PoolMean and PoolSum of float32 in packed channel layouts.
#pragma once
#include "atomic/atomic.h"

namespace walle {

enum class PackedPool : std::uint8_t { max, sum, mean, mean_with_pads };

// `x` is the shape [batch, channels, in...] of an operand that lies packed, as the result will. A mean is multiplied by the
// rounded inverse of its count: it may be one ulp off that of the plain layout.
std::unique_ptr<Step> make_packed_pool(std::string_view op, const Dims& x, const Attributes& attributes, const Table& table);

}  // namespace walle
