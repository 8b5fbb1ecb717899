#include "bindings/convert.h"

#include <pybind11/stl.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "atomic/conversion.h"
#include "bindings/at_once.h"
#include "bindings/bind.h"
#include "exec/eager.h"

namespace py = pybind11;

namespace walle {

namespace {

// Calls f with a null pointer of the dtype's C++ type; false for a dtype that has none (float16, bfloat16 and the stored ones).
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

void put_number(py::handle number, DType dtype, std::byte* address) {
  const bool own = with_type(dtype, [&](auto* type) {
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
      std::int64_t whole;
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
          PyErr_SetString(PyExc_OverflowError, "a float that is no whole number of 64 bits");
          throw py::error_already_set();
        }
        whole = static_cast<std::int64_t>(real);
      } else {
        whole = PyLong_AsLongLong(number.ptr());
        if (whole == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
      }
      value = static_cast<T>(whole);
      if (static_cast<std::int64_t>(value) != whole || (std::is_same_v<T, std::uint64_t> && whole < 0)) {
        PyErr_Format(PyExc_OverflowError, "%lld does not fit %s", static_cast<long long>(whole), dtype_name(dtype).data());
        throw py::error_already_set();
      }
    }
    std::memcpy(address, &value, sizeof(T));
  });
  if (own) return;
  Tensor wide = Tensor::empty(DType::f64, {});
  put_number(number, DType::f64, wide.raw());
  std::memcpy(address, cast(wide, dtype).raw(), item_size(dtype));
}

DType natural_dtype(py::handle number) {
  return PyBool_Check(number.ptr()) ? DType::b8 : PyLong_Check(number.ptr()) ? DType::i64 : DType::f32;
}

bool fits(py::handle number, DType dtype) {
  if (!is_integer(dtype) || !PyLong_Check(number.ptr())) return true;
  int over = 0;
  const long long whole = PyLong_AsLongLongAndOverflow(number.ptr(), &over);
  const auto bits = static_cast<int>(8 * item_size(dtype));
  if (is_unsigned(dtype)) {
    if (over == 0) return whole >= 0 && (bits == 64 || whole >> bits == 0);
    if (over < 0 || bits < 64) return false;
    const bool held = PyLong_AsUnsignedLongLong(number.ptr()) != ~0ULL || PyErr_Occurred() == nullptr;
    PyErr_Clear();
    return held;
  }
  return over == 0 && (bits == 64 || (whole >= -(1LL << (bits - 1)) && whole < 1LL << (bits - 1)));
}

DType with_number(DType array, DType number) {
  if (number == DType::b8) return array;
  if (number == DType::i64) return array == DType::b8 ? DType::i64 : array;
  return floating(array);
}

namespace {

// The dtype of a mix of two numbers of Python's.
DType natural_mix(DType a, DType b) {
  if (a == DType::f32 || b == DType::f32) return DType::f32;
  return a == DType::i64 || b == DType::i64 ? DType::i64 : DType::b8;
}

bool is_sequence(py::handle value) { return PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()); }

// What nested lists hold: their shape, one dtype for all, and the leaves in order.
struct Nested {
  Dims shape;
  std::optional<DType> numbers, arrays;
  std::vector<py::object> leaves;  // held: a leaf's own code may change the lists meanwhile

  // float32 where nothing is there to go by.
  DType dtype() const {
    if (!arrays) return numbers.value_or(DType::f32);
    return numbers ? with_number(*arrays, *numbers) : *arrays;
  }

