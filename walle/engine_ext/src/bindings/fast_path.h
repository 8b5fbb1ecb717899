// Fast paths for small operands: the kernel is called directly, because creating a step would cost more than it saves. Each
// function returns nothing where its operands are large, strided or of mixed dtypes; the general path then takes them and
// reports what is wrong with them.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>

#include "core/tensor.h"
#include "operators/op.h"

namespace walle {

std::optional<Tensor> fast_unary(const OpDef& op, const Tensor& x);
// Each operand is a tensor; one of them may be a Python number.
std::optional<Tensor> fast_binary(const OpDef& op, pybind11::handle a, pybind11::handle b);
std::optional<Tensor> fast_where(const Tensor& condition, const Tensor& a, const Tensor& b);
// Reduces one axis, or all of them where `axis` is None.
std::optional<Tensor> fast_reduce(const OpDef& op, const Tensor& x, pybind11::handle axis, bool keepdims);
// Multiplies vectors, matrices, and stacks of dense matrices by a vector or a matrix.
std::optional<Tensor> fast_matmul(const Tensor& a, const Tensor& b);

}  // namespace walle
