// walle.np.ufunc: an elementwise function of one or two arrays, which is an operator of the registry or a Python function. What
// NumPy gives such functions besides the call (reduce, accumulate, where=, dtype= ...) is in walle/engine_ext/np/ufuncs.py.
#include <structmember.h>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/recording.h"

namespace py = pybind11;

namespace walle {

namespace {

struct UfuncObject {
  PyObject_HEAD;
  vectorcallfunc call;
  const OpDef* op;     // null where there is a function
  PyObject* function;  // null where there is an operator
  PyObject* name;
  int nin;
};

UfuncObject* as_ufunc(PyObject* self) { return reinterpret_cast<UfuncObject*>(self); }

py::object options_function(const char* name) { return functions().attr("ufuncs").attr(name); }

PyObject* call_ufunc(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* keywords) {
  return translated([&]() -> PyObject* {
    const UfuncObject& ufunc = *as_ufunc(self);
    const Py_ssize_t count = PyVectorcall_NARGS(flags), named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    const bool only_out =
        (named == 0 && count <= ufunc.nin + 1) ||
        (named == 1 && count == ufunc.nin && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, 0), "out") == 0);
    if (count < ufunc.nin || count > ufunc.nin + 1) {
      PyErr_Format(PyExc_TypeError, "%U() takes %d arrays and `out`, %zd were given", ufunc.name, ufunc.nin, count);
      return nullptr;
    }
    if (!only_out) {
      py::dict options;
      for (Py_ssize_t i = 0; i < named; ++i) options[py::handle(PyTuple_GET_ITEM(keywords, i))] = py::handle(args[count + i]);
      py::tuple operands(static_cast<std::size_t>(ufunc.nin));
      for (int i = 0; i < ufunc.nin; ++i) operands[static_cast<std::size_t>(i)] = py::handle(args[i]);
      if (count > ufunc.nin) options["out"] = py::handle(args[ufunc.nin]);
      return options_function("call")(py::handle(self), operands, **options).release().ptr();
    }
    PyObject* out = count + named > ufunc.nin ? args[ufunc.nin] : nullptr;
    const py::handle first = args[0], last = args[ufunc.nin - 1];
    if (ufunc.function == nullptr && (is_recorded(first) || is_recorded(last))) {
      if (out != nullptr && out != Py_None) throw py::type_error("a traced array has no `out`; use what the function returns");
      const py::str op(ufunc.op->name.data(), ufunc.op->name.size());
      return (ufunc.nin == 1 ? record("unary", op, first) : record("binary", op, first, last)).release().ptr();
    }
    if (ufunc.function == nullptr)
      return new_stored(ufunc.nin == 1 ? unary(*ufunc.op, py::handle(args[0])) : binary(*ufunc.op, args[0], args[1]), out, true);
    const auto result = py::reinterpret_steal<py::object>(
        PyObject_Vectorcall(ufunc.function, args, static_cast<std::size_t>(ufunc.nin), nullptr));
    if (!result) return nullptr;
    return out != nullptr && out != Py_None ? new_stored(as_tensor(result), out, true) : result.inc_ref().ptr();
  });
}

int traverse_ufunc(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_ufunc(self)->function);
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int clear_ufunc(PyObject* self) {
  Py_CLEAR(as_ufunc(self)->function);
  return 0;
}

void dealloc_ufunc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_ufunc(self);
  Py_XDECREF(as_ufunc(self)->name);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// ufunc(name, operator or function, number of arrays).
