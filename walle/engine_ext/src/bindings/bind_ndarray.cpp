// Attributes and methods of walle.np.ndarray. Functions that need more than one operator are in walle/engine_ext/np/.
#include <structmember.h>

#include <cstring>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/fast_call.h"
#include "bindings/operations.h"
#include "operators/eager.h"
#include "vm/array_loans.h"

namespace py = pybind11;

namespace walle {

namespace {

// The type while methods are added that need not be fast: they are pybind11's functions.
struct ArrayClass {
  py::object type;

  template <class Function, class... Extra>
  void def(const char* name, Function&& function, const Extra&... extra) {
    type.attr(name) = py::cpp_function(std::forward<Function>(function), py::name(name), py::is_method(type),
                                       py::sibling(py::getattr(type, name, py::none())), extra...);
  }
};

PyObject* tuple_of(const Dims& dims, std::int64_t factor = 1) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(dims.size()));
  for (std::size_t i = 0; tuple != nullptr && i < dims.size(); ++i) {
    PyObject* number = PyLong_FromLongLong(dims[i] * factor);
    if (number == nullptr)
      Py_CLEAR(tuple);
    else
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), number);
  }
  return tuple;
}

// Converts the arguments of f(2, 3) and of f((2, 3)) to the same dimensions.
Dims dims_of_args(const py::args& args) { return args.size() == 1 ? dims_of(args[0]) : dims_of(args); }

Tensor transposed(const Tensor& x, const py::args& args) {
  const std::size_t rank = x.shape().size();
  Dims order(rank);
  for (std::size_t i = 0; i < rank; ++i) order[i] = static_cast<std::int64_t>(rank - 1 - i);
  if (args.size() > 0 && !args[0].is_none()) order = dims_of_args(args);
  if (order.size() != rank)
    throw Error(ErrorKind::shape,
                "transpose by " + to_string(order) + " does not name every axis of an array of shape " + to_string(x.shape()));
  Dims shape(rank), strides(rank);
  std::vector<bool> seen(rank, false);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::size_t axis = normal_axis(order[i], rank);
    if (seen[axis]) throw Error(ErrorKind::shape, "transpose by " + to_string(order) + " names an axis twice");
    seen[axis] = true;
    shape[i] = x.shape()[axis];
    strides[i] = x.strides()[axis];
  }
  return view(x, std::move(shape), std::move(strides), x.offset());
}

Tensor swapped(const Tensor& x, std::int64_t axis1, std::int64_t axis2) {
  Dims shape = x.shape(), strides = x.strides();
  const std::size_t a = normal_axis(axis1, shape.size()), b = normal_axis(axis2, shape.size());
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return view(x, std::move(shape), std::move(strides), x.offset());
}

py::object view_of(py::handle array, Tensor tensor) {
  return py::reinterpret_steal<py::object>(new_view(std::move(tensor), array.ptr()));
}

// Returns a view of the real parts (`part` 0) or the imaginary parts (1) of a complex array.
Tensor part_of(const Tensor& x, std::int64_t part) {
  Dims strides = x.strides();
  for (std::int64_t& stride : strides) stride *= 2;
  return {x.storage(), part_dtype(x.dtype()), x.shape(), std::move(strides), 2 * x.offset() + part};
}
Tensor real(const Tensor& x) { return is_complex(x.dtype()) ? part_of(x, 0) : x; }
// Of a real array: read-only zeros, as in NumPy.
Tensor imag(const Tensor& x) {
  if (is_complex(x.dtype())) return part_of(x, 1);
  const Tensor zero = Tensor::empty(x.dtype(), {});
  std::memset(zero.raw(), 0, item_size(x.dtype()));
  return {vm::read_only(zero.storage()), x.dtype(), x.shape(), Dims(x.shape().size(), 0), 0};
}
void set_part(const Tensor& part, PyObject* value) {
  if (value == nullptr) throw py::type_error("a part of an array cannot be deleted");
  set_item(part, py::ellipsis(), value);
}

