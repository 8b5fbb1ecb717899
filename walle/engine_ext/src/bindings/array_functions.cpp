// Functions of walle.np that small arrays call most: creation, joining and sorting, without pybind11 between. Large arrays are
// passed to the registry's operators.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/fast_call.h"
#include "bindings/operations.h"
#include "bindings/recording.h"
#include "bindings/released_gil.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

// Throws Error (unsupported) for an `order` of memory other than row-major, which arrays always are created in.
void check_order(PyObject* order) {
  if (is_given(order) && is_column_major(order, Tensor()))
    throw Error(ErrorKind::unsupported, "arrays are created in row-major order only; leave `order` out, or use transpose()");
}

py::handle given_or_none(PyObject* argument) { return argument == nullptr ? Py_None : argument; }

PyObject* asarray(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&]() -> PyObject* {
    if (count == 1 && keywords == nullptr && is_ndarray(args[0])) return Py_NewRef(args[0]);
    const auto [value, dtype, order, copy] =
        parse(Signature<4>{"asarray", {"value", "dtype", "order", "copy"}, 1, 3}, args, count, keywords);
    check_order(order);
    if (py::object same = recorded_or_null("asarray", {value}, py::handle(value), given_or_none(dtype)))
      return same.release().ptr();
    if (is_given(copy) && is_true(copy)) {
      const Tensor x = is_given(dtype) ? as_tensor(value, dtype_of(dtype)) : as_tensor(value);
      return new_array(is_ndarray(value) || PyObject_CheckBuffer(value) ? copy_of(x) : x);
    }
    if (!is_given(dtype)) return is_ndarray(value) ? Py_NewRef(value) : new_array(as_tensor(value));
    const DType wanted = dtype_of(dtype);
    if (is_ndarray(value) && tensor_of(value).dtype() == wanted) return Py_NewRef(value);
    return new_array(as_tensor(value, wanted));
  });
}

PyObject* array(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&]() -> PyObject* {
    const auto [value, dtype, copy, order, ndmin] =
        parse(Signature<5>{"array", {"value", "dtype", "copy", "order", "ndmin"}, 1, 2}, args, count, keywords);
    check_order(order);
    if (py::object same = recorded_or_null("asarray", {value}, py::handle(value), given_or_none(dtype)))
      return same.release().ptr();
    const std::int64_t rank = is_given(ndmin) ? size_of(ndmin) : 0;
    const bool may_share = copy != nullptr && (copy == Py_None || !is_true(copy));
    if (may_share && rank <= 0 && is_ndarray(value) && (!is_given(dtype) || dtype_of(dtype) == tensor_of(value).dtype()))
      return Py_NewRef(value);
    Tensor result = is_given(dtype) ? as_tensor(value, dtype_of(dtype)) : as_tensor(value);
    const bool is_new = PyList_Check(value) || PyTuple_Check(value) || is_number(value);
    if (!may_share && !is_new) result = copy_of(result);
    if (rank > result.ndim()) {
      if (rank > 64) throw Error(ErrorKind::shape, "ndmin " + std::to_string(rank) + " is more than 64");
      Dims shape = result.shape();
      shape.insert(shape.begin(), static_cast<std::size_t>(rank - result.ndim()), 1);
      result = reshaped(result, std::move(shape));
    }
    return new_array(std::move(result));
  });
}

// zeros, ones and empty. `empty` gives zeros too, because uninitialised memory could show another task's data.
template <int value>
PyObject* filled(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&] {
    constexpr const char* kName = value == 0 ? "zeros" : "ones";
    const auto [shape, dtype, order] = parse(Signature<3>{kName, {"shape", "dtype", "order"}, 1}, args, count, keywords);
    check_order(order);
    const DType wanted = is_given(dtype) ? dtype_of(dtype) : DType::f32;
    Tensor result = Tensor::empty(wanted, dims_of(shape));
    const std::int64_t size = result.size();
    if (value == 0 && size <= kFastPathElements)
      std::memset(result.raw(), 0, static_cast<std::size_t>(size) * item_size(wanted));
    else
      computed_assign(scalar(py::int_(value), wanted), result);
    return new_array(std::move(result));
  });
}

