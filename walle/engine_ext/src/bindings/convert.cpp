#include "bindings/convert.h"

#include <pybind11/stl.h>

#include <bit>
#include <cstring>

#include "atomic/conversion.h"
#include "bindings/bind.h"
#include "bindings/operations.h"
#include "bindings/recording.h"
#include "bindings/released_gil.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

// Calls f with a null pointer of the dtype's C++ type. Returns false for a dtype without one (float16, bfloat16, storage-only).
template <class F>
bool with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: f(static_cast<float*>(nullptr)); return true;
    case DType::f64: f(static_cast<double*>(nullptr)); return true;
    case DType::i32: f(static_cast<std::int32_t*>(nullptr)); return true;
    case DType::i64: f(static_cast<std::int64_t*>(nullptr)); return true;
    case DType::u8: f(static_cast<std::uint8_t*>(nullptr)); return true;
    case DType::b8: f(static_cast<bool*>(nullptr)); return true;
    case DType::i8: f(static_cast<std::int8_t*>(nullptr)); return true;
    case DType::i16: f(static_cast<std::int16_t*>(nullptr)); return true;
    case DType::u16: f(static_cast<std::uint16_t*>(nullptr)); return true;
    case DType::u32: f(static_cast<std::uint32_t*>(nullptr)); return true;
    case DType::u64: f(static_cast<std::uint64_t*>(nullptr)); return true;
    default: return false;
  }
}

}  // namespace

