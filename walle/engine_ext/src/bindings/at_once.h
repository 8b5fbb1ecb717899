// Small dense operands go to the kernel at once: a step made ready for them would cost more than it saves. Nothing comes back
// where they are not small, dense and of dtypes that go together: such go the long way, and what is wrong is told there.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>

#include "core/tensor.h"
#include "operators/op.h"

namespace walle {

std::optional<Tensor> unary_at_once(const OpDef& op, const Tensor& x);
// Operands are tensors, or one of them is Python's number.
std::optional<Tensor> binary_at_once(const OpDef& op, pybind11::handle a, pybind11::handle b);
std::optional<Tensor> where_at_once(const Tensor& condition, const Tensor& a, const Tensor& b);
// Over one axis, or over all of them where that is None.
std::optional<Tensor> reduced_at_once(const OpDef& op, const Tensor& x, pybind11::handle axis, bool keepdims);
// Of vectors and matrices.
std::optional<Tensor> product_at_once(const Tensor& a, const Tensor& b);

}  // namespace walle
