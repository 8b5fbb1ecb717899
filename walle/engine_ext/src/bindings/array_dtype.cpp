// walle.np.dtype: the name of an element type, a str. `np.float32` and `x.dtype` are such names; they compare equal to each of
// the type's names ("f4"), have NumPy's attributes, and convert a value when they are called.
#include <cctype>

#include "bindings/bind.h"
#include "bindings/convert.h"

namespace py = pybind11;

namespace walle {

namespace {

struct Alias {
  std::string_view name;
  DType dtype;
};
// NumPy's other names. A type of C has its size on 64-bit Linux and Apple systems.
constexpr Alias kAliases[] = {
    {"f4", DType::f32},      {"f8", DType::f64},       {"f2", DType::f16},       {"i1", DType::i8},
    {"i2", DType::i16},      {"i4", DType::i32},       {"i8", DType::i64},       {"u1", DType::u8},
    {"u2", DType::u16},      {"u4", DType::u32},       {"u8", DType::u64},       {"b1", DType::b8},
    {"f", DType::f32},       {"d", DType::f64},        {"e", DType::f16},        {"b", DType::i8},
    {"h", DType::i16},       {"i", DType::i32},        {"l", DType::i64},        {"q", DType::i64},
    {"p", DType::i64},       {"B", DType::u8},         {"H", DType::u16},        {"I", DType::u32},
    {"L", DType::u64},       {"Q", DType::u64},        {"P", DType::u64},        {"?", DType::b8},
    {"half", DType::f16},    {"single", DType::f32},   {"double", DType::f64},   {"bool_", DType::b8},
    {"int", DType::i64},     {"int_", DType::i64},     {"uint", DType::u64},     {"intp", DType::i64},
    {"uintp", DType::u64},   {"intc", DType::i32},     {"uintc", DType::u32},    {"byte", DType::i8},
    {"ubyte", DType::u8},    {"short", DType::i16},    {"ushort", DType::u16},   {"long", DType::i64},
    {"ulong", DType::u64},   {"float", DType::f32},    {"longlong", DType::i64}, {"ulonglong", DType::u64},
    {"c8", DType::c64},      {"c16", DType::c128},     {"F", DType::c64},        {"D", DType::c128},
    {"csingle", DType::c64}, {"cdouble", DType::c128}, {"complex", DType::c64}};

char kind_of(DType dtype) {
  if (dtype == DType::b8) return 'b';
  if (is_floating(dtype)) return 'f';
  if (is_complex(dtype)) return 'c';
  return is_unsigned(dtype) || dtype == DType::u4 || dtype == DType::u2 ? 'u' : 'i';
}

DType dtype_of_object(PyObject* self) { return dtype_of(self); }

PyObject* name_of(DType dtype) { return Py_NewRef(array_types().dtypes[static_cast<int>(dtype)]); }

PyObject* new_dtype(PyTypeObject*, PyObject* args, PyObject* keywords) {
  PyObject* value = nullptr;
  static const char* const names[] = {"dtype", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:dtype", const_cast<char**>(names), &value)) return nullptr;
  return translated([&] { return name_of(dtype_of(value)); });
}

// A complex type takes a real and an imaginary part, too.
PyObject* call_dtype(PyObject* self, PyObject* args, PyObject* keywords) {
  PyObject *value = nullptr, *imaginary = nullptr;
  static const char* const names[] = {"value", "imag", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO:dtype", const_cast<char**>(names), &value, &imaginary)) return nullptr;
  return translated([&] {
    const DType dtype = dtype_of(self);
    if (imaginary != nullptr) {
      if (!is_complex(dtype))
        throw py::type_error(std::string(dtype_name(dtype)) + "() takes one value; complex64 and complex128 take two");
      const auto parts = py::reinterpret_steal<py::object>(
          PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyComplex_Type), "OO", value, imaginary));
      if (!parts) throw py::error_already_set();
      return new_array(as_tensor(parts, dtype));
    }
    return new_array(value == nullptr ? scalar(py::int_(0), dtype) : as_tensor(value, dtype));
  });
}

PyObject* compare_dtypes(PyObject* self, PyObject* other, int comparison) {
  if (comparison != Py_EQ && comparison != Py_NE) return PyUnicode_Type.tp_richcompare(self, other, comparison);
  return translated([&]() -> PyObject* {
    const auto given = find_dtype(other);
    if (!given && !PyUnicode_Check(other)) Py_RETURN_NOTIMPLEMENTED;
    return PyBool_FromLong((given && *given == dtype_of(self)) == (comparison == Py_EQ));
  });
}

PyObject* repr_dtype(PyObject* self) {
  return translated([&] { return PyUnicode_FromFormat("dtype('%s')", dtype_name(dtype_of(self)).data()); });
}

PyObject* reduce_dtype(PyObject* self, PyObject*) {
  return translated(
      [&] { return Py_BuildValue("O(s)", reinterpret_cast<PyObject*>(Py_TYPE(self)), dtype_name(dtype_of(self)).data()); });
}

// The one-letter code, as NumPy's `char`.
char letter_of(DType dtype) {
  for (const Alias& alias : kAliases)
    if (alias.dtype == dtype && alias.name.size() == 1) return alias.name[0];
  return 'V';
}

std::string array_interface_name(DType dtype) {
  return std::string(item_size(dtype) == 1 ? "|" : "<") + kind_of(dtype) + std::to_string(item_size(dtype));
}

template <class Function>
PyGetSetDef dtype_attribute(const char* name, Function function, const char* doc) {
  return {name, function, nullptr, doc, nullptr};
}

}  // namespace

std::optional<DType> find_dtype(py::handle given) {
  const ArrayTypes& types = array_types();
  for (int i = 0; i < kDTypeCount; ++i)
    if (given.ptr() == types.dtypes[i]) return static_cast<DType>(i);
  if (given.ptr() == reinterpret_cast<PyObject*>(&PyFloat_Type)) return DType::f32;
  if (given.ptr() == reinterpret_cast<PyObject*>(&PyLong_Type)) return DType::i64;
  if (given.ptr() == reinterpret_cast<PyObject*>(&PyBool_Type)) return DType::b8;
  if (given.ptr() == reinterpret_cast<PyObject*>(&PyComplex_Type)) return DType::c64;
  if (!PyUnicode_Check(given.ptr())) return std::nullopt;
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(given.ptr(), &size);
  if (utf8 == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  std::string_view text(utf8, static_cast<std::size_t>(size));
  for (int i = 0; i < kDTypeCount; ++i)
    if (dtype_name(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  if (text.size() > 1 && (text[0] == '<' || text[0] == '=' || text[0] == '|'))
    text.remove_prefix(1);  // this machine's byte order
  for (const Alias& alias : kAliases)
    if (alias.name == text) return alias.dtype;
  return std::nullopt;
}

void bind_dtype(py::module_& module) {
  static PyGetSetDef attributes[] = {
      dtype_attribute(
          "name", [](PyObject* self, void*) { return PyObject_Str(self); }, "Name of the type."),
      dtype_attribute(
          "kind",
          [](PyObject* self, void*) {
            return translated([&] { return PyUnicode_FromFormat("%c", kind_of(dtype_of_object(self))); });
          },
          "\"f\", \"c\", \"i\", \"u\" or \"b\": floating, complex, signed, unsigned or bool."),
      dtype_attribute(
          "char",
          [](PyObject* self, void*) {
            return translated([&] { return PyUnicode_FromFormat("%c", letter_of(dtype_of_object(self))); });
          },
          "Letter of the type."),
      dtype_attribute(
          "str",
          [](PyObject* self, void*) {
            return translated([&] { return PyUnicode_FromString(array_interface_name(dtype_of_object(self)).c_str()); });
          },
          "Byte order, kind and bytes."),
      dtype_attribute(
          "itemsize",
          [](PyObject* self, void*) { return translated([&] { return PyLong_FromSize_t(item_size(dtype_of_object(self))); }); },
          "Bytes of an element."),
      dtype_attribute(
          "alignment",
          [](PyObject* self, void*) {
            return translated([&] { return PyLong_FromSize_t(item_alignment(dtype_of_object(self))); });
          },
          "Bytes to whose multiples elements are aligned."),
      dtype_attribute(
          "type", [](PyObject* self, void*) { return Py_NewRef(self); }, "The dtype itself, which converts a value when called."),
      dtype_attribute(
          "names", [](PyObject*, void*) { return Py_NewRef(Py_None); }, "None: there are no records."),
      dtype_attribute(
          "byteorder", [](PyObject*, void*) { return PyUnicode_FromString("="); }, "\"=\": this machine's."),
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyMethodDef methods[] = {{"__reduce__", reduce_dtype, METH_NOARGS, "Return what pickle stores."},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {
      {Py_tp_doc,
       const_cast<char*>("The name of an element type; dtype(x) of any of its names, or of float (float32), int, bool.")},
      {Py_tp_new, reinterpret_cast<void*>(new_dtype)},
      {Py_tp_call, reinterpret_cast<void*>(call_dtype)},
      {Py_tp_repr, reinterpret_cast<void*>(repr_dtype)},
      {Py_tp_richcompare, reinterpret_cast<void*>(compare_dtypes)},
      {Py_tp_hash, reinterpret_cast<void*>(PyUnicode_Type.tp_hash)},
      {Py_tp_getset, attributes},
      {Py_tp_methods, methods},
      {0, nullptr}};
  PyType_Spec spec{"walle.engine_ext._core.dtype", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
  const auto type = py::reinterpret_steal<py::object>(
      PyType_FromModuleAndSpec(module.ptr(), &spec, reinterpret_cast<PyObject*>(&PyUnicode_Type)));
  if (!type) throw py::error_already_set();
  ArrayTypes& types = mutable_array_types();
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto args = py::make_tuple(py::str(dtype_name(static_cast<DType>(i)).data()));
    types.dtypes[i] = PyUnicode_Type.tp_new(reinterpret_cast<PyTypeObject*>(type.ptr()), args.ptr(), nullptr);
    if (types.dtypes[i] == nullptr) throw py::error_already_set();
  }
  module.attr("dtype") = type;
}

}  // namespace walle
