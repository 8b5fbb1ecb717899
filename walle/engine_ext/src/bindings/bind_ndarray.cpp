// Bindings of walle.np.ndarray: NumPy's methods on Tensor. Functions that need more than one operator are in
// walle/engine_ext/np/.
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "operators/eager.h"
#include "vm/array_loans.h"

namespace py = pybind11;

namespace walle {

namespace {

py::tuple tuple_of(const Dims& dims) { return py::tuple(py::cast(dims)); }

py::tuple byte_strides(const Tensor& x) {
  Dims strides = x.strides();
  for (std::int64_t& stride : strides) stride *= static_cast<std::int64_t>(item_size(x.dtype()));
  return tuple_of(strides);
}

// Converts the arguments of f(2, 3) and of f((2, 3)) to the same dimensions.
Dims dims_of_args(const py::args& args) { return args.size() == 1 ? dims_of(args[0]) : dims_of(args); }

Tensor copy(const Tensor& x) {
  Tensor result = Tensor::empty(x.dtype(), x.shape());
  assign(x, result);
  return result;
}

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

py::object item(const Tensor& x) {
  if (x.size() != 1)
    throw Error(ErrorKind::shape, "an array of shape " + to_string(x.shape()) +
                                      " cannot be converted to one number; it must have exactly one element");
  return element(x, x.raw());
}

bool truth(const Tensor& x) {
  if (x.size() != 1)
    throw Error(ErrorKind::shape,
                "the truth value of an array of shape " + to_string(x.shape()) + " is ambiguous; use any() or all()");
  return py::cast<bool>(py::bool_(item(x)));
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
void set_imag(const Tensor& x, py::handle value) {
  if (!is_complex(x.dtype()))
    throw py::type_error("an array of dtype " + std::string(dtype_name(x.dtype())) + " has no imaginary part to set");
  set_item(imag(x), py::ellipsis(), value);
}
Tensor conjugate(const Tensor& x) { return is_complex(x.dtype()) ? unary("Conjugate", x) : x; }

// Returns the text of repr(): the elements, the shape where they do not show it, and the dtype.
std::string text(const Tensor& x) {
  constexpr std::int64_t kMaxShown = 1000;
  std::string body =
      x.size() <= kMaxShown ? py::cast<std::string>(py::repr(nested_list(x))) : "<" + std::to_string(x.size()) + " elements>";
  if (x.size() > kMaxShown || x.size() == 0) body += ", shape=" + to_string(x.shape());
  return "array(" + body + ", dtype=" + std::string(dtype_name(x.dtype())) + ")";
}

template <class Class>
void bind_arithmetic(Class& cls) {
  const auto bind = [&cls](const char* name, const char* reflected, const char* inplace, const char* op) {
    const OpDef* operation = &operator_named(op);
    cls.def(name, [operation](py::handle a, py::handle b) { return binary(*operation, a, b); }, py::is_operator());
    if (reflected != nullptr)
      cls.def(reflected, [operation](py::handle a, py::handle b) { return binary(*operation, b, a); }, py::is_operator());
    if (inplace == nullptr) return;
    cls.def(
        inplace,
        [operation](py::object a, py::handle b) {
          const Tensor& target = py::cast<const Tensor&>(a);
          Tensor result = binary(*operation, a, b);
          if (!holds_kind(target.dtype(), result.dtype()))
            throw Error(ErrorKind::dtype, "an array of dtype " + std::string(dtype_name(target.dtype())) +
                                              " cannot hold the result, of dtype " + std::string(dtype_name(result.dtype())) +
                                              ", in place; write a = a + b");
          assign(cast(result, target.dtype()), target);
          return a;
        },
        py::is_operator());
  };
  bind("__add__", "__radd__", "__iadd__", "Add");
  bind("__sub__", "__rsub__", "__isub__", "Sub");
  bind("__mul__", "__rmul__", "__imul__", "Mul");
  bind("__truediv__", "__rtruediv__", "__itruediv__", "Div");
  bind("__floordiv__", "__rfloordiv__", "__ifloordiv__", "FloorDiv");
  bind("__mod__", "__rmod__", "__imod__", "FloorMod");
  bind("__pow__", "__rpow__", "__ipow__", "Power");
  // Logical on bools, bitwise on integers (logical_name in operations.cpp).
  bind("__and__", "__rand__", "__iand__", "BitwiseAnd");
  bind("__or__", "__ror__", "__ior__", "BitwiseOr");
  bind("__xor__", "__rxor__", "__ixor__", "BitwiseXor");
  bind("__lshift__", "__rlshift__", "__ilshift__", "ShiftLeft");
  bind("__rshift__", "__rrshift__", "__irshift__", "ShiftRight");
  bind("__eq__", nullptr, nullptr, "Equal");
  bind("__ne__", nullptr, nullptr, "NotEqual");
  bind("__lt__", nullptr, nullptr, "Less");
  bind("__le__", nullptr, nullptr, "LessOrEqual");
  bind("__gt__", nullptr, nullptr, "Greater");
  bind("__ge__", nullptr, nullptr, "GreaterOrEqual");
  bind("__matmul__", "__rmatmul__", nullptr, "MatMul");
  cls.def("__divmod__",
          [](py::handle a, py::handle b) { return py::make_tuple(binary("FloorDiv", a, b), binary("FloorMod", a, b)); });
  cls.def("__neg__", [](const Tensor& x) { return unary("Neg", x); });
  cls.def("__pos__", [](const Tensor& x) { return copy(x); });
  cls.def("__abs__", [](const Tensor& x) { return unary("Abs", x); });
  cls.def("__invert__", [](const Tensor& x) { return unary("BitwiseNot", x); });
}

// Returns the module of the functions. It is looked up by name first, because an import statement costs much more.
py::object functions() {
  constexpr const char* kName = "walle.engine_ext.np";
  const auto name = py::str(kName);
  const auto loaded = py::reinterpret_steal<py::object>(PyImport_GetModule(name.ptr()));
  return loaded ? loaded : py::module_::import(kName);
}

// Binds methods that call the function of walle.np with the array as first argument; its module is imported on first use.
template <class Class>
void bind_functions(Class& cls) {
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
          assign(py::cast<const Tensor&>(sorted), py::cast<const Tensor&>(self));
        },
        "Call the function of walle.np of this name and store its result in place.");
}

template <class Class>
void bind_reductions(Class& cls) {
  // Calls with `initial` or `where` go to the functions of walle.np.
  const auto function = [](const char* name, py::handle x, py::handle axis, py::handle out, const py::dict& options) {
    for (const char* option : {"initial", "where", "dtype"})
      if (options.contains(option) && options[option].is_none()) PyDict_DelItemString(options.ptr(), option);
    const py::object result = functions().attr(name)(x, axis, **options);
    return store_in_out(py::cast<const Tensor&>(result), out);
  };
  const auto reduction = [&cls, function](const char* name, const char* op) {
    const std::string operation = op;
    cls.def(
        name,
        [=](py::handle self, py::handle axis, py::handle dtype, py::handle out, bool keepdims, py::handle initial,
            py::handle where) {
          if (!initial.is_none() || !where.is_none()) {
            py::dict options;
            options["dtype"] = dtype, options["keepdims"] = keepdims, options["initial"] = initial, options["where"] = where;
            return function(name, self, axis, out, options);
          }
          const Tensor& x = py::cast<const Tensor&>(self);
          return store_in_out(reduce(operation, dtype.is_none() ? x : cast(x, dtype_of(dtype)), axis, keepdims), out);
        },
        py::arg("axis") = py::none(), py::arg("dtype") = py::none(), py::arg("out") = py::none(), py::arg("keepdims") = false,
        py::arg("initial") = py::none(), py::arg("where") = py::none());
  };
  reduction("sum", "ReduceSum");
  reduction("prod", "ReduceProd");
  reduction("mean", "ReduceMean");
  const auto selection = [&cls, function](const char* name, const char* op) {
    const std::string operation = op;
    cls.def(
        name,
        [=](py::handle self, py::handle axis, py::handle out, bool keepdims, py::handle initial, py::handle where) {
          if (!initial.is_none() || !where.is_none()) {
            py::dict options;
            options["keepdims"] = keepdims, options["initial"] = initial, options["where"] = where;
            return function(name, self, axis, out, options);
          }
          const Tensor& x = py::cast<const Tensor&>(self);
          return store_in_out(reduce(operation, x, axis, keepdims), out);
        },
        py::arg("axis") = py::none(), py::arg("out") = py::none(), py::arg("keepdims") = false, py::arg("initial") = py::none(),
        py::arg("where") = py::none());
  };
  selection("max", "ReduceMax");
  selection("min", "ReduceMin");
  selection("argmax", "ArgMax");
  selection("argmin", "ArgMin");
  selection("all", "All");
  selection("any", "Any");
}

}  // namespace

