// Declarations shared by the bindings: one bind_* function for each area, and the rules of converting ndarrays.
#pragma once
#include <pybind11/pybind11.h>

#include "bindings/array_object.h"
#include "core/tensor.h"

namespace walle {

void bind_array_functions(pybind11::module_& module);
void bind_dtype(pybind11::module_& module);
void bind_errors(pybind11::module_& module);
void bind_files(pybind11::module_& module);
void bind_fourier(pybind11::module_& module);
void bind_graph(pybind11::module_& module);
void bind_ndarray(pybind11::module_& module);
void bind_operators(pybind11::module_& module);
void bind_recording(pybind11::module_& module);
void bind_search(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_tensor(pybind11::module_& module);
void bind_ufunc(pybind11::module_& module);
void bind_vm(pybind11::module_& module);

// Returns a view of any object that supports the buffer protocol with a numeric format. It copies nothing and keeps the buffer
// until the last Tensor on it is destroyed. Throws Error (dtype) for other formats, and Python's TypeError for an object without
// a buffer.
Tensor tensor_from_buffer(pybind11::handle object);
// Export of an array's memory: the slots of ndarray's type.
int get_buffer(PyObject* self, Py_buffer* view, int flags);
void release_buffer(PyObject* self, Py_buffer* view);

// The slots, attributes and most used methods of ndarray's type, a table each that ends with a null.
PyType_Slot* array_slots();
PyGetSetDef* array_attributes();
PyMethodDef* array_methods();
PyType_Slot* array_iterator_slots();

// True for bound types that are recognised by their Python type alone. By default pybind11 also accepts an object with a method
// `_pybind11_conduit_v1_`, which any code can write, and uses the address that it returns as the C++ object's.
template <typename T>
inline constexpr bool exact_type_only = false;

}  // namespace walle

namespace pybind11::detail {

template <typename T>
class type_caster<T, enable_if_t<walle::exact_type_only<T>>> : public type_caster_base<T> {
 public:
  bool load(handle source, bool convert) {
    return source && this->typeinfo != nullptr && PyObject_TypeCheck(source.ptr(), this->typeinfo->type) &&
           type_caster_base<T>::load(source, convert);
  }
};

}  // namespace pybind11::detail