PyObject* new_ufunc(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  PyObject *name = nullptr, *function = nullptr;
  int nin = 0;
  static const char* const names[] = {"name", "function", "nin", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "UOi:ufunc", const_cast<char**>(names), &name, &function, &nin))
    return nullptr;
  if (nin < 1 || nin > 2 || !(PyUnicode_Check(function) || PyCallable_Check(function))) {
    PyErr_SetString(PyExc_TypeError, "ufunc() takes a name, an operator's name or a function, and 1 or 2 as number of arrays");
    return nullptr;
  }
  return translated([&]() -> PyObject* {
    const OpDef* op = PyUnicode_Check(function) ? &operator_named(py::cast<std::string>(py::handle(function))) : nullptr;
    PyObject* self = type->tp_alloc(type, 0);
    if (self == nullptr) return nullptr;
    UfuncObject& ufunc = *as_ufunc(self);
    ufunc.call = call_ufunc;
    ufunc.op = op;
    ufunc.function = op == nullptr ? Py_NewRef(function) : nullptr;
    ufunc.name = Py_NewRef(name);
    ufunc.nin = nin;
    return self;
  });
}

PyObject* repr_ufunc(PyObject* self) { return PyUnicode_FromFormat("<ufunc '%U'>", as_ufunc(self)->name); }

// A method calls the function of its name in walle/engine_ext/np/ufuncs.py, with the ufunc first.
template <std::size_t at>
PyObject* ufunc_method(PyObject* self, PyObject* args, PyObject* keywords) {
  constexpr const char* kNames[] = {"reduce", "accumulate", "outer", "at", "reduceat"};
  return translated([&] {
    const py::kwargs options = keywords == nullptr ? py::kwargs() : py::reinterpret_borrow<py::kwargs>(keywords);
    return options_function(kNames[at])(py::handle(self), *py::reinterpret_borrow<py::args>(args), **options).release().ptr();
  });
}

template <std::size_t at>
PyMethodDef method_of(const char* name, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&ufunc_method<at>)), METH_VARARGS | METH_KEYWORDS,
          doc};
}

}  // namespace

void bind_ufunc(py::module_& module) {
  static PyMethodDef methods[] = {
      method_of<0>("reduce", "Combine the elements along an axis."),
      method_of<1>("accumulate", "Return the partial results of combining along an axis."),
      method_of<2>("outer", "Apply the function to all pairs of elements."),
      method_of<3>("at", "Apply the function in place at indices, once for each time an index occurs."),
      method_of<4>("reduceat", "Combine the elements of slices along an axis."),
      {nullptr, nullptr, 0, nullptr}};
  static PyMemberDef members[] = {{"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(UfuncObject, call), Py_READONLY, nullptr},
                                  {"__name__", Py_T_OBJECT_EX, offsetof(UfuncObject, name), Py_READONLY, nullptr},
                                  {"__qualname__", Py_T_OBJECT_EX, offsetof(UfuncObject, name), Py_READONLY, nullptr},
                                  {"nin", Py_T_INT, offsetof(UfuncObject, nin), Py_READONLY, "Number of arrays that it takes."},
                                  {}};
  static PyGetSetDef attributes[] = {
      {"nout", [](PyObject*, void*) { return PyLong_FromLong(1); }, nullptr, "Number of arrays that it returns.", nullptr},
      {"nargs", [](PyObject* self, void*) { return PyLong_FromLong(as_ufunc(self)->nin + 1); }, nullptr,
       "Number of arrays that it takes and returns.", nullptr},
      {"identity",
       [](PyObject* self, void*) {
         return translated([&] { return options_function("identity")(py::handle(self)).release().ptr(); });
       },
       nullptr, "Value that changes nothing, or None.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("An elementwise function of one or two arrays.")},
                                {Py_tp_new, reinterpret_cast<void*>(new_ufunc)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_ufunc)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse_ufunc)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear_ufunc)},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_repr, reinterpret_cast<void*>(repr_ufunc)},
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {Py_tp_getset, attributes},
                                {0, nullptr}};
  PyType_Spec spec{"walle.engine_ext._core.ufunc", sizeof(UfuncObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE, slots};
  auto type = py::reinterpret_steal<py::object>(PyType_FromModuleAndSpec(module.ptr(), &spec, nullptr));
  if (!type) throw py::error_already_set();
  module.attr("ufunc") = type;
}

}  // namespace walle
