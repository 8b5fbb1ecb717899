// Recording: operations of walle.np on objects that stand for arrays, values of a graph that is being traced and parameters of
// walle.nn, are passed to a Python function, which records them (walle/engine_ext/nn/tracing.py).
#pragma once
#include <pybind11/pybind11.h>

#include <optional>

#include "bindings/array_object.h"

namespace walle {

// Returns whether the object is of the class that set_recorder() named, or of one derived from it.
inline bool is_recorded(pybind11::handle object) {
  PyTypeObject* type = array_types().recorded;
  return type != nullptr && object.ptr() != nullptr && PyObject_TypeCheck(object.ptr(), type);
}
// Returns whether the list or tuple has such an object.
bool has_recorded(pybind11::handle items);

// Returns what the recorder makes of the operation. Throws its Python errors.
template <class... Args>
pybind11::object record(const char* operation, Args&&... args) {
  return pybind11::reinterpret_borrow<pybind11::object>(array_types().recorder)(operation, std::forward<Args>(args)...);
}
// Returns null, or what the recorder makes of an operation of which one of the operands is recorded.
template <class... Args>
pybind11::object recorded_or_null(const char* operation, std::initializer_list<pybind11::handle> operands, const Args&... args) {
  if (array_types().recorded != nullptr)
    for (const pybind11::handle operand : operands)
      if (is_recorded(operand)) return record(operation, args...);
  return {};
}

void bind_recording(pybind11::module_& module);

}  // namespace walle
