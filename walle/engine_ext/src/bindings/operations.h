// Operations of walle.np on arrays: the registry's operators under NumPy's operand rules, views and indexing.
#pragma once
#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "core/tensor.h"
#include "operators/op.h"

namespace walle {

// Elementwise operators of the registry; operands are converted to the dtype in which the operator computes.
Tensor unary(const OpDef& op, const Tensor& x);
Tensor unary(const OpDef& op, pybind11::handle x);
Tensor unary(std::string_view op, const Tensor& x);
Tensor binary(const OpDef& op, pybind11::handle a, pybind11::handle b);
Tensor binary(std::string_view op, pybind11::handle a, pybind11::handle b);
// Returns the operator of a name. Throws Error (unsupported) for an unknown one.
const OpDef& operator_named(std::string_view name);
// Returns min(max(x, low), high); a bound may be None.
Tensor clip(const Tensor& x, pybind11::handle low, pybind11::handle high);
Tensor where(pybind11::handle condition, pybind11::handle a, pybind11::handle b);
// `op` is a reduction of the registry, or "All" or "Any".
Tensor reduce(const std::string& op, const Tensor& x, pybind11::handle axis, bool keepdims);

// Returns whether an array of dtype `target` can take results of dtype `result` in place: floats do not become integers, and
// complex numbers do not become real ones.
bool holds_kind(DType target, DType result) noexcept;
// Copies `result` into `out` and returns `out`; returns `result` where `out` is None. Throws Error (shape, dtype) where `out`
// cannot hold it.
Tensor store_in_out(Tensor result, pybind11::handle out);

// Returns x[key]: a view where the key consists of ints, slices, None and an ellipsis; a copy where it has index arrays or masks.
Tensor get_item(const Tensor& x, pybind11::handle key);
// Returns views of the sub-arrays along the first axis.
pybind11::tuple unstack(const Tensor& x);
void set_item(const Tensor& x, pybind11::handle key, pybind11::handle value);

Tensor view(const Tensor& x, Dims shape, Dims strides, std::int64_t offset);
Tensor reshaped(const Tensor& x, Dims shape);  // a view where strides allow it, else a copy; one dimension may be -1

}  // namespace walle
