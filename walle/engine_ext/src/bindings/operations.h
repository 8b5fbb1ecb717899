// What walle.np does with arrays by the registry's operators, by views and by indices, with NumPy's rules for operands.
#pragma once
#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "core/tensor.h"
#include "operators/op.h"

namespace walle {

// `op` is of the registry.
Tensor unary(const OpDef& op, const Tensor& x);
Tensor unary(const OpDef& op, pybind11::handle x);
Tensor unary(std::string_view op, const Tensor& x);
Tensor binary(const OpDef& op, pybind11::handle a, pybind11::handle b);
Tensor binary(std::string_view op, pybind11::handle a, pybind11::handle b);
// The operator of a name. Throws Error (unsupported).
const OpDef& operator_named(std::string_view name);
// min(max(x, low), high); a bound may be None.
Tensor clip(const Tensor& x, pybind11::handle low, pybind11::handle high);
Tensor where(pybind11::handle condition, pybind11::handle a, pybind11::handle b);
// `op` is also "All" or "Any", of which elements hold.
Tensor reduce(const std::string& op, const Tensor& x, pybind11::handle axis, bool keepdims);

// `result`, or `out` with the result in it where that is not None. Throws Error (shape, dtype) where it does not fit.
Tensor delivered(Tensor result, pybind11::handle out);

// x[key] as a view where the key is made of ints, slices, None and an ellipsis; a copy where it holds arrays of indices or masks.
Tensor get_item(const Tensor& x, pybind11::handle key);
// Views of the parts along the first axis.
pybind11::tuple unstacked(const Tensor& x);
void set_item(const Tensor& x, pybind11::handle key, pybind11::handle value);

Tensor view(const Tensor& x, Dims shape, Dims strides, std::int64_t offset);
Tensor reshaped(const Tensor& x, Dims shape);  // a view where strides can show it; one dimension may be -1

}  // namespace walle