  void add(py::handle value, std::size_t depth) {
    constexpr std::size_t kMaxDepth = 32;
    if (depth > kMaxDepth) throw Error(ErrorKind::shape, "lists nested deeper than 32");
    if (is_sequence(value)) {
      const auto items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(value.ptr()));
      if (!items) throw py::error_already_set();
      const auto size = static_cast<std::int64_t>(items.size());
      if (depth == shape.size() && leaves.empty())
        shape.push_back(size);
      else if (depth >= shape.size() || shape[depth] != size)
        throw Error(ErrorKind::shape, "nested lists of different lengths; every row must be as long as the others");
      for (const py::handle item : items) add(item, depth + 1);
      return;
    }
    if (depth != shape.size()) throw Error(ErrorKind::shape, "nested lists of different depths");
    if (is_number(value))
      numbers = natural_mix(numbers.value_or(DType::b8), natural_dtype(value));
    else
      arrays = arrays ? promote(*arrays, as_tensor(value).dtype()) : as_tensor(value).dtype();
    leaves.push_back(py::reinterpret_borrow<py::object>(value));
  }
};

Tensor from_nested(py::handle value, std::optional<DType> asked) {
  Nested nested;
  nested.add(value, 0);
  const DType dtype = asked.value_or(nested.dtype());
  if (nested.arrays) {  // rows that are arrays themselves
    std::vector<Tensor> rows;
    for (const py::object& leaf : nested.leaves) rows.push_back(as_tensor(leaf, dtype));
    Tensor stacked = evaluate(*find_operator("Stack"), rows, {{"axis", std::int64_t{0}}}, 1, kernels())[0];
    Dims shape = nested.shape;
    shape.insert(shape.end(), rows[0].shape().begin(), rows[0].shape().end());
    return reshaped(stacked, std::move(shape));
  }
  Tensor tensor = Tensor::empty(dtype, nested.shape);
  std::byte* at = tensor.raw();
  for (const py::object& leaf : nested.leaves) {
    put_number(leaf, dtype, at);
    at += item_size(dtype);
  }
  return tensor;
}

}  // namespace

bool is_number(py::handle value) { return PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr()); }

const Tensor* held(py::handle value) { return is_ndarray(value) ? &py::cast<const Tensor&>(value) : nullptr; }

DType dtype_of(py::handle name) {
  if (name.ptr() == reinterpret_cast<PyObject*>(&PyFloat_Type)) return DType::f32;
  if (name.ptr() == reinterpret_cast<PyObject*>(&PyLong_Type)) return DType::i64;
  if (name.ptr() == reinterpret_cast<PyObject*>(&PyBool_Type)) return DType::b8;
  if (PyUnicode_Check(name.ptr())) {
    const auto text = py::cast<std::string>(name);
    for (int i = 0; i < kDTypeCount; ++i)
      if (dtype_name(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  }
  throw Error(ErrorKind::dtype,
              "unknown dtype " + py::cast<std::string>(py::repr(name)) +
                  "; known are float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64, bool and the storage types");
}

Tensor scalar(py::handle number, DType dtype) {
  Tensor tensor = Tensor::empty(dtype, {});
  put_number(number, dtype, tensor.raw());
  return tensor;
}

Tensor as_tensor(py::handle value) {
  if (is_ndarray(value)) return py::cast<const Tensor&>(value);
  if (is_number(value)) return scalar(value, natural_dtype(value));
  if (is_sequence(value)) return from_nested(value, std::nullopt);
  if (PyObject_CheckBuffer(value.ptr())) return tensor_from_buffer(value);
  throw py::type_error("an array, a number or nested lists are needed, not " + std::string(Py_TYPE(value.ptr())->tp_name));
}

Tensor as_tensor(py::handle value, DType dtype) {
  if (is_number(value)) return scalar(value, dtype);
  if (is_sequence(value)) return from_nested(value, dtype);
  return cast(as_tensor(value), dtype);
}

py::object element(const Tensor& tensor, const std::byte* address) {
  py::object result;
  const bool own = with_type(tensor.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T value;
    std::memcpy(&value, address, sizeof(T));
    result = py::cast(value);
  });
  if (own) return result;
  float value;
  Conversion(tensor.dtype(), DType::f32, 0, kernels()).run(address, 1, reinterpret_cast<std::byte*>(&value), 1);
  return is_floating(tensor.dtype()) ? py::object(py::float_(value)) : py::object(py::int_(static_cast<int>(value)));
}

namespace {
py::object nested_at(const Tensor& tensor, const std::byte* address, std::size_t axis) {
  if (axis == tensor.shape().size()) return element(tensor, address);
  py::list list(static_cast<std::size_t>(tensor.shape()[axis]));
  const std::int64_t step = tensor.strides()[axis] * static_cast<std::int64_t>(item_size(tensor.dtype()));
  for (std::size_t i = 0; i < list.size(); ++i)
    list[i] = nested_at(tensor, address + static_cast<std::int64_t>(i) * step, axis + 1);
  return list;
}
}  // namespace

py::object nested_list(const Tensor& tensor) { return nested_at(tensor, tensor.raw(), 0); }

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (compute_index(a) < 0 || compute_index(b) < 0)
    throw Error(ErrorKind::dtype,
                "no operator takes " + std::string(dtype_name(compute_index(a) < 0 ? a : b)) + "; convert it first");
  if (a == DType::b8) return b;
  if (b == DType::b8) return a;
  if (is_floating(a) && is_floating(b)) return is_half(a) && is_half(b) ? DType::f32 : item_size(a) > item_size(b) ? a : b;
  if (is_floating(b)) return promote(b, a);
  if (is_floating(a)) {  // the float that holds the integer's numbers, and is no smaller than a
    const std::size_t bytes = item_size(b);
    return bytes == 1 ? a : bytes == 2 ? promote(a, DType::f32) : DType::f64;
  }
  if (is_unsigned(a) == is_unsigned(b)) return item_size(a) > item_size(b) ? a : b;
  if (is_unsigned(b)) return promote(b, a);
  if (item_size(b) > item_size(a)) return b;  // the signed integer that holds both
  constexpr DType wider[] = {DType::i16, DType::i32, DType::i64, DType::f64};
  return wider[std::bit_width(item_size(a)) - 1];
}

