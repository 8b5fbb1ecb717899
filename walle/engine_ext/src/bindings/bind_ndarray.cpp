// walle.np.ndarray: NumPy's names on Tensor. What needs more than one operator is in walle/engine_ext/np/.
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

py::tuple tuple_of(const Dims& dims) { return py::tuple(py::cast(dims)); }

py::tuple byte_strides(const Tensor& x) {
  Dims strides = x.strides();
  for (std::int64_t& stride : strides) stride *= static_cast<std::int64_t>(item_size(x.dtype()));
  return tuple_of(strides);
}

// f(2, 3) and f((2, 3)) alike.
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
    throw Error(ErrorKind::shape, "transpose by " + to_string(order) + " of an array of shape " + to_string(x.shape()));
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
  if (x.size() != 1) throw Error(ErrorKind::shape, "an array of shape " + to_string(x.shape()) + " is not one number");
  return element(x, x.raw());
}

bool truth(const Tensor& x) {
  if (x.size() != 1)
    throw Error(ErrorKind::shape, "the truth of an array of shape " + to_string(x.shape()) + " is not one; use any() or all()");
  return py::cast<bool>(py::bool_(item(x)));
}

// Elements first, then the shape where it does not show, and the dtype where lists would not give it back.
std::string text(const Tensor& x) {
  constexpr std::int64_t kMost = 1000;
  std::string body =
      x.size() <= kMost ? py::cast<std::string>(py::repr(nested_list(x))) : "<" + std::to_string(x.size()) + " elements>";
  if (x.size() > kMost || x.size() == 0) body += ", shape=" + to_string(x.shape());
  return "array(" + body + ", dtype=" + std::string(dtype_name(x.dtype())) + ")";
}

template <class Class>
void bind_arithmetic(Class& cls) {
  const auto both = [&cls](const char* name, const char* reflected, const char* inplace, const char* op) {
    const OpDef* operation = &operator_named(op);
    cls.def(name, [operation](py::handle a, py::handle b) { return binary(*operation, a, b); }, py::is_operator());
    if (reflected != nullptr)
      cls.def(reflected, [operation](py::handle a, py::handle b) { return binary(*operation, b, a); }, py::is_operator());
    if (inplace == nullptr) return;
    cls.def(
        inplace,
        [operation](py::object a, py::handle b) {
          const Tensor& to = py::cast<const Tensor&>(a);
          Tensor result = binary(*operation, a, b);
          if (floating(to.dtype()) != to.dtype() && floating(result.dtype()) == result.dtype())
            throw Error(ErrorKind::dtype,
                        "a " + std::string(dtype_name(to.dtype())) + " array cannot hold the result in place; write a = a + b");
          assign(cast(result, to.dtype()), to);
          return a;
        },
        py::is_operator());
  };
  both("__add__", "__radd__", "__iadd__", "Add");
  both("__sub__", "__rsub__", "__isub__", "Sub");
  both("__mul__", "__rmul__", "__imul__", "Mul");
  both("__truediv__", "__rtruediv__", "__itruediv__", "Div");
  both("__floordiv__", "__rfloordiv__", "__ifloordiv__", "FloorDiv");
  both("__mod__", "__rmod__", "__imod__", "FloorMod");
  both("__pow__", "__rpow__", "__ipow__", "Power");
  // On bools these are logic, on integers they go bit by bit (bitwise_name).
  both("__and__", "__rand__", "__iand__", "BitwiseAnd");
  both("__or__", "__ror__", "__ior__", "BitwiseOr");
  both("__xor__", "__rxor__", "__ixor__", "BitwiseXor");
  both("__lshift__", "__rlshift__", "__ilshift__", "ShiftLeft");
  both("__rshift__", "__rrshift__", "__irshift__", "ShiftRight");
  both("__eq__", nullptr, nullptr, "Equal");
  both("__ne__", nullptr, nullptr, "NotEqual");
  both("__lt__", nullptr, nullptr, "Less");
  both("__le__", nullptr, nullptr, "LessOrEqual");
  both("__gt__", nullptr, nullptr, "Greater");
  both("__ge__", nullptr, nullptr, "GreaterOrEqual");
  both("__matmul__", "__rmatmul__", nullptr, "MatMul");
  cls.def("__divmod__",
          [](py::handle a, py::handle b) { return py::make_tuple(binary("FloorDiv", a, b), binary("FloorMod", a, b)); });
  cls.def("__neg__", [](const Tensor& x) { return unary("Neg", x); });
  cls.def("__pos__", [](const Tensor& x) { return copy(x); });
  cls.def("__abs__", [](const Tensor& x) { return unary("Abs", x); });
  cls.def("__invert__", [](const Tensor& x) { return unary("BitwiseNot", x); });
}