py::object checked(PyObject* result) {
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// Fills numbers[i] with of(i).
template <class T, class Of>
void fill_numbers(T* numbers, std::int64_t count, Of of) {
  computed(count, [&] {
    run_stoppable(count, 1, [=](std::int64_t first, std::int64_t last) {  // captures by copy: no number aliases them
      const Of number = of;
      for (std::int64_t i = first; i < last; ++i) numbers[i] = number(i);
    });
    return true;
  });
}

// arange(stop), arange(start, stop, step, dtype).
PyObject* arange_until(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&] {
    auto [start, stop, step, dtype] = parse(Signature<4>{"arange", {"start", "stop", "step", "dtype"}}, args, count, keywords);
    const py::int_ zero(0), one(1);
    if (!is_given(stop)) stop = start, start = nullptr;
    if (!is_given(stop)) throw py::type_error("arange() needs the argument 'stop'");
    if (!is_given(start)) start = zero.ptr();
    if (!is_given(step)) step = one.ptr();
    bool whole = true;
    for (PyObject* number : {start, stop, step})
      whole = whole && (PyLong_Check(number) || (is_ndarray(number) && is_integer(tensor_of(number).dtype())));
    const int is_still = PyObject_RichCompareBool(step, zero.ptr(), Py_EQ);
    if (is_still < 0) throw py::error_already_set();
    if (is_still == 1) throw Error(ErrorKind::shape, "arange with a step of 0; give a positive or negative step");
    // The number of steps, rounded up: -(-(stop - start) // step).
    const py::object length = checked(PyNumber_Subtract(start, stop));
    const py::object steps = checked(PyNumber_FloorDivide(length.ptr(), step));
    const py::object size = checked(PyNumber_Long(checked(PyNumber_Negative(steps.ptr())).ptr()));
    const std::int64_t elements = std::max<std::int64_t>(0, size_of(size));
    const DType wanted = is_given(dtype) ? dtype_of(dtype) : whole ? DType::i64 : DType::f32;
    Tensor result;
    if (whole && !is_floating(wanted)) {
      const std::int64_t first = size_of(start), by = size_of(step);
      result = Tensor::empty(DType::i64, {elements});
      fill_numbers(result.data<std::int64_t>(), elements, [=](std::int64_t i) { return first + i * by; });
    } else {
      const double first = PyFloat_AsDouble(checked(PyNumber_Float(start)).ptr()),
                   by = PyFloat_AsDouble(checked(PyNumber_Float(step)).ptr());
      result = Tensor::empty(DType::f64, {elements});
      fill_numbers(result.data<double>(), elements, [=](std::int64_t i) { return first + static_cast<double>(i) * by; });
    }
    return new_array(computed_cast(result, wanted));
  });
}

// Returns small arrays joined along an axis; nothing where they are large or do not fit, which the operator reports.
std::optional<Tensor> fast_concatenate(const std::vector<Tensor>& parts, std::int64_t axis) {
  const std::int64_t rank = parts[0].ndim();
  if (axis < -rank || axis >= rank) return std::nullopt;
  const auto at = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  Dims shape = parts[0].shape();
  shape[at] = 0;
  std::int64_t elements = 0;
  for (const Tensor& part : parts) {
    if (part.ndim() != rank || !part.contiguous()) return std::nullopt;
    for (std::size_t i = 0; i < shape.size(); ++i)
      if (i != at && part.shape()[i] != shape[i]) return std::nullopt;
    shape[at] += part.shape()[at];
    elements += part.size();
  }
  if (elements > kFastPathElements) return std::nullopt;
  Tensor result = Tensor::empty(parts[0].dtype(), std::move(shape));
  std::int64_t outer = 1;
  for (std::size_t i = 0; i < at; ++i) outer *= result.shape()[i];
  const std::size_t item = item_size(result.dtype());
  std::byte* to = result.raw();
  for (std::int64_t i = 0; i < outer && elements > 0; ++i)
    for (const Tensor& part : parts) {
      const std::size_t bytes = static_cast<std::size_t>(part.size() / outer) * item;
      std::memcpy(to, part.raw() + static_cast<std::size_t>(i) * bytes, bytes);
      to += bytes;
    }
  return result;
}

// Converts a sequence of arrays to their common dtype, or to `dtype`.
std::vector<Tensor> arrays_of(PyObject* sequence, PyObject* dtype) {
  const auto items = checked(PySequence_Tuple(sequence));
  const Py_ssize_t count = PyTuple_GET_SIZE(items.ptr());
  if (count == 0) throw Error(ErrorKind::shape, "at least one array is needed");
  std::vector<Tensor> parts;
  parts.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) parts.push_back(as_tensor(PyTuple_GET_ITEM(items.ptr(), i)));
  DType common = is_given(dtype) ? dtype_of(dtype) : parts[0].dtype();
  if (!is_given(dtype))
    for (const Tensor& part : parts) common = promote(common, part.dtype());
  for (Tensor& part : parts)
    if (part.dtype() != common) part = computed_cast(part, common);
  return parts;
}