DType floating(DType dtype) noexcept {
  if (is_floating(dtype)) return dtype;
  return is_integer(dtype) && item_size(dtype) >= 4 ? DType::f64 : DType::f32;
}

Dims dims_of(py::handle numbers) {
  if (PyIndex_Check(numbers.ptr())) return {py::cast<std::int64_t>(numbers)};
  Dims dims;
  for (const py::handle number : py::reinterpret_borrow<py::sequence>(numbers)) dims.push_back(py::cast<std::int64_t>(number));
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
    else if (const auto items = PySequence_Check(value.ptr()) ? py::list(py::reinterpret_borrow<py::object>(value)) : py::list();
             items.size() > 0 && PyUnicode_Check(items[0].ptr()))
      attributes.set(std::move(name), py::cast<Texts>(items));
    else if (items.size() > 0 && PyFloat_Check(items[0].ptr()))
      attributes.set(std::move(name), py::cast<std::vector<double>>(items));
    else
      attributes.set(std::move(name), dims_of(value));
  }
  return attributes;
}

const OpDef& operator_named(std::string_view name) {
  if (const OpDef* op = find_operator(name)) return *op;
  throw Error(ErrorKind::unsupported, "unknown operator '" + std::string(name) + "'");
}

namespace {

// The dtype in which an operator computes what it was given as `dtype`.
DType computed_in(const OpDef& op, DType dtype) {
  const auto takes = [](const OpDef& one, DType type) {
    return one.family == Family::none || one.family == Family::select || computes(one, type);
  };
  if (takes(op, dtype)) return dtype;
  if (dtype == DType::b8 && takes(op, DType::i64)) return DType::i64;
  if (takes(op, floating(dtype)) && compute_index(dtype) >= 0) return floating(dtype);
  return dtype;  // inference refuses it by name
}

Tensor run(const OpDef& op, std::span<const Tensor> inputs, const Attributes& attributes = {}) {
  constexpr std::int64_t kLong = 1 << 16;  // elements from which the GIL is worth giving up
  std::int64_t work = op.family == Family::matmul ? kLong : 0;
  for (const Tensor& input : inputs) work += input.size();
  if (work < kLong) return evaluate(op, inputs, attributes, 1, kernels())[0];
  const py::gil_scoped_release released;
  return evaluate(op, inputs, attributes, 1, kernels())[0];
}

// Two operands, each as a tensor unless it is a number, and the dtype they meet in.
struct Mixed {
  Tensor a, b;
  DType dtype;
};

Mixed mixed(py::handle a, py::handle b) {
  Mixed result;
  if (!is_number(a)) result.a = as_tensor(a);
  if (!is_number(b)) result.b = as_tensor(b);
  if (result.a.storage() && result.b.storage())
    result.dtype = promote(result.a.dtype(), result.b.dtype());
  else if (result.a.storage())
    result.dtype = with_number(result.a.dtype(), natural_dtype(b));
  else
    result.dtype =
        result.b.storage() ? with_number(result.b.dtype(), natural_dtype(a)) : natural_mix(natural_dtype(a), natural_dtype(b));
  return result;
}

}  // namespace

