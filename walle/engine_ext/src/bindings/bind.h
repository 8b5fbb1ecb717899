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

}  // namespace walle
