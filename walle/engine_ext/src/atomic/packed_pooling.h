// PoolMax, PoolMean and PoolSum of float32 in packed channel layouts.
#pragma once
#include "atomic/atomic.h"

namespace walle {

enum class PackedPool : std::uint8_t { max, sum, mean, mean_with_pads };

// Return a step whose operand and result are packed; `x` is the operand's plain shape [batch, channels, in...]. A mean is
// multiplied by the rounded inverse of its count: it may differ by one ulp from that of the plain layout.
std::unique_ptr<HostStep> make_packed_pool(std::string_view op, const Dims& x, const Attributes& attributes, const Table& table);

}  // namespace walle
