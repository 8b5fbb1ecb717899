// Python values as tensors and back, and NumPy's rules for mixed dtypes.
#pragma once
#include <pybind11/pybind11.h>

#include "core/attributes.h"
#include "core/tensor.h"

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
// The dtype of a mix of two numbers of Python's.
DType natural_mix(DType a, DType b);
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

}  // namespace walle