// The module that has the functions; an import statement would look up much more than its name.
py::object functions() {
  constexpr const char* kName = "walle.engine_ext.np";
  const auto name = py::str(kName);
  const auto loaded = py::reinterpret_steal<py::object>(PyImport_GetModule(name.ptr()));
  return loaded ? loaded : py::module_::import(kName);
}

// Methods that are functions of walle.np with the array as first argument; their module loads at the first use.
template <class Class>
void bind_functions(Class& cls) {
  for (const char* name : {"argpartition", "argsort", "choose", "clip", "compress", "cumprod", "cumsum", "diagonal", "nonzero",
                           "ptp", "put", "repeat", "round", "searchsorted", "squeeze", "std", "take", "trace", "var"}) {
    cls.def(
        name,
        [name](const py::object& self, const py::args& args, const py::kwargs& kwargs) {
          return functions().attr(name)(self, *args, **kwargs);
        },
        "The function of walle.np of this name.");
  }
  for (const char* name : {"sort", "partition"})
    cls.def(
        name,
        [name](const py::object& self, const py::args& args, const py::kwargs& kwargs) {
          const py::object sorted = functions().attr(name)(self, *args, **kwargs);
          assign(py::cast<const Tensor&>(sorted), py::cast<const Tensor&>(self));
        },
        "As the function of walle.np, in place.");
}

template <class Class>
void bind_reductions(Class& cls) {
  // With `initial` or `where` they are the functions of walle.np.
  const auto function = [](const char* name, py::handle x, py::handle axis, py::handle out, const py::dict& options) {
    for (const char* option : {"initial", "where", "dtype"})
      if (options.contains(option) && options[option].is_none()) PyDict_DelItemString(options.ptr(), option);
    const py::object result = functions().attr(name)(x, axis, **options);
    return delivered(py::cast<const Tensor&>(result), out);
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
          return delivered(reduce(operation, dtype.is_none() ? x : cast(x, dtype_of(dtype)), axis, keepdims), out);
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
          return delivered(reduce(operation, x, axis, keepdims), out);
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
             if (x.ndim() > 1 && x.shape()[0] <= kFew) return py::object(py::iter(unstacked(x)));
             return py::reinterpret_steal<py::object>(PySeqIter_New(self.ptr()));
           })
      .def("__contains__", [](py::handle self,
                              py::handle value) { return truth(reduce("Any", binary("Equal", self, value), py::none(), false)); })
      .def("__bool__", truth)
      .def("__float__", [](const Tensor& x) { return py::float_(item(x)); })
      .def("__int__", [](const Tensor& x) { return py::int_(item(x)); })
      .def("__index__",
           [](const Tensor& x) {
             if (x.ndim() != 0 || floating(x.dtype()) == x.dtype() || x.dtype() == DType::b8)
               throw py::type_error("only whole numbers without dimensions are an index");
             return py::int_(item(x));
           })
      .def("__format__",
           [](const Tensor& x, const std::string& format) {
             if (x.ndim() == 0) return py::cast<std::string>(item(x).attr("__format__")(format));
             return py::cast<std::string>(py::str(text(x)).attr("__format__")(format));
           })
      .def("__repr__", text)
      .def("item", item, "The only element, as Python's number.")
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
            const DType wanted = dtype_of(dtype);
            return x.dtype() == wanted ? copy(x) : cast(x, wanted);
          },
          py::arg("dtype"))
      .def(
          "view",
          [](const Tensor& x, py::handle dtype) {
            const DType wanted = dtype_of(dtype);
            if (item_size(wanted) != item_size(x.dtype()))
              throw Error(ErrorKind::dtype, "a view of " + std::string(dtype_name(x.dtype())) + " as " +
                                                std::string(dtype_name(wanted)) + ", which has another size");
            if (wanted == DType::b8) throw Error(ErrorKind::dtype, "no view as bool: its bytes may only be 0 and 1; use astype");
            return Tensor(x.storage(), wanted, x.shape(), x.strides(), x.offset());
          },
          py::arg("dtype"), "The same bits as another dtype of the same size.")
      .def("reshape", [](const Tensor& x, const py::args& shape) { return reshaped(x, dims_of_args(shape)); })
      .def("ravel", [](const Tensor& x) { return reshaped(x, {-1}); })
      .def(
          "flatten",
          [](const Tensor& x, const std::string& order) {
            if (order != "C" && order != "F" && order != "A" && order != "K")
              throw Error(ErrorKind::unsupported, "flatten in order '" + order + "'; known are C, F, A and K");
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
  // Equality is elementwise, so only an array of one number without dimensions is the same as its number.
  cls.def("__hash__", [](const Tensor& x) {
    if (x.ndim() != 0) throw py::type_error("an array with dimensions has no hash");
    return py::hash(item(x));
  });
}

}  // namespace walle
