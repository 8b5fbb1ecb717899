#include "bindings/sealing.h"

#include <utility>

namespace py = pybind11;

namespace walle {

namespace {

thread_local bool is_called = false;  // between the call of a sealed type and its tp_new, which follows at once

// T.__new__(T) would give an object without a C++ one, which most methods would use all the same.
PyObject* new_when_called(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  if (std::exchange(is_called, false)) return py::detail::pybind11_object_new(type, args, keywords);
  PyErr_Format(PyExc_TypeError, "%.200s is made by calling it", type->tp_name);
  return nullptr;
}

PyObject* call(PyObject* type, PyObject* args, PyObject* keywords) {
  is_called = reinterpret_cast<PyTypeObject*>(type)->tp_new == new_when_called;
  PyObject* made = py::detail::pybind11_meta_call(type, args, keywords);
  is_called = false;
  return made;
}

PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyErr_Format(PyExc_TypeError, "no %.200s can be made", type->tp_name);
  return nullptr;
}

void close(PyTypeObject* type) {
  type->tp_flags &= ~Py_TPFLAGS_BASETYPE;
  type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
  PyType_Modified(type);
}

}  // namespace

void seal_types(const py::module_& module) {
  PyTypeObject* metatype = nullptr;
  PyTypeObject* base = nullptr;
  PyTypeObject* record = nullptr;  // what a function of the module has for `__self__`
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(module.attr("__dict__"))) {
    if (PyCFunction_Check(value.ptr()) && record == nullptr) record = Py_TYPE(PyCFunction_GET_SELF(value.ptr()));
    if (!PyType_Check(value.ptr())) continue;
    auto* type = reinterpret_cast<PyTypeObject*>(value.ptr());
    if (py::detail::get_type_info(type) == nullptr) continue;
    metatype = Py_TYPE(type);
    base = type->tp_base;
    if (type->tp_new == py::detail::pybind11_object_new) type->tp_new = new_when_called;
    close(type);
  }
  if (base != nullptr) {
    base->tp_new = new_when_called;
    close(base);
    metatype->tp_call = call;
    metatype->tp_new = refuse_new;
    close(metatype);
  }
  if (record != nullptr) {
    record->tp_new = refuse_new;
    PyObject* dict = PyType_GetDict(record);
    if (PyDict_DelItemString(dict, "__init__") != 0) PyErr_Clear();  // pybind11's ends the process
    Py_DECREF(dict);
    close(record);
  }
}

}  // namespace walle