Tensor clip(const Tensor& x, py::handle low, py::handle high) {
  const auto bounded = [](const Tensor& given, const char* name, py::handle bound) {
    return bound.is_none() ? given : binary(name, py::cast(given), bound);
  };
  const auto number = [](py::handle bound) {
    return bound.is_none() || PyFloat_CheckExact(bound.ptr()) || PyLong_CheckExact(bound.ptr());
  };
  if (!is_floating(x.dtype()) || is_half(x.dtype()) || !x.contiguous() || !number(low) || !number(high) || low.is_none() ||
      high.is_none())
    return bounded(bounded(x, "Maximum", low), "Minimum", high);
  const Tensor bottom = scalar(low, x.dtype()), top = scalar(high, x.dtype());
  Tensor result = Tensor::empty(x.dtype(), x.shape());
  const auto type = static_cast<std::size_t>(compute_index(x.dtype()));
  const BinaryFn raise = kernels().binary[static_cast<std::size_t>(BinaryOp::Maximum)][type],
                 lower = kernels().binary[static_cast<std::size_t>(BinaryOp::Minimum)][type];
  constexpr std::int64_t kBlock = 4096;  // both kernels over a piece before the next one, which leaves it in cache
  const auto item = static_cast<std::int64_t>(item_size(x.dtype()));
  const py::gil_scoped_release released;
  for (std::int64_t at = 0; at < x.size(); at += kBlock) {
    std::byte* to = result.raw() + at * item;
    const std::int64_t count = std::min(kBlock, x.size() - at);
    raise(x.raw() + at * item, 1, bottom.raw(), 0, to, count);
    lower(to, 1, top.raw(), 0, to, count);
  }
  return result;
}

Tensor where(py::handle condition, py::handle a, py::handle b) {
  const Mixed operands = mixed(a, b);
  const Tensor inputs[] = {as_tensor(condition, DType::b8),
                           operands.a.storage() ? cast(operands.a, operands.dtype) : scalar(a, operands.dtype),
                           operands.b.storage() ? cast(operands.b, operands.dtype) : scalar(b, operands.dtype)};
  if (auto result = where_at_once(inputs[0], inputs[1], inputs[2])) return *std::move(result);
  return run(operator_named("Where"), inputs);
}

namespace {

// Bit by bit and logical operators are one on bools.
std::string_view logical(std::string_view name) {
  constexpr std::string_view both[][2] = {
      {"BitwiseAnd", "And"}, {"BitwiseOr", "Or"}, {"BitwiseXor", "Xor"}, {"BitwiseNot", "Not"}};
  for (const auto& [bits, logic] : both)
    if (name == bits) return logic;
  return name;
}

}  // namespace

