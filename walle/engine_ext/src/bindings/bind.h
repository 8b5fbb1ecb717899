// What the bindings of each area offer to the module and to each other.
#pragma once
#include <pybind11/pybind11.h>

#include "core/tensor.h"

namespace walle {

void bind_errors(pybind11::module_& module);
void bind_files(pybind11::module_& module);
void bind_ndarray(pybind11::module_& module);
void bind_operators(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_tensor(pybind11::module_& module);
void bind_vm(pybind11::module_& module);

// A view of any object that speaks the buffer protocol with a numeric format; copies nothing and keeps the buffer until the last
// Tensor on it goes. Throws Error (dtype) for other formats, and Python's TypeError for an object without a buffer.
Tensor tensor_from_buffer(pybind11::handle object);

// Of bound types whose objects are told by their type alone. pybind11 would also believe an object that has a method
// `_pybind11_conduit_v1_`, which any code can write, and take the address that it returns for the object's.
template <typename T>
inline constexpr bool told_by_type = false;
template <>
inline constexpr bool told_by_type<Tensor> = true;

// Whether the object is an ndarray, whatever it says of its class.
bool is_ndarray(pybind11::handle object);

}  // namespace walle

namespace pybind11::detail {

template <typename T>
class type_caster<T, enable_if_t<walle::told_by_type<T>>> : public type_caster_base<T> {
 public:
  bool load(handle source, bool convert) {
    return source && this->typeinfo != nullptr && PyObject_TypeCheck(source.ptr(), this->typeinfo->type) &&
           type_caster_base<T>::load(source, convert);
  }
};

}  // namespace pybind11::detail