PyObject* concatenate(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&] {
    const auto [arrays, axis, out, dtype, casting] =
        parse(Signature<5>{"concatenate", {"arrays", "axis", "out", "dtype", "casting"}, 1, 3}, args, count, keywords);
    if (has_recorded(arrays))
      return record("concatenate", py::handle(arrays), axis == nullptr ? py::handle(py::int_(0)) : py::handle(axis),
                    given_or_none(dtype))
          .release()
          .ptr();
    std::vector<Tensor> parts = arrays_of(arrays, dtype);
    const bool flat = axis == Py_None;
    if (flat)
      for (Tensor& part : parts) part = reshaped(part, {-1});
    const std::int64_t at = is_given(axis) ? size_of(axis) : 0;
    if (auto result = fast_concatenate(parts, at)) return new_stored(*std::move(result), out);
    const Attributes attributes{{"axis", at}};
    std::int64_t elements = 0;
    for (const Tensor& part : parts) elements += part.size();
    return new_stored(computed(elements, [&] { return evaluate_one("Concat", parts, attributes); }), out);
  });
}

constexpr std::int64_t kSortedHere = 256;  // elements of a row up to which a comparison sort is the faster one

// Sorts each row of a dense array in place, or the indices of each row. NaN comes last; equal elements stay in order.
template <class T, bool indices>
void sort_rows(const T* from, std::int64_t rows, std::int64_t length, void* to) {
  const auto before = [](T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a < b || (b != b && a == a);
    return a < b;
  };
  for (std::int64_t row = 0; row < rows; ++row, from += length) {
    if constexpr (indices) {
      auto* order = static_cast<std::int64_t*>(to) + row * length;
      std::iota(order, order + length, 0);
      std::stable_sort(order, order + length, [&](std::int64_t a, std::int64_t b) { return before(from[a], from[b]); });
    } else {
      T* values = static_cast<T*>(to) + row * length;
      std::copy(from, from + length, values);
      std::stable_sort(values, values + length, before);
    }
  }
}

template <bool indices>
std::optional<Tensor> fast_sort(const Tensor& x, std::int64_t axis) {
  const std::int64_t rank = x.ndim();
  if (rank == 0 || (axis != -1 && axis != rank - 1) || !x.contiguous() || x.size() > kFastPathElements || x.size() == 0 ||
      x.shape().back() > kSortedHere)
    return std::nullopt;
  const std::int64_t length = x.shape().back(), rows = x.size() / length;
  Tensor result = Tensor::empty(indices ? DType::i64 : x.dtype(), x.shape());
  switch (x.dtype()) {
    case DType::f32: sort_rows<float, indices>(x.data<float>(), rows, length, result.raw()); return result;
    case DType::f64: sort_rows<double, indices>(x.data<double>(), rows, length, result.raw()); return result;
    case DType::i32: sort_rows<std::int32_t, indices>(x.data<std::int32_t>(), rows, length, result.raw()); return result;
    case DType::i64: sort_rows<std::int64_t, indices>(x.data<std::int64_t>(), rows, length, result.raw()); return result;
    default: return std::nullopt;
  }
}

// sort(x, axis) and argsort(x, axis); without an axis, of the flat array.
template <bool indices>
PyObject* sort(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&] {
    const auto [value, axis] = parse(Signature<2>{"sort", {"x", "axis"}, 2}, args, count, keywords);
    if (py::object sorted = recorded_or_null(indices ? "argsort" : "sort", {value}, py::handle(value), given_or_none(axis)))
      return sorted.release().ptr();
    const Tensor given = as_tensor(value), x = axis == Py_None ? reshaped(given, {-1}) : given;
    const std::int64_t at = axis == Py_None ? -1 : size_of(axis);
    if (auto result = fast_sort<indices>(x, at)) return new_array(*std::move(result));
    const std::size_t normal = normal_axis(at, x.shape().size());
    const Tensor inputs[] = {x};
    return new_array(computed_without_gil([&] {
      return evaluate_one(indices ? "TopIndices" : "TopValues", inputs,
                          {{"axis", static_cast<std::int64_t>(normal)}, {"k", x.shape()[normal]}, {"largest", std::int64_t{0}}});
    }));
  });
}

