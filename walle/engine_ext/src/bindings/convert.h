// Python values as tensors and back, and NumPy's rules for mixed operands.
#pragma once
#include <pybind11/pybind11.h>

#include "core/attributes.h"
#include "core/tensor.h"
#include "graph/op.h"

namespace walle {

// A NumPy name, or Python's float (float32 here), int (int64) or bool. Throws Error (dtype) for anything else.
DType dtype_of(pybind11::handle name);

// The tensor itself, a view of a buffer, or a new tensor of a number or of nested lists: bool, int64, float32 by content.
// Python's TypeError for anything else.
Tensor as_tensor(pybind11::handle value);
// The same as `dtype`, converted where it has another.
Tensor as_tensor(pybind11::handle value, DType dtype);
bool is_number(pybind11::handle value);
// The tensor that an ndarray is, null for any other object.
const Tensor* held(pybind11::handle value);
// bool, int64 or float32.
DType natural_dtype(pybind11::handle number);
// A Python number among arrays takes their dtype where that can hold its kind (NumPy's "weak" scalars).
DType with_number(DType array, DType number);
// Whether an int is one of the numbers of an integer dtype; true for what is no int, and for other dtypes.
bool fits(pybind11::handle number, DType dtype);
// Writes a number of Python's; the address is aligned for the dtype. OverflowError where an int does not fit.
void put_number(pybind11::handle number, DType dtype, std::byte* address);
// A number of Python's as a 0-d tensor. OverflowError where an int does not fit.
Tensor scalar(pybind11::handle number, DType dtype);

// Python's number of the element at an address, and nested lists of a whole tensor.
pybind11::object element(const Tensor& tensor, const std::byte* address);
pybind11::object nested_list(const Tensor& tensor);

// The dtype that holds both (NumPy's promotion over our six types).
DType promote(DType a, DType b);
// float32 for float32, bool and uint8; float64 for float64, int32 and int64.
DType floating(DType dtype) noexcept;

Attributes attributes_of(const pybind11::dict& items);
Dims dims_of(pybind11::handle numbers);  // an int or a sequence of ints

// Operators of walle.np with its dtype rules; `op` is of the registry.
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
