// Work of an element by kernels that pass over values once: functions that take more operations than a move, and rows.
#pragma once
#include <string_view>

namespace walle {

// Return the lane operations for one element of an operator's first operand: 0 where they take no longer than moving it.
double element_operations(std::string_view op) noexcept;

// Return the bytes moved in the time that an operator takes for each row (of the last axis) beside its elements.
double row_bytes(std::string_view op) noexcept;

}  // namespace walle