// Returns the result of a function of a module of walle.np, called with the array.
PyObject* call_function(const char* module, const char* name, PyObject* array) {
  return translated([&] { return functions().attr(module).attr(name)(py::handle(array)).release().ptr(); });
}

// Binds methods that call the function of walle.np with the array as first argument; its module is imported on first use.
void bind_functions(ArrayClass& cls) {
  for (const char* name : {"argpartition", "argsort", "choose", "clip", "compress", "cumprod", "cumsum", "diagonal", "nonzero",
                           "ptp", "put", "repeat", "round", "searchsorted", "squeeze", "std", "take", "trace", "var"}) {
    cls.def(
        name,
        [name](const py::object& self, const py::args& args, const py::kwargs& kwargs) {
          return functions().attr(name)(self, *args, **kwargs);
        },
        "Call the function of walle.np of this name.");
  }
  for (const char* name : {"sort", "partition"})
    cls.def(
        name,
        [name](const py::object& self, const py::args& args, const py::kwargs& kwargs) {
          const py::object sorted = functions().attr(name)(self, *args, **kwargs);
          computed_assign(tensor_of(sorted), tensor_of(self));
        },
        "Call the function of walle.np of this name and store its result in place.");
}

// A reduction as a method: axis, dtype, out, keepdims, initial, where. Calls with `initial` or `where` go to the function of
// walle.np.
struct Reduction {
  const char *name, *op;
  bool has_dtype;
};
constexpr Reduction kReductions[] = {{"sum", "ReduceSum", true},  {"prod", "ReduceProd", true}, {"mean", "ReduceMean", true},
                                     {"max", "ReduceMax", false}, {"min", "ReduceMin", false},  {"argmax", "ArgMax", false},
                                     {"argmin", "ArgMin", false}, {"all", "All", false},        {"any", "Any", false}};

template <std::size_t at>
PyObject* reduction_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&]() -> PyObject* {
    constexpr Reduction reduction = kReductions[at];
    static const std::string op = reduction.op;
    if (count == 0 && keywords == nullptr) return new_array(reduce(op, tensor_of(self), Py_None, false));
    PyObject *axis, *dtype = nullptr, *out, *keepdims, *initial, *where;
    if constexpr (reduction.has_dtype) {
      constexpr Signature<6> signature{reduction.name, {"axis", "dtype", "out", "keepdims", "initial", "where"}};
      const auto values = parse(signature, args, count, keywords);
      axis = values[0], dtype = values[1], out = values[2], keepdims = values[3], initial = values[4], where = values[5];
    } else {
      constexpr Signature<5> signature{reduction.name, {"axis", "out", "keepdims", "initial", "where"}};
      const auto values = parse(signature, args, count, keywords);
      axis = values[0], out = values[1], keepdims = values[2], initial = values[3], where = values[4];
    }
    if (axis == nullptr) axis = Py_None;
    if (is_given(initial) || is_given(where)) {
      py::dict options;
      if (is_given(dtype)) options["dtype"] = py::handle(dtype);
      if (is_given(keepdims)) options["keepdims"] = py::handle(keepdims);
      if (is_given(initial)) options["initial"] = py::handle(initial);
      if (is_given(where)) options["where"] = py::handle(where);
      const py::object result = functions().attr(reduction.name)(py::handle(self), py::handle(axis), **options);
      return new_stored(tensor_of(result), out);
    }
    const Tensor& x = tensor_of(self);
    return new_stored(reduce(op, is_given(dtype) ? converted(x, dtype_of(dtype)) : x, axis, is_true(keepdims)), out);
  });
}