void bind_ndarray(py::module_& module) {
  auto cls = py::reinterpret_borrow<py::class_<Tensor>>(module.attr("ndarray"));
  cls.def_property_readonly("shape", [](const Tensor& x) { return tuple_of(x.shape()); })
      .def_property_readonly("strides", byte_strides)
      .def_property_readonly("dtype", [](const Tensor& x) { return std::string(dtype_name(x.dtype())); })
      .def_property_readonly("ndim", &Tensor::ndim)
      .def_property_readonly("size", &Tensor::size)
      .def_property_readonly("itemsize", [](const Tensor& x) { return item_size(x.dtype()); })
      .def_property_readonly("nbytes", [](const Tensor& x) { return x.size() * static_cast<std::int64_t>(item_size(x.dtype())); })
      .def_property("real", real, [](const Tensor& x, py::handle value) { set_item(real(x), py::ellipsis(), value); })
      .def_property("imag", imag, set_imag)
      .def("conj", conjugate)
      .def("conjugate", conjugate)
      .def_property_readonly("T", [](const Tensor& x) { return transposed(x, py::args()); })
      .def("__len__",
           [](const Tensor& x) {
             if (x.ndim() == 0) throw py::type_error("len() of an array without dimensions");
             return x.shape()[0];
           })
      .def("__getitem__", get_item)
      .def("__setitem__", set_item)
      .def("__iter__",
           [](py::handle self) {
             const Tensor& x = py::cast<const Tensor&>(self);
             if (x.ndim() == 0) throw py::type_error("iteration over an array without dimensions");
             if (x.ndim() > 1 && x.shape()[0] <= kFastPathElements) return py::object(py::iter(unstack(x)));
             return py::reinterpret_steal<py::object>(PySeqIter_New(self.ptr()));
           })
      .def("__contains__", [](py::handle self,
                              py::handle value) { return truth(reduce("Any", binary("Equal", self, value), py::none(), false)); })
      .def("__bool__", truth)
      .def("__complex__",
           [](const Tensor& x) {
             const Py_complex value = PyComplex_AsCComplex(item(x).ptr());
             if (value.real == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
             return py::reinterpret_steal<py::object>(PyComplex_FromCComplex(value));
           })
      .def("__float__", [](const Tensor& x) { return py::float_(item(x)); })
      .def("__int__", [](const Tensor& x) { return py::int_(item(x)); })
      .def("__index__",
           [](const Tensor& x) {
             if (x.ndim() != 0 || floating_dtype(x.dtype()) == x.dtype() || x.dtype() == DType::b8)
               throw py::type_error("only an integer array without dimensions can be used as an index");
             return py::int_(item(x));
           })
      .def("__format__",
           [](const Tensor& x, const std::string& format) {
             if (x.ndim() == 0) return py::cast<std::string>(item(x).attr("__format__")(format));
             return py::cast<std::string>(py::str(text(x)).attr("__format__")(format));
           })
      .def("__repr__", text)
      .def("item", item, "Return the only element, or the one at the given index, as a Python number.")
      .def("item",
           [](const py::object& x, const py::args& at) {
             const Tensor& given = py::cast<const Tensor&>(x);
             return at.size() == 1 && given.ndim() != 1 ? item(get_item(reshaped(given, {-1}), at[0]))
                                                        : item(get_item(given, at));
           })
      .def("tolist", nested_list)
      .def("tobytes",
           [](const Tensor& x) {
             const Tensor dense = contiguous(x);
             return py::bytes(reinterpret_cast<const char*>(dense.raw()),
                              static_cast<std::size_t>(dense.size()) * item_size(dense.dtype()));
           })
      .def("copy", copy)
      .def("__copy__", copy)
      .def(
          "__deepcopy__", [](const Tensor& x, py::handle) { return copy(x); }, py::arg("memo"))
      .def(
          "astype",
          [](const Tensor& x, py::handle dtype) {
            const DType target = dtype_of(dtype);
            return x.dtype() == target ? copy(x) : converted(x, target);
          },
          py::arg("dtype"))
      .def(
          "view",
          [](const Tensor& x, py::handle dtype) {
            const DType target = dtype_of(dtype);
            if (item_size(target) != item_size(x.dtype()))
              throw Error(ErrorKind::dtype, "cannot view " + std::string(dtype_name(x.dtype())) + " as " +
                                                std::string(dtype_name(target)) + ", whose item size differs; use astype");
            if (target == DType::b8)
              throw Error(ErrorKind::dtype, "cannot view an array as bool, whose bytes may only be 0 and 1; use astype");
            return Tensor(x.storage(), target, x.shape(), x.strides(), x.offset());
          },
          py::arg("dtype"), "View the same bits as another dtype of the same item size.")
      .def("reshape", [](const Tensor& x, const py::args& shape) { return reshaped(x, dims_of_args(shape)); })
      .def("ravel", [](const Tensor& x) { return reshaped(x, {-1}); })
      .def(
          "flatten",
          [](const Tensor& x, const std::string& order) {
            if (order != "C" && order != "F" && order != "A" && order != "K")
              throw Error(ErrorKind::unsupported, "flatten does not support order '" + order + "'; known are C, F, A and K");
            return copy(reshaped(order == "F" ? transposed(x, py::args()) : x, {-1}));
          },
          py::arg("order") = "C")
      .def("transpose", transposed)
      .def("swapaxes", swapped, py::arg("axis1"), py::arg("axis2"))
      .def(
          "fill", [](const Tensor& x, py::handle value) { assign(scalar(value, x.dtype()), x); }, py::arg("value"))
      .def("dot", [](py::handle a, py::handle b) { return binary("MatMul", a, b); }, py::arg("b"));
  bind_arithmetic(cls);
  bind_reductions(cls);
  bind_functions(cls);
  // Equality is elementwise, so only an array without dimensions can be equal to its number and share its hash.
  cls.def("__hash__", [](const Tensor& x) {
    if (x.ndim() != 0) throw py::type_error("an array with dimensions is not hashable");
    return py::hash(item(x));
  });
}

}  // namespace walle