void write_number(py::handle number, DType dtype, std::byte* address) {
  if (is_complex(dtype)) {
    const Py_complex value = PyComplex_AsCComplex(number.ptr());
    if (value.real == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    const double wide[] = {value.real, value.imag};
    const float narrow[] = {static_cast<float>(value.real), static_cast<float>(value.imag)};
    std::memcpy(address, dtype == DType::c64 ? static_cast<const void*>(narrow) : wide, item_size(dtype));
    return;
  }
  const bool has_type = with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T value;
    if constexpr (std::is_floating_point_v<T>) {
      const double real = PyFloat_AsDouble(number.ptr());
      if (real == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
      value = static_cast<T>(real);
    } else if constexpr (std::is_same_v<T, bool>) {
      const int truth = PyObject_IsTrue(number.ptr());
      if (truth < 0) throw py::error_already_set();
      value = truth != 0;
    } else {
      std::int64_t integer;
      if constexpr (std::is_same_v<T, std::uint64_t>) {
        if (PyLong_Check(number.ptr())) {
          value = PyLong_AsUnsignedLongLong(number.ptr());
          if (value == ~T{0} && PyErr_Occurred() != nullptr) throw py::error_already_set();
          std::memcpy(address, &value, sizeof(T));
          return;
        }
      }
      if (PyFloat_Check(number.ptr())) {
        const double real = std::trunc(PyFloat_AS_DOUBLE(number.ptr()));
        if (!(real >= -9223372036854775808.0 && real < 9223372036854775808.0)) {
          PyErr_Format(PyExc_OverflowError, "float %R is out of range of %s", number.ptr(), dtype_name(dtype).data());
          throw py::error_already_set();
        }
        integer = static_cast<std::int64_t>(real);
      } else {
        integer = PyLong_AsLongLong(number.ptr());
        if (integer == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
      }
      value = static_cast<T>(integer);
      if (static_cast<std::int64_t>(value) != integer || (std::is_same_v<T, std::uint64_t> && integer < 0)) {
        PyErr_Format(PyExc_OverflowError, "%lld is out of range of %s", static_cast<long long>(integer),
                     dtype_name(dtype).data());
        throw py::error_already_set();
      }
    }
    std::memcpy(address, &value, sizeof(T));
  });
  if (has_type) return;
  Tensor wide = Tensor::empty(DType::f64, {});
  write_number(number, DType::f64, wide.raw());
  std::memcpy(address, cast(wide, dtype).raw(), item_size(dtype));
}

DType natural_dtype(py::handle number) {
  if (PyComplex_Check(number.ptr())) return DType::c64;
  if (PyBool_Check(number.ptr())) return DType::b8;
  if (!PyLong_Check(number.ptr())) return DType::f32;
  return !fits(number, DType::i64) && fits(number, DType::u64) ? DType::u64 : DType::i64;
}

bool fits(py::handle number, DType dtype) {
  if (!is_integer(dtype) || !PyLong_Check(number.ptr())) return true;
  int overflow = 0;
  const long long integer = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  const auto bits = static_cast<int>(8 * item_size(dtype));
  if (is_unsigned(dtype)) {
    if (overflow == 0) return integer >= 0 && (bits == 64 || integer >> bits == 0);
    if (overflow < 0 || bits < 64) return false;
    const bool in_range = PyLong_AsUnsignedLongLong(number.ptr()) != ~0ULL || PyErr_Occurred() == nullptr;
    PyErr_Clear();
    return in_range;
  }
  return overflow == 0 && (bits == 64 || (integer >= -(1LL << (bits - 1)) && integer < 1LL << (bits - 1)));
}

DType promote_numbers(DType a, DType b) {
  if (a == DType::c64 || b == DType::c64) return DType::c64;
  if (a == DType::f32 || b == DType::f32) return DType::f32;
  if (a == DType::f64 || b == DType::f64) return DType::f64;
  if (a == DType::u64 || b == DType::u64) return a == DType::i64 || b == DType::i64 ? DType::f64 : DType::u64;
  return a == DType::i64 || b == DType::i64 ? DType::i64 : DType::b8;
}

DType promote_with_number(DType array, DType number) {
  if (number == DType::b8) return array;
  if (number == DType::i64 || number == DType::u64) return array == DType::b8 ? number : array;
  if (number == DType::c64) return complex_dtype(array);
  return floating_dtype(array);
}

namespace {

bool is_sequence(py::handle value) {
  return PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()) || PyRange_Check(value.ptr());
}

// Contents of nested lists: their shape, the common dtype, and the leaves in order.
struct Nested {
  Dims shape;
  std::optional<DType> numbers, arrays;
  ObjectPoll poll;
  std::vector<py::object> leaves;  // holds references: a leaf's own code may change the lists during conversion

  // float32 for empty lists.
  DType dtype() const {
    if (!arrays) return numbers.value_or(DType::f32);
    return numbers ? promote_with_number(*arrays, *numbers) : *arrays;
  }

  void add(py::handle value, std::size_t depth) {
    constexpr std::size_t kMaxDepth = 32;
    if (depth > kMaxDepth) throw Error(ErrorKind::shape, "an array cannot be made of lists nested deeper than 32");
    if (PyRange_Check(value.ptr())) {  // no tuple of a range's numbers, which no signal would end
      const Py_ssize_t size = PyObject_Size(value.ptr());
      if (size < 0) throw py::error_already_set();
      add_length(size, depth);
      for (const py::handle item : value) add(item, depth + 1);
      return;
    }
    if (is_sequence(value)) {
      const auto items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(value.ptr()));
      if (!items) throw py::error_already_set();
      add_length(static_cast<std::int64_t>(items.size()), depth);
      for (const py::handle item : items) add(item, depth + 1);
      return;
    }
    poll.proceed();
    if (depth != shape.size())
      throw Error(ErrorKind::shape, "an array cannot be made of nested lists of different depths; make every row equally deep");
    if (is_number(value))
      numbers = promote_numbers(numbers.value_or(DType::b8), natural_dtype(value));
    else
      arrays = arrays ? promote(*arrays, as_tensor(value).dtype()) : as_tensor(value).dtype();
    leaves.push_back(py::reinterpret_borrow<py::object>(value));
  }

 private:
  void add_length(std::int64_t size, std::size_t depth) {
    if (depth == shape.size() && leaves.empty())
      shape.push_back(size);
    else if (depth >= shape.size() || shape[depth] != size)
      throw Error(ErrorKind::shape, "an array cannot be made of nested lists of different lengths; make every row equally long");
  }
};

Tensor from_nested(py::handle value, std::optional<DType> given_dtype) {
  Nested nested;
  nested.add(value, 0);
  const DType dtype = given_dtype.value_or(nested.dtype());
  if (nested.arrays) {  // rows that are arrays
    std::vector<Tensor> rows;
    for (const py::object& leaf : nested.leaves) {
      nested.poll.proceed();
      rows.push_back(as_tensor(leaf, dtype));
    }
    std::int64_t elements = 0;
    for (const Tensor& row : rows) elements += row.size();
    const Tensor stacked = computed(elements, [&] { return evaluate_one("Stack", rows, {{"axis", std::int64_t{0}}}); });
    Dims shape = nested.shape;
    shape.insert(shape.end(), rows[0].shape().begin(), rows[0].shape().end());
    return reshaped(stacked, std::move(shape));
  }
  Tensor tensor = Tensor::empty(dtype, nested.shape);
  std::byte* address = tensor.raw();
  for (const py::object& leaf : nested.leaves) {
    nested.poll.proceed();
    write_number(leaf, dtype, address);
    address += item_size(dtype);
  }
  return tensor;
}

}  // namespace