PyObject* reshape_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&]() -> PyObject* {
    bool columns = false;
    const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    PyObject* shape = nullptr;
    for (Py_ssize_t i = 0; i < named; ++i) {
      PyObject* name = PyTuple_GET_ITEM(keywords, i);
      if (PyUnicode_CompareWithASCIIString(name, "order") == 0)
        columns = is_column_major(args[count + i], tensor_of(self));
      else if (PyUnicode_CompareWithASCIIString(name, "shape") == 0 && count == 0)
        shape = args[count + i];
      else if (PyUnicode_CompareWithASCIIString(name, "copy") != 0 || is_true(args[count + i]))
        throw py::type_error("reshape() takes sizes, `shape` and `order`");
    }
    Dims dims;
    if (count == 1) shape = args[0];
    if (shape != nullptr) {
      dims = dims_of(shape);
    } else {
      dims.reserve(static_cast<std::size_t>(count));
      for (Py_ssize_t i = 0; i < count; ++i) dims.push_back(size_of(args[i]));
    }
    const Tensor& x = tensor_of(self);
    return new_view(columns ? reshaped_by_columns(x, std::move(dims)) : reshaped(x, std::move(dims)), self);
  });
}

PyObject* ravel_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&]() -> PyObject* {
    const auto [order] = parse(Signature<1>{"ravel", {"order"}}, args, count, keywords);
    const Tensor& x = tensor_of(self);
    return new_view(is_column_major(order, x) ? reshaped_by_columns(x, {-1}) : reshaped(x, {-1}), self);
  });
}

PyObject* astype_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&]() -> PyObject* {
    // `order`, `casting` and `subok` choose what this type does not have.
    const auto [dtype, order, casting, subok, copy] =
        parse(Signature<5>{"astype", {"dtype", "order", "casting", "subok", "copy"}, 1}, args, count, keywords);
    const Tensor& x = tensor_of(self);
    const DType target = dtype_of(dtype);
    if (x.dtype() != target) return new_array(converted(x, target));
    return copy != nullptr && !is_true(copy) ? Py_NewRef(self) : new_array(copy_of(x));
  });
}

PyObject* copy_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&] {
    parse(Signature<1>{"copy", {"order"}}, args, count, keywords);  // a copy is always in row-major order
    return new_array(copy_of(tensor_of(self)));
  });
}

PyObject* conjugate_method(PyObject* self, PyObject*) {
  return translated([&] {
    const Tensor& x = tensor_of(self);
    return is_complex(x.dtype()) ? new_array(unary("Conjugate", x)) : Py_NewRef(self);
  });
}

PyObject* complex_method(PyObject* self, PyObject*) {
  return translated([&]() -> PyObject* {
    const Py_complex value = PyComplex_AsCComplex(only_element(tensor_of(self)).ptr());
    if (value.real == -1.0 && PyErr_Occurred() != nullptr) return nullptr;
    return PyComplex_FromCComplex(value);
  });
}

// Returns 0, or -1 with a Python error.
template <class Function>
int translated_setter(Function&& f) noexcept {
  const auto result = py::reinterpret_steal<py::object>(translated([&]() -> PyObject* {
    f();
    return Py_NewRef(Py_None);
  }));
  return result ? 0 : -1;
}

PyObject* list_method(PyObject* self, PyObject*) {
  return translated([&] { return nested_list(tensor_of(self)).release().ptr(); });
}

template <class Function>
PyMethodDef method(const char* name, Function* function, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL | METH_KEYWORDS, doc};
}

template <std::size_t... at>
std::vector<PyMethodDef> all_methods(std::index_sequence<at...>) {
  return {method(kReductions[at].name, reduction_method<at>, "Reduce the axes given, or all of them.")...,
          method("reshape", reshape_method, "Return the elements in another shape: a view where strides allow it, else a copy."),
          method("ravel", ravel_method, "Return the elements in one dimension: a view where strides allow it, else a copy."),
          method("astype", astype_method, "Return the elements converted to a dtype."),
          method("copy", copy_method, "Return a copy in row-major order."),
          {"conj", conjugate_method, METH_NOARGS, "Return the complex conjugates; a real array itself."},
          {"conjugate", conjugate_method, METH_NOARGS, "Return the complex conjugates; a real array itself."},
          {"__complex__", complex_method, METH_NOARGS, "Return the only element as a complex number."},
          {"tolist", list_method, METH_NOARGS, "Return the elements as nested lists of Python numbers."},
          {nullptr, nullptr, 0, nullptr}};
}

