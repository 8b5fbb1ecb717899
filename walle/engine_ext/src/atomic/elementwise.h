// Steps of elementwise operators: one kernel over every element of one to three inputs, broadcast.
#pragma once
#include "atomic/atomic.h"

namespace walle {

std::unique_ptr<HostStep> make_unary_step(UnaryFn kernel, std::span<const Layout> inputs, const TensorType& result);
std::unique_ptr<HostStep> make_binary_step(BinaryFn kernel, std::span<const Layout> inputs, const TensorType& result);
// Where: a condition and two operands of the result's dtype.
std::unique_ptr<HostStep> make_select_step(std::span<const Layout> inputs, const TensorType& result, const Table& table);

}  // namespace walle
