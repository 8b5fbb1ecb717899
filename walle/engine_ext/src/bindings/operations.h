// Operations of walle.np on arrays: the registry's operators under NumPy's operand rules, views and indexing.
#pragma once
#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "core/tensor.h"
#include "operators/op.h"

namespace walle {

// Returns the module walle.engine_ext.np, which loads its parts when they are first used, in a VM too. It is looked up by name
// first, because an import statement costs much more.
pybind11::object functions();

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

// Returns whether an array of dtype `target` can take results of dtype `result` in place, by NumPy's rule "same_kind": bool,
// unsigned, signed, floating and complex numbers each take those before them.
bool holds_kind(DType target, DType result) noexcept;
// Copies `result` into `out`, repeated to its shape where it may be, and returns `out`, a new reference; returns an array of
// `result` where `out` is None or null. Throws Error (shape, dtype) where `out` cannot hold it.
PyObject* new_stored(Tensor result, PyObject* out, bool may_repeat = false);

// Returns x[key]: a view where the key consists of ints, slices, None and an ellipsis; a copy where it has index arrays or masks.
Tensor get_item(const Tensor& x, pybind11::handle key);
// Returns x[key] as a new reference; a result without dimensions is a new number.
PyObject* new_item(PyObject* array, PyObject* key);
// Returns x[index] for an index in the range of the first axis, as a new reference.
PyObject* new_element(PyObject* array, std::int64_t index);
// Returns views of the sub-arrays along the first axis.
pybind11::tuple unstack(const Tensor& x);
void set_item(const Tensor& x, pybind11::handle key, pybind11::handle value);

Tensor view(const Tensor& x, Dims shape, Dims strides, std::int64_t offset);
Tensor copy_of(const Tensor& x);  // row-major
// cast(), assign() and contiguous() without the GIL where arrays are large (see computed() in released_gil.h).
Tensor computed_cast(const Tensor& x, DType dtype);
void computed_assign(const Tensor& from, const Tensor& to);
Tensor computed_contiguous(const Tensor& x);
Tensor reshaped(const Tensor& x, Dims shape);  // a view where strides allow it, else a copy; one dimension may be -1
// The same, with the elements in column-major order on both sides.
Tensor reshaped_by_columns(const Tensor& x, Dims shape);
// Returns whether NumPy's `order` ("C", "F", "A" or "K"; null is "C") means column-major order for x.
bool is_column_major(PyObject* order, const Tensor& x);

// Returns the only element as a Python number. Throws Error (shape) for any other number of elements.
pybind11::object only_element(const Tensor& x);
}  // namespace walle