bool is_number(py::handle value) {
  return PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr()) || PyComplex_Check(value.ptr());
}

DType dtype_of(py::handle name) {
  if (const auto found = find_dtype(name)) return *found;
  throw Error(ErrorKind::dtype,
              "unknown dtype " + py::cast<std::string>(py::repr(name)) +
                  "; known are float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64, bool, complex64, complex128, "
                  "NumPy's short names of them, and the storage types");
}

Tensor scalar(py::handle number, DType dtype) {
  Tensor tensor = Tensor::empty(dtype, {});
  write_number(number, dtype, tensor.raw());
  return tensor;
}

Tensor as_tensor(py::handle value) {
  if (is_ndarray(value)) return tensor_of(value);
  if (is_number(value)) return scalar(value, natural_dtype(value));
  if (is_sequence(value)) return from_nested(value, std::nullopt);
  if (is_recorded(value)) {  // a parameter is its array, but while a graph is traced a value that the graph must have
    const py::object array = record("asarray", value, py::none());
    if (is_ndarray(array)) return tensor_of(array);
    throw Error(ErrorKind::unsupported,
                "a traced array or a trained parameter is used where its values are needed; use functions of walle.np, and "
                "np.stack for a list of arrays");
  }
  if (PyObject_CheckBuffer(value.ptr())) return tensor_from_buffer(value);
  throw py::type_error("expected an array, a number or nested lists, not " + std::string(Py_TYPE(value.ptr())->tp_name));
}

Tensor as_tensor(py::handle value, DType dtype) {
  if (is_number(value)) return scalar(value, dtype);
  if (is_sequence(value)) return from_nested(value, dtype);
  return converted(as_tensor(value), dtype);
}

Tensor converted(const Tensor& tensor, DType dtype) {
  if (is_complex(tensor.dtype()) && !is_complex(dtype) && dtype != DType::b8) {
    const py::object category = py::module_::import("walle.engine_ext.np").attr("exceptions").attr("ComplexWarning");
    if (PyErr_WarnEx(category.ptr(), "casting complex values to real ones discards the imaginary part; take x.real or abs(x)",
                     1) < 0)
      throw py::error_already_set();
  }
  return computed_cast(tensor, dtype);
}

py::object element(DType dtype, const std::byte* address) {
  if (is_complex(dtype)) {
    double wide[2];
    float narrow[2];
    std::memcpy(dtype == DType::c64 ? static_cast<void*>(narrow) : wide, address, item_size(dtype));
    if (dtype == DType::c64) wide[0] = narrow[0], wide[1] = narrow[1];
    return py::reinterpret_steal<py::object>(PyComplex_FromDoubles(wide[0], wide[1]));
  }
  PyObject* result = nullptr;
  const bool has_type = with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T value;
    std::memcpy(&value, address, sizeof(T));
    if constexpr (std::is_same_v<T, bool>)
      result = PyBool_FromLong(value);
    else if constexpr (std::is_floating_point_v<T>)
      result = PyFloat_FromDouble(value);
    else if constexpr (std::is_signed_v<T>)
      result = PyLong_FromLongLong(value);
    else
      result = PyLong_FromUnsignedLongLong(value);
  });
  if (!has_type) {
    float value;
    Conversion(dtype, DType::f32, 0, kernels()).run(address, 1, reinterpret_cast<std::byte*>(&value), 1);
    result = is_floating(dtype) ? PyFloat_FromDouble(value) : PyLong_FromLong(static_cast<long>(value));
  }
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

namespace {
// A list is not tracked by the garbage collector until it is whole: handlers of signals, which run meanwhile, cannot find it
// there.
py::object nested_at(const Tensor& tensor, const std::byte* address, std::size_t axis, ObjectPoll& poll) {
  poll.proceed();
  if (axis == tensor.shape().size()) return element(tensor.dtype(), address);
  const auto size = static_cast<Py_ssize_t>(tensor.shape()[axis]);
  auto list = py::reinterpret_steal<py::object>(PyList_New(size));
  if (!list) throw py::error_already_set();
  PyObject_GC_UnTrack(list.ptr());
  const std::int64_t step = tensor.strides()[axis] * static_cast<std::int64_t>(item_size(tensor.dtype()));
  for (Py_ssize_t i = 0; i < size; ++i)
    PyList_SET_ITEM(list.ptr(), i, nested_at(tensor, address + i * step, axis + 1, poll).release().ptr());
  PyObject_GC_Track(list.ptr());
  return list;
}
}  // namespace