// Returns the array of the bytes of its elements in row-major order, which are copied.
PyObject* array_from_bytes(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&] {
    const auto [data, dtype, shape] =
        parse(Signature<3>{"array_from_bytes", {"data", "dtype", "shape"}, 3}, args, count, keywords);
    if (!PyBytes_Check(data)) throw py::type_error("array_from_bytes() takes bytes");
    const DType wanted = dtype_of(dtype);
    const Dims dims = dims_of(shape);
    const auto bytes = static_cast<std::size_t>(PyBytes_GET_SIZE(data));
    if (static_cast<std::size_t>(element_count(dims)) * item_size(wanted) != bytes)
      throw Error(ErrorKind::shape, std::to_string(bytes) + " bytes are not an array of shape " + to_string(dims) +
                                        " and dtype " + std::string(dtype_name(wanted)));
    Tensor result = Tensor::empty(wanted, dims);
    const char* from = PyBytes_AS_STRING(data);
    computed(static_cast<std::int64_t>(bytes), [&] {
      run_stoppable(static_cast<std::int64_t>(bytes), 1, [&](std::int64_t first, std::int64_t last) {
        std::memcpy(result.raw() + first, from + first, static_cast<std::size_t>(last - first));
        for (std::int64_t i = first; i < last && wanted == DType::b8; ++i)
          result.data<std::uint8_t>()[i] &= 1;  // kernels rely on 0 and 1
      });
      return true;
    });
    return new_array(std::move(result));
  });
}

// Writes the shortest text of a float of 16 or fewer bits.
std::to_chars_result half_digits(float value, DType dtype, char* begin, char* end) {
  const Tensor number = Tensor::empty(DType::f32, {});
  for (int digits = 0; digits < 8; ++digits) {
    const auto result = std::to_chars(begin, end, value, std::chars_format::scientific, digits);
    float read = 0;
    std::from_chars(begin, result.ptr, read);
    *number.data<float>() = read;
    const Tensor back = cast(cast(number, dtype), DType::f32);
    if (*back.data<float>() == value) return result;
  }
  return std::to_chars(begin, end, value, std::chars_format::scientific);
}

// Returns the shortest decimal text of each float that gives the same float of its dtype, as d.ddde+xx.
PyObject* shortest_digits(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return translated([&]() -> PyObject* {
    const auto [value] = parse(Signature<1>{"shortest_digits", {"x"}, 1}, args, count, keywords);
    const Tensor given = as_tensor(value);
    if (!is_floating(given.dtype())) throw Error(ErrorKind::dtype, "shortest_digits takes floats");
    const Tensor x = computed_contiguous(given.dtype() == DType::f64 ? given : computed_cast(given, DType::f32));
    const auto texts = checked(PyList_New(x.size()));
    PyObject_GC_UnTrack(texts.ptr());  // untracked until it is whole: handlers of signals cannot find it
    ObjectPoll poll;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      poll.proceed();
      char text[64];
      const auto end = x.dtype() == DType::f64
                           ? std::to_chars(text, text + sizeof(text), x.data<double>()[i], std::chars_format::scientific)
                       : given.dtype() == DType::f32
                           ? std::to_chars(text, text + sizeof(text), x.data<float>()[i], std::chars_format::scientific)
                           : half_digits(x.data<float>()[i], given.dtype(), text, text + sizeof(text));
      PyObject* one = PyUnicode_FromStringAndSize(text, end.ptr - text);
      if (one == nullptr) return nullptr;
      PyList_SET_ITEM(texts.ptr(), i, one);
    }
    PyObject_GC_Track(texts.ptr());
    return Py_NewRef(texts.ptr());
  });
}

template <class Function>
PyMethodDef function_of(const char* name, Function* function, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL | METH_KEYWORDS, doc};
}

}  // namespace

void bind_array_functions(py::module_& module) {
  static PyMethodDef functions[] = {
      function_of("asarray", asarray, "Return the value as an array: an array or buffer of the dtype is shared, not copied."),
      function_of("array", array, "Return a new array of the value, with leading axes of 1 up to `ndmin`."),
      function_of("zeros", filled<0>, "Return an array of zeros; float32 without a dtype."),
      function_of("ones", filled<1>, "Return an array of ones; float32 without a dtype."),
      function_of("arange_until", arange_until, "Return start, start + step, and so on; `stop` is excluded."),
      function_of("concatenate", concatenate, "Return the arrays joined along an axis, or the flat arrays without one."),
      function_of("sort", sort<false>, "Return the elements in ascending order along an axis, NaN last."),
      function_of("array_from_bytes", array_from_bytes, "Return the array of the bytes of its elements, which are copied."),
      function_of("shortest_digits", shortest_digits, "Return the shortest text of each float that gives the same float."),
      function_of("argsort", sort<true>, "Return the indices that sort along an axis; equal elements stay in order."),
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(module.ptr(), functions) < 0) throw py::error_already_set();
}

}  // namespace walle