template <class Function>
PyGetSetDef attribute(const char* name, Function function, const char* doc) {
  return {name, function, nullptr, doc, nullptr};
}

}  // namespace

PyMethodDef* array_methods() {
  static std::vector<PyMethodDef> methods = all_methods(std::make_index_sequence<std::size(kReductions)>());
  return methods.data();
}

PyGetSetDef* array_attributes() {
  static constexpr auto tensor = [](PyObject* self) -> const Tensor& { return tensor_of(self); };
  static PyGetSetDef attributes[] = {
      attribute(
          "shape", [](PyObject* self, void*) { return translated([&] { return tuple_of(tensor(self).shape()); }); },
          "Sizes of the axes."),
      attribute(
          "strides",
          [](PyObject* self, void*) {
            return translated(
                [&] { return tuple_of(tensor(self).strides(), static_cast<std::int64_t>(item_size(tensor(self).dtype()))); });
          },
          "Bytes between neighbours along each axis."),
      attribute(
          "dtype",
          [](PyObject* self, void*) {
            return translated([&] {
              const auto* array = reinterpret_cast<const ArrayObject*>(self);
              const DType dtype = array->has_number ? array->dtype : array->tensor.dtype();
              return Py_NewRef(array_types().dtypes[static_cast<int>(dtype)]);
            });
          },
          "Name of the elements' type."),
      attribute(
          "ndim", [](PyObject* self, void*) { return translated([&] { return PyLong_FromLong(tensor(self).ndim()); }); },
          "Number of axes."),
      attribute(
          "size", [](PyObject* self, void*) { return translated([&] { return PyLong_FromLongLong(tensor(self).size()); }); },
          "Number of elements."),
      attribute(
          "itemsize",
          [](PyObject* self, void*) { return translated([&] { return PyLong_FromSize_t(item_size(tensor(self).dtype())); }); },
          "Bytes of an element."),
      attribute(
          "nbytes",
          [](PyObject* self, void*) {
            return translated([&] {
              return PyLong_FromLongLong(tensor(self).size() * static_cast<std::int64_t>(item_size(tensor(self).dtype())));
            });
          },
          "Bytes of all elements."),
      attribute(
          "T",
          [](PyObject* self, void*) { return translated([&] { return new_view(transposed(tensor(self), py::args()), self); }); },
          "View with the axes in reverse order."),
      {"real",
       [](PyObject* self, void*) {
         return translated(
             [&] { return is_complex(tensor(self).dtype()) ? new_view(part_of(tensor(self), 0), self) : Py_NewRef(self); });
       },
       [](PyObject* self, PyObject* value, void*) { return translated_setter([&] { set_part(real(tensor(self)), value); }); },
       "View of the real parts; a real array itself.", nullptr},
      {"imag", [](PyObject* self, void*) { return translated([&] { return new_view(imag(tensor(self)), self); }); },
       [](PyObject* self, PyObject* value, void*) {
         return translated_setter([&] {
           if (!is_complex(tensor(self).dtype()))
             throw py::type_error("an array of dtype " + std::string(dtype_name(tensor(self).dtype())) +
                                  " has no imaginary part to set");
           set_part(imag(tensor(self)), value);
         });
       },
       "View of the imaginary parts; of a real array, read-only zeros.", nullptr},
      attribute(
          "base",
          [](PyObject* self, void*) {
            PyObject* base = reinterpret_cast<ArrayObject*>(self)->base;
            return Py_NewRef(base != nullptr ? base : Py_None);
          },
          "The array that this one is a view of, or None."),
      attribute(
          "flags", [](PyObject* self, void*) { return call_function("views", "Flags", self); },
          "How the elements lie in memory, and whether they may be written."),
      {"flat", [](PyObject* self, void*) { return call_function("views", "flatiter", self); },
       [](PyObject* self, PyObject* value, void*) {
         if (value == nullptr) {
           PyErr_SetString(PyExc_AttributeError, "`flat` of an array cannot be deleted");
           return -1;
         }
         const auto flat = py::reinterpret_steal<py::object>(call_function("views", "flatiter", self));
         return flat ? PyObject_SetItem(flat.ptr(), Py_Ellipsis, value) : -1;
       },
       "The elements in row-major order, as an iterator that can be indexed.", nullptr},
      attribute(
          "address", [](PyObject* self, void*) { return translated([&] { return PyLong_FromVoidPtr(tensor(self).raw()); }); },
          "Address of the first element."),
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  return attributes;
}

namespace {

// The objects of a type without Py_tp_new are created here only: object's own __new__ would leave their pointers null.
py::object new_type(const py::module_& module, const char* name, std::size_t size, PyMemberDef* members, PyType_Slot* slots) {
  std::vector<PyType_Slot> all;
  if (members != nullptr) all.push_back({Py_tp_members, members});
  unsigned flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  for (; slots->slot != 0; ++slots) {
    if (slots->slot == Py_tp_new) flags = Py_TPFLAGS_DEFAULT;
    all.push_back(*slots);
  }
  all.push_back({0, nullptr});
  PyType_Spec spec{name, static_cast<int>(size), 0, flags, all.data()};
  auto type = py::reinterpret_steal<py::object>(PyType_FromModuleAndSpec(module.ptr(), &spec, nullptr));
  if (!type) throw py::error_already_set();
  return type;
}

// No code can change the type from here on.
void seal_type(PyTypeObject* type) {
  type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
  PyType_Modified(type);
}

}  // namespace

void bind_ndarray(py::module_& module) {
  static PyMemberDef members[] = {
      {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(ArrayObject, weak_references), Py_READONLY, nullptr}, {}};
  const py::object type = new_type(module, "walle.engine_ext._core.ndarray", sizeof(ArrayObject), members, array_slots());
  const py::object iterator =
      new_type(module, "walle.engine_ext._core.ndarray_iterator", sizeof(IteratorObject), nullptr, array_iterator_slots());
  ArrayClass cls{type};
  cls.def("__format__", [](py::handle self, const py::str& format) -> py::object {
    const Tensor& x = tensor_of(self);
    const py::object value = x.ndim() == 0 ? only_element(x) : py::object(py::str(self));
    return value.attr("__format__")(format);
  });
  cls.def("item", &only_element, "Return the only element, or the one at the given index, as a Python number.");
  cls.def("item", [](const Tensor& x, const py::args& at) {
    return only_element(at.size() == 1 && x.ndim() != 1 ? get_item(reshaped(x, {-1}), at[0]) : get_item(x, at));
  });
  cls.def("tobytes", [](const Tensor& x) {
    const Tensor dense = computed_contiguous(x);
    const auto size = dense.size() * static_cast<std::int64_t>(item_size(dense.dtype()));
    auto bytes = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, size));
    if (!bytes) throw py::error_already_set();
    auto* to = PyBytes_AS_STRING(bytes.ptr());
    computed(size, [&] {
      run_stoppable(size, 1, [&](std::int64_t first, std::int64_t last) {
        std::memcpy(to + first, dense.raw() + first, static_cast<std::size_t>(last - first));
      });
      return true;
    });
    return bytes;
  });
  cls.def(
      "__array__",
      [](py::handle self, const py::object& dtype, const py::object& copy) {
        return functions().attr("views").attr("as_numpy")(self, dtype, copy);
      },
      py::arg("dtype") = py::none(), py::arg("copy") = py::none(),
      "Return a NumPy array of the elements, in ml_dtypes' type where NumPy lacks theirs.");
  cls.def("__copy__", &copy_of);
  cls.def("__deepcopy__", [](const Tensor& x, py::handle) { return copy_of(x); }, py::arg("memo"));
  cls.def(
      "view",
      [](py::handle self, py::handle dtype) {
        const Tensor& x = tensor_of(self);
        const DType target = dtype.is_none() ? x.dtype() : dtype_of(dtype);
        if (item_size(target) != item_size(x.dtype()))
          throw Error(ErrorKind::dtype, "cannot view " + std::string(dtype_name(x.dtype())) + " as " +
                                            std::string(dtype_name(target)) + ", whose item size differs; use astype");
        if (target == DType::b8 && x.dtype() != DType::b8)
          throw Error(ErrorKind::dtype, "cannot view an array as bool, whose bytes may only be 0 and 1; use astype");
        return view_of(self, Tensor(x.storage(), target, x.shape(), x.strides(), x.offset()));
      },
      py::arg("dtype") = py::none(), "View the same bits as another dtype of the same item size.");
  cls.def(
      "flatten",
      [](const Tensor& x, py::handle order) {
        return copy_of(is_column_major(order.ptr(), x) ? reshaped_by_columns(x, {-1}) : reshaped(x, {-1}));
      },
      py::arg("order") = "C");
  cls.def("transpose", [](py::handle self, const py::args& order) { return view_of(self, transposed(tensor_of(self), order)); });
  cls.def(
      "swapaxes",
      [](py::handle self, std::int64_t axis1, std::int64_t axis2) {
        return view_of(self, swapped(tensor_of(self), axis1, axis2));
      },
      py::arg("axis1"), py::arg("axis2"));
  cls.def("fill", [](const Tensor& x, py::handle value) { computed_assign(scalar(value, x.dtype()), x); }, py::arg("value"));
  cls.def(
      "__reduce__",
      [](py::handle self) {
        const Tensor& x = tensor_of(self);
        return py::make_tuple(py::module_::import("walle.engine_ext._core").attr("array_from_bytes"),
                              py::make_tuple(self.attr("tobytes")(), py::str(dtype_name(x.dtype()).data()), self.attr("shape")));
      },
      "Return what pickle stores.");
  cls.def(
      "__round__",
      [](py::handle self, py::handle digits) -> py::object {
        if (tensor_of(self).ndim() != 0)
          throw py::type_error("round() takes an array without dimensions; use walle.np.round for others");
        if (digits.is_none())
          return py::reinterpret_steal<py::object>(PyNumber_Long(only_element(tensor_of(self)).attr("__round__")().ptr()));
        return functions().attr("round")(self, digits);
      },
      py::arg("ndigits") = py::none());
  cls.def(
      "setflags",
      [](py::handle self, py::handle write) {
        if (write.is_none()) return;
        auto& x = tensor_of(self);
        const bool writable = x.storage() && x.storage()->writable();
        if (is_true(write.ptr()) && !writable)
          throw py::value_error("an array that is read-only cannot be made writeable; copy it");
        if (!is_true(write.ptr()) && writable)
          x = Tensor(vm::read_only(x.storage()), x.dtype(), x.shape(), x.strides(), x.offset());
      },
      py::arg("write") = py::none(), "Make the array read-only; other arrays on the same memory are unchanged.");
  cls.def("dot", [](py::handle a, py::handle b) { return binary("MatMul", a, b); }, py::arg("b"));
  bind_functions(cls);
  seal_type(reinterpret_cast<PyTypeObject*>(type.ptr()));
  seal_type(reinterpret_cast<PyTypeObject*>(iterator.ptr()));
  mutable_array_types().array = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.ptr()));
  mutable_array_types().iterator = reinterpret_cast<PyTypeObject*>(Py_NewRef(iterator.ptr()));
  module.attr("ndarray") = type;
}

}  // namespace walle