py::object nested_list(const Tensor& array) {
  ObjectPoll poll;
  if (array.ndim() <= 1 && array.size() < ObjectPoll::kInterval / 2) return nested_at(array, array.raw(), 0, poll);  // no poll
  const Tensor tensor = array;  // a copy: a signal's handler may replace the array's tensor (setflags)
  return nested_at(tensor, tensor.raw(), 0, poll);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (compute_index(a) < 0 || compute_index(b) < 0)
    throw Error(ErrorKind::dtype, "operators do not compute in " + std::string(dtype_name(compute_index(a) < 0 ? a : b)) +
                                      "; convert it with astype");
  if (a == DType::b8) return b;
  if (b == DType::b8) return a;
  if (is_complex(a) || is_complex(b)) {
    const DType parts = promote(part_dtype(a), part_dtype(b));
    return parts == DType::f64 || (is_integer(parts) && item_size(parts) > 2) ? DType::c128 : DType::c64;
  }
  if (is_floating(a) && is_floating(b)) return is_half(a) && is_half(b) ? DType::f32 : item_size(a) > item_size(b) ? a : b;
  if (is_floating(b)) return promote(b, a);
  if (is_floating(a)) {  // the smallest float that holds the integers and is at least as wide as a
    const std::size_t bytes = item_size(b);
    return bytes == 1 ? a : bytes == 2 ? promote(a, DType::f32) : DType::f64;
  }
  if (is_unsigned(a) == is_unsigned(b)) return item_size(a) > item_size(b) ? a : b;
  if (is_unsigned(b)) return promote(b, a);
  if (item_size(b) > item_size(a)) return b;  // the signed integer that represents both
  constexpr DType wider[] = {DType::i16, DType::i32, DType::i64, DType::f64};
  return wider[std::bit_width(item_size(a)) - 1];
}

DType complex_dtype(DType dtype) noexcept {
  return is_complex(dtype) ? dtype : floating_dtype(dtype) == DType::f64 ? DType::c128 : DType::c64;
}

DType floating_dtype(DType dtype) noexcept {
  if (is_floating(dtype) || is_complex(dtype)) return dtype;
  return is_integer(dtype) && item_size(dtype) >= 4 ? DType::f64 : DType::f32;
}

std::int64_t size_of(py::handle number) {
  const Py_ssize_t size = PyNumber_AsSsize_t(number.ptr(), PyExc_OverflowError);
  if (size == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return size;
}

Dims dims_of(py::handle numbers) {
  if (PyIndex_Check(numbers.ptr()) && !(is_ndarray(numbers) && tensor_of(numbers).ndim() > 0)) return {size_of(numbers)};
  Dims dims;
  const auto items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(numbers.ptr()));
  if (!items) throw py::error_already_set();
  dims.reserve(items.size());
  ObjectPoll poll;
  for (const py::handle number : items) {
    poll.proceed();
    dims.push_back(size_of(number));
  }
  return dims;
}

Attributes attributes_of(const py::dict& items) {
  Attributes attributes;
  for (const auto& [key, value] : items) {
    auto name = py::cast<std::string>(key);
    if (PyLong_Check(value.ptr()))
      attributes.set(std::move(name), py::cast<std::int64_t>(value));
    else if (PyFloat_Check(value.ptr()))
      attributes.set(std::move(name), py::cast<double>(value));
    else if (PyUnicode_Check(value.ptr()))
      attributes.set(std::move(name), py::cast<std::string>(value));
    else if (const auto list = PySequence_Check(value.ptr()) ? py::list(py::reinterpret_borrow<py::object>(value)) : py::list();
             list.size() > 0 && PyUnicode_Check(list[0].ptr()))
      attributes.set(std::move(name), py::cast<Texts>(list));
    else if (list.size() > 0 && PyFloat_Check(list[0].ptr()))
      attributes.set(std::move(name), py::cast<std::vector<double>>(list));
    else
      attributes.set(std::move(name), dims_of(value));
  }
  return attributes;
}

}  // namespace walle