Tensor delivered(Tensor result, py::handle out) {
  if (out.is_none()) return result;
  const Tensor& to = py::cast<const Tensor&>(out);
  if (floating(to.dtype()) != to.dtype() && floating(result.dtype()) == result.dtype())
    throw Error(ErrorKind::dtype, "`out` is " + std::string(dtype_name(to.dtype())) + ", which cannot hold " +
                                      std::string(dtype_name(result.dtype())));
  if (to.shape() != result.shape())
    throw Error(ErrorKind::shape, "`out` has shape " + to_string(to.shape()) + ", the result " + to_string(result.shape()));
  assign(cast(result, to.dtype()), to);
  return to;
}

Tensor unary(const OpDef& given, const Tensor& x) {
  if (auto result = unary_at_once(given, x)) return *std::move(result);
  const OpDef& op = x.dtype() == DType::b8 ? operator_named(logical(given.name)) : given;
  const Tensor inputs[] = {cast(x, computed_in(op, x.dtype()))};
  return run(op, inputs);
}
Tensor unary(const OpDef& op, py::handle x) {
  const Tensor* tensor = held(x);
  return tensor != nullptr ? unary(op, *tensor) : unary(op, as_tensor(x));
}
Tensor unary(std::string_view name, const Tensor& x) { return unary(operator_named(name), x); }

namespace {

// An int outside the other operand's dtype is above or below all of its elements.
std::optional<Tensor> compared_outside(const OpDef& op, const Mixed& operands, py::handle a, py::handle b) {
  const bool left = !operands.a.storage(), right = !operands.b.storage();
  if (op.family != Family::compare || left == right) return std::nullopt;
  const py::handle number = left ? a : b;
  if (fits(number, operands.dtype)) return std::nullopt;
  const std::int64_t element = 0, side = PyObject_RichCompareBool(number.ptr(), py::int_(0).ptr(), Py_GT) == 1 ? 1 : -1;
  Tensor result = Tensor::empty(DType::b8, (left ? operands.b : operands.a).shape());
  kernels().compare[op.code][static_cast<std::size_t>(compute_index(DType::i64))](
      left ? &side : &element, 0, left ? &element : &side, 0, result.raw(), result.size());
  return result;
}

// x ** 2 and the like, which have operators of their own.
const char* power_by(py::handle exponent, DType dtype) {
  if (!PyLong_CheckExact(exponent.ptr()) && !PyFloat_CheckExact(exponent.ptr())) return nullptr;
  const double power = PyFloat_AsDouble(exponent.ptr());
  if (power == 2) return "Square";
  if (!is_floating(dtype)) return nullptr;
  return power == 0.5 ? "Sqrt" : power == -1 ? "Reciprocal" : nullptr;
}

}  // namespace

Tensor binary(const OpDef& given, py::handle a, py::handle b) {
  if (auto result = binary_at_once(given, a, b)) return *std::move(result);
  Mixed operands = mixed(a, b);
  if (auto result = compared_outside(given, operands, a, b)) return *std::move(result);
  if (given.family == Family::matmul && operands.a.storage() && operands.b.storage())
    if (auto result = product_at_once(operands.a, operands.b)) return *std::move(result);
  const OpDef& op = operands.dtype == DType::b8 ? operator_named(logical(given.name)) : given;
  DType dtype = operands.dtype;
  if (op.name == "Power" && operands.a.storage() && !operands.b.storage())
    if (const char* own = power_by(b, dtype)) return unary(operator_named(own), cast(operands.a, computed_in(op, dtype)));
  // Div is true division here; the registry's own divides integers as ONNX does.
  dtype = op.name == "Div" ? floating(dtype) : computed_in(op, dtype);
  const Tensor inputs[] = {operands.a.storage() ? cast(operands.a, dtype) : scalar(a, dtype),
                           operands.b.storage() ? cast(operands.b, dtype) : scalar(b, dtype)};
  return run(op, inputs);
}
Tensor binary(std::string_view name, py::handle a, py::handle b) { return binary(operator_named(name), a, b); }

