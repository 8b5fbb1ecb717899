#include "bindings/protect_types.h"

#include <utility>

namespace py = pybind11;

namespace walle {

namespace {

thread_local bool is_called = false;  // true between the call of a protected type and its tp_new, which follows at once

// T.__new__(T) would return an object without a C++ object, which most methods would use all the same.
PyObject* new_when_called(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  if (std::exchange(is_called, false)) return py::detail::pybind11_object_new(type, args, keywords);
  PyErr_Format(PyExc_TypeError, "objects of %.200s can only be created by calling it", type->tp_name);
  return nullptr;
}

PyObject* call(PyObject* type, PyObject* args, PyObject* keywords) {
  is_called = reinterpret_cast<PyTypeObject*>(type)->tp_new == new_when_called;
  PyObject* created = py::detail::pybind11_meta_call(type, args, keywords);
  is_called = false;
  return created;
}

PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyErr_Format(PyExc_TypeError, "objects of %.200s cannot be created", type->tp_name);
  return nullptr;
}

void make_immutable(PyTypeObject* type) {
  type->tp_flags &= ~Py_TPFLAGS_BASETYPE;
  type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
  PyType_Modified(type);
}

}  // namespace

void protect_types(const py::module_& module) {
  PyTypeObject* metatype = nullptr;
  PyTypeObject* base = nullptr;
  PyTypeObject* record = nullptr;  // the type of `__self__` of the module's functions
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(module.attr("__dict__"))) {
    if (PyCFunction_Check(value.ptr()) && record == nullptr && !PyModule_Check(PyCFunction_GET_SELF(value.ptr())))
      record = Py_TYPE(PyCFunction_GET_SELF(value.ptr()));
    if (!PyType_Check(value.ptr())) continue;
    auto* type = reinterpret_cast<PyTypeObject*>(value.ptr());
    if (py::detail::get_type_info(type) == nullptr) continue;
    metatype = Py_TYPE(type);
    base = type->tp_base;
    if (type->tp_new == py::detail::pybind11_object_new) type->tp_new = new_when_called;
    make_immutable(type);
  }
  if (base != nullptr) {
    base->tp_new = refuse_new;  // pybind11 aborts the process for a type without a C++ class
    make_immutable(base);
    metatype->tp_call = call;
    metatype->tp_new = refuse_new;
    make_immutable(metatype);
  }
  if (record != nullptr) {
    record->tp_new = refuse_new;
    PyObject* dict = PyType_GetDict(record);
    if (PyDict_DelItemString(dict, "__init__") != 0) PyErr_Clear();  // pybind11's aborts the process
    Py_DECREF(dict);
    make_immutable(record);
  }
}

}  // namespace walle
