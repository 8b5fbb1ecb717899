// Conversion between Python values and tensors, and NumPy's rules for mixed dtypes.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>

#include "bindings/array_object.h"
#include "core/attributes.h"
#include "core/tensor.h"

namespace walle {

// Returns the dtype of a dtype object, of a NumPy name, or of Python's float (float32 here), complex (complex64), int (int64) or
// bool; nothing for anything else.
std::optional<DType> find_dtype(pybind11::handle given);
// The same; throws Error (dtype) for anything else.
DType dtype_of(pybind11::handle name);

// Returns an ndarray's tensor, a view of a buffer, or a new tensor of a number or of nested lists (bool, int64, float32 or
// complex64 by content). Throws Python's TypeError for anything else.
Tensor as_tensor(pybind11::handle value);
// The same, converted to `dtype`.
Tensor as_tensor(pybind11::handle value, DType dtype);
// Returns the tensor converted to `dtype`, with NumPy's ComplexWarning where that discards imaginary parts.
Tensor converted(const Tensor& tensor, DType dtype);
bool is_number(pybind11::handle value);
// Returns bool, int64, float32 or complex64 for a Python number.
DType natural_dtype(pybind11::handle number);
// Returns the common dtype of two Python numbers, given their natural dtypes.
DType promote_numbers(DType a, DType b);
// Returns the common dtype of an array and a Python number: the array's where it can hold numbers of that kind (NumPy's "weak"
// scalars).
DType promote_with_number(DType array, DType number);
// Returns whether an int is in the range of an integer dtype; true for numbers that are not ints and for other dtypes.
bool fits(pybind11::handle number, DType dtype);
// Writes a Python number to an address that is aligned for the dtype. Throws OverflowError where an int is out of range.
void write_number(pybind11::handle number, DType dtype, std::byte* address);
// Returns a Python number as a 0-d tensor. Throws OverflowError where an int is out of range.
Tensor scalar(pybind11::handle number, DType dtype);

// Returns the element of a dtype at an address as a Python number.
pybind11::object element(DType dtype, const std::byte* address);
// Returns a tensor as nested lists of Python numbers.
pybind11::object nested_list(const Tensor& tensor);

// Returns the common dtype of two arrays (NumPy's promotion). Throws Error (dtype) for storage-only types.
DType promote(DType a, DType b);
// Returns a floating or complex dtype itself, float64 for integers of 32 and 64 bits, float32 for bool and smaller integers.
DType floating_dtype(DType dtype) noexcept;
// Returns the complex dtype of a dtype's numbers: complex128 for float64 and integers of 32 and 64 bits, else complex64.
DType complex_dtype(DType dtype) noexcept;

Attributes attributes_of(const pybind11::dict& items);
std::int64_t size_of(pybind11::handle number);  // accepts an int, or what has __index__
Dims dims_of(pybind11::handle numbers);         // an int or a sequence of ints

}  // namespace walle