namespace {

// Where whole numbers are summed and multiplied: 64 bits, without a sign if they have none.
DType summed_in(DType dtype) { return is_floating(dtype) ? dtype : is_unsigned(dtype) ? DType::u64 : DType::i64; }

// The sum of small whole numbers in 64 bits: widened and summed in 32 bits, a piece at a time that those can hold.
std::int64_t sum_small(const Tensor& x) {
  constexpr std::int64_t kBlock = 16384;
  constexpr auto kSum = static_cast<std::size_t>(ReduceOp::ReduceSum);
  constexpr std::size_t kI32 = 2;
  const Table& table = kernels();
  const UnaryFn widen = table.cast[static_cast<std::size_t>(compute_index(x.dtype()))][kI32];
  const auto item = static_cast<std::int64_t>(item_size(x.dtype()));
  alignas(64) std::int32_t wide[kBlock];
  std::int64_t total = 0;
  for (std::int64_t done = 0; done < x.size(); done += kBlock) {
    const std::int64_t size = std::min(kBlock, x.size() - done);
    widen(x.raw() + done * item, 1, wide, size);
    std::int32_t part = 0;
    table.reduce[kSum][kI32](wide, 1, size, &part);
    total += part;
  }
  return total;
}

// How many of the flags are set: bytes are added to bytes while those can hold the sums.
std::int64_t count_true(const std::byte* flags, std::int64_t count) {
  constexpr std::int64_t kBlock = 4096, kMost = 255;
  constexpr auto kAdd = static_cast<std::size_t>(BinaryOp::Add), kSum = static_cast<std::size_t>(ReduceOp::ReduceSum);
  constexpr std::size_t kI32 = 2, kU8 = 4;
  const Table& table = kernels();
  alignas(64) std::byte sums[kBlock];
  alignas(64) std::int32_t wide[kBlock];
  std::int64_t total = 0;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t size = std::min(kBlock, count - done), blocks = std::min(kMost, (count - done) / size);
    std::memcpy(sums, flags + done, static_cast<std::size_t>(size));
    for (std::int64_t i = 1; i < blocks; ++i) table.binary[kAdd][kU8](sums, 1, flags + done + i * size, 1, sums, size);
    done += size * blocks;
    table.cast[kU8][kI32](sums, 1, wide, size);
    std::int32_t part = 0;
    table.reduce[kSum][kI32](wide, 1, size, &part);
    total += part;
  }
  return total;
}

// Sums of all of an array of bools or small whole numbers, and the greatest and least of all flags, without converting them
// first; any and all stop early.
std::optional<Tensor> reduced_small(const std::string& name, const Tensor& x, bool keepdims) {
  if (!x.contiguous()) return std::nullopt;
  const Dims shape(keepdims ? x.shape().size() : 0, 1);
  if (name == "ReduceSum" && (x.dtype() == DType::b8 || (is_integer(x.dtype()) && item_size(x.dtype()) <= 2))) {
    Tensor result = Tensor::empty(summed_in(x.dtype()), shape);  // the same bits in int64 and uint64
    *result.data<std::int64_t>() = x.dtype() == DType::b8 ? count_true(x.raw(), x.size()) : sum_small(x);
    return result;
  }
  const bool most = name == "ReduceMax";
  if (x.dtype() != DType::b8 || (!most && name != "ReduceMin")) return std::nullopt;
  Tensor result = Tensor::empty(DType::b8, shape);
  const auto size = static_cast<std::size_t>(x.size());
  *result.data<bool>() = (size > 0 && std::memchr(x.raw(), most ? 1 : 0, size) != nullptr) == most;
  return result;
}

}  // namespace

Tensor reduce(const std::string& given, const Tensor& x, py::handle axis, bool keepdims) {
  const bool logic = given == "All" || given == "Any";  // the least and the greatest flag
  const std::string name = !logic ? given : given == "All" ? "ReduceMin" : "ReduceMax";
  const OpDef& op = operator_named(name);
  const bool extreme = name == "ReduceMax" || name == "ReduceMin", mean = op.family == Family::mean;
  Tensor input = logic ? cast(x, DType::b8) : x;
  if (axis.is_none() && (logic || !extreme || x.size() > 0))
    if (auto result = reduced_small(name, input, keepdims)) return *std::move(result);
  if (name == "ReduceSum" || name == "ReduceProd")
    input = cast(x, summed_in(x.dtype()));
  else if (mean)
    input = cast(x, floating(x.dtype()));
  if (auto result = reduced_at_once(op, input, axis, keepdims)) return *std::move(result);
  Attributes attributes{{"keepdims", std::int64_t{keepdims}}};
  if (op.family == Family::arg) {
    if (axis.is_none()) input = reshaped(contiguous(input), {-1});
    attributes.set("axis", axis.is_none() ? std::int64_t{0} : py::cast<std::int64_t>(axis));
  } else if (!axis.is_none()) {
    attributes.set("axes", dims_of(axis));
    if (dims_of(axis).empty()) attributes.set("noop_with_empty_axes", std::int64_t{1});
  }
  // NumPy has no greatest and no least of nothing, where ONNX has infinities.
  if (extreme && !logic) {
    const Operand operand{input.dtype(), input.shape(), nullptr, false};
    for (const std::size_t gone : reduced_axes(op, {&operand, 1}, attributes))
      if (input.shape()[gone] == 0)
        throw Error(ErrorKind::shape, name + " over an axis without elements, shape " + to_string(input.shape()));
  }
  const Tensor inputs[] = {input};
  Tensor result = run(op, inputs, attributes);
  if (op.family == Family::arg && axis.is_none()) result = reshaped(result, Dims(keepdims ? x.shape().size() : 0, 1));
  return result;
}

Tensor view(const Tensor& x, Dims shape, Dims strides, std::int64_t offset) {
  return {x.storage(), x.dtype(), std::move(shape), std::move(strides), offset};
}

namespace {

// The strides that show x's elements in another shape of as many, row by row; nothing where no strides do. Runs of axes of both
// shapes with equal products go together, and x's must step as one.
std::optional<Dims> strides_as(const Tensor& x, const Dims& shape) {
  if (x.contiguous()) return contiguous_strides(shape);
  Dims from, step;
  for (std::size_t i = 0; i < x.shape().size(); ++i)
    if (x.shape()[i] != 1) {
      from.push_back(x.shape()[i]);
      step.push_back(x.strides()[i]);
    }
  Dims result(shape.size(), 0);
  std::size_t i = 0, j = 0;
  while (i < from.size() && j < shape.size()) {
    const std::size_t first = i;
    std::int64_t left = from[i++], right = shape[j++];
    const std::size_t begin = j - 1;
    while (left != right) (left < right) ? left *= from[i++] : right *= shape[j++];
    for (std::size_t k = first; k + 1 < i; ++k)
      if (step[k] != step[k + 1] * from[k + 1]) return std::nullopt;
    std::int64_t stride = step[i - 1];
    for (std::size_t k = j; k-- > begin; stride *= shape[k]) result[k] = stride;
  }
  return result;
}

}  // namespace

Tensor reshaped(const Tensor& x, Dims shape) {
  std::size_t open = shape.size();
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != -1) continue;
    if (open != shape.size())
      throw Error(ErrorKind::shape, "a reshape to " + to_string(shape) + " leaves more than one dimension open");
    open = i;
  }
  if (open != shape.size()) {
    shape[open] = 1;
    const std::int64_t rest = element_count(shape);
    shape[open] = rest == 0 ? 0 : x.size() / rest;
  }
  if (element_count(shape) != x.size())
    throw Error(ErrorKind::shape, "cannot reshape an array of shape " + to_string(x.shape()) + " to " + to_string(shape));
  if (auto strides = strides_as(x, shape)) return view(x, std::move(shape), *std::move(strides), x.offset());
  const Tensor dense = contiguous(x);
  Dims strides = contiguous_strides(shape);
  return view(dense, std::move(shape), std::move(strides), dense.offset());
}

}  // namespace walle
