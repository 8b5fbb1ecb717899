#include "bindings/operations.h"

#include <cstring>
#include <optional>

#include "atomic/conversion.h"
#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/fast_path.h"
#include "bindings/released_gil.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

const OpDef& operator_named(std::string_view name) {
  if (const OpDef* op = find_operator(name)) return *op;
  throw Error(ErrorKind::unsupported, "unknown operator '" + std::string(name) + "'");
}

namespace {

// Returns the dtype in which an operator computes operands of `dtype`.
DType compute_dtype(const OpDef& op, DType dtype) {
  const auto takes = [](const OpDef& one, DType type) {
    return one.as<ListedKernel>() == nullptr || one.is(Family::select) || computes(one, type);
  };
  if (takes(op, dtype)) return dtype;
  if (dtype == DType::b8 && takes(op, DType::i64)) return DType::i64;
  if (takes(op, floating_dtype(dtype)) && compute_index(dtype) >= 0) return floating_dtype(dtype);
  return dtype;  // shape inference refuses it with the operator's name
}

// Returns the elements of the tensors broadcast against each other, whether or not they fit.
double broadcast_elements(std::span<const Tensor> tensors) {
  std::size_t rank = 0;
  for (const Tensor& tensor : tensors) rank = std::max(rank, tensor.shape().size());
  double elements = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    std::int64_t longest = 0;
    for (const Tensor& tensor : tensors)
      if (i < tensor.shape().size()) longest = std::max(longest, tensor.shape()[tensor.shape().size() - 1 - i]);
    elements *= static_cast<double>(longest);
  }
  return elements;
}

Tensor run(const OpDef& op, std::span<const Tensor> inputs, const Attributes& attributes = {}) {
  constexpr double kLargeOperands = 1 << 16;  // elements from which releasing the GIL pays off for any operator
  double work = op.is(Family::matmul) ? kLargeOperands : 0;
  for (const Tensor& input : inputs) work += static_cast<double>(input.size());
  work = std::max(work, broadcast_elements(inputs));
  if (work < kLargeOperands) return evaluate(op, inputs, attributes, 1, kernels())[0];
  return computed_without_gil([&] { return evaluate(op, inputs, attributes, 1, kernels())[0]; });
}

// Two operands, each as a tensor unless it is a Python number, and their common dtype.
struct MixedOperands {
  Tensor a, b;
  DType dtype;
};

MixedOperands mixed_operands(py::handle a, py::handle b) {
  MixedOperands result;
  if (!is_number(a)) result.a = as_tensor(a);
  if (!is_number(b)) result.b = as_tensor(b);
  if (result.a.storage() && result.b.storage())
    result.dtype = promote(result.a.dtype(), result.b.dtype());
  else if (result.a.storage())
    result.dtype = promote_with_number(result.a.dtype(), natural_dtype(b));
  else
    result.dtype = result.b.storage() ? promote_with_number(result.b.dtype(), natural_dtype(a))
                                      : promote_numbers(natural_dtype(a), natural_dtype(b));
  return result;
}

}  // namespace

Tensor clip(const Tensor& array, py::handle low, py::handle high) {
  const Tensor x = array;  // a copy: another thread may replace the array's tensor (setflags) while the GIL is released
  const auto bounded = [](const Tensor& given, const char* name, py::handle bound) {
    return bound.is_none() ? given : binary(name, py::reinterpret_steal<py::object>(new_array(given)), bound);
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
  constexpr std::int64_t kBlock = 4096;  // elements; both kernels run over one block, so that it stays in cache
  const auto item = static_cast<std::int64_t>(item_size(x.dtype()));
  return computed_without_gil([&] {
    StopPoll poll;
    for (std::int64_t start = 0; start < x.size() && poll.proceed(kBlock); start += kBlock) {
      std::byte* block = result.raw() + start * item;
      const std::int64_t count = std::min(kBlock, x.size() - start);
      raise(x.raw() + start * item, 1, bottom.raw(), 0, block, count);
      lower(block, 1, top.raw(), 0, block, count);
    }
    return std::move(result);
  });
}

Tensor where(py::handle condition, py::handle a, py::handle b) {
  const MixedOperands operands = mixed_operands(a, b);
  const Tensor inputs[] = {as_tensor(condition, DType::b8),
                           operands.a.storage() ? computed_cast(operands.a, operands.dtype) : scalar(a, operands.dtype),
                           operands.b.storage() ? computed_cast(operands.b, operands.dtype) : scalar(b, operands.dtype)};
  if (auto result = fast_where(inputs[0], inputs[1], inputs[2])) return *std::move(result);
  return run(operator_named("Where"), inputs);
}

namespace {

// Returns the logical operator that a bitwise one is on bools; other names unchanged.
std::string_view logical_name(std::string_view name) {
  constexpr std::string_view pairs[][2] = {
      {"BitwiseAnd", "And"}, {"BitwiseOr", "Or"}, {"BitwiseXor", "Xor"}, {"BitwiseNot", "Not"}};
  for (const auto& [bits, logic] : pairs)
    if (name == bits) return logic;
  return name;
}

}  // namespace

bool holds_kind(DType target, DType result) noexcept {
  const auto kind = [](DType dtype) {
    return is_complex(dtype) ? 4 : floating_dtype(dtype) == dtype ? 3 : dtype == DType::b8 ? 0 : is_unsigned(dtype) ? 1 : 2;
  };
  return kind(result) <= kind(target);
}

namespace {
// Returns whether a result of one shape can be repeated to fill an array of the other.
bool fills(const Dims& result, const Dims& target) {
  if (result.size() > target.size()) return false;
  const std::size_t more = target.size() - result.size();
  for (std::size_t i = 0; i < result.size(); ++i)
    if (result[i] != 1 && result[i] != target[more + i]) return false;
  return true;
}
}  // namespace

PyObject* new_stored(Tensor result, PyObject* out, bool may_repeat) {
  if (out == nullptr || out == Py_None) return new_array(std::move(result));
  if (PyTuple_Check(out) && PyTuple_GET_SIZE(out) == 1)
    return new_stored(std::move(result), PyTuple_GET_ITEM(out, 0), may_repeat);
  if (!is_ndarray(out)) throw py::type_error("`out` must be an ndarray, not " + std::string(Py_TYPE(out)->tp_name));
  const Tensor& target = tensor_of(out);
  if (!holds_kind(target.dtype(), result.dtype()))
    throw Error(ErrorKind::dtype, "`out` has dtype " + std::string(dtype_name(target.dtype())) +
                                      ", which cannot hold a result of dtype " + std::string(dtype_name(result.dtype())));
  if (target.shape() != result.shape() && !(may_repeat && fills(result.shape(), target.shape())))
    throw Error(ErrorKind::shape,
                "`out` has shape " + to_string(target.shape()) + ", but the result has shape " + to_string(result.shape()));
  computed_assign(computed_cast(result, target.dtype()), target);
  return Py_NewRef(out);
}

Tensor unary(const OpDef& given, const Tensor& x) {
  if (is_complex(x.dtype()) && given.name == "Abs") return unary(operator_named("Magnitude"), x);
  if (auto result = fast_unary(given, x)) return *std::move(result);
  if (x.dtype() == DType::b8 && given.name == "Abs") return copy_of(x);  // bool as in NumPy, so that ~abs(x) negates
  const OpDef& op = x.dtype() == DType::b8 ? operator_named(logical_name(given.name)) : given;
  const Tensor inputs[] = {computed_cast(x, compute_dtype(op, x.dtype()))};
  return run(op, inputs);
}
Tensor unary(const OpDef& op, py::handle x) {
  const Tensor* tensor = tensor_or_null(x);
  return tensor != nullptr ? unary(op, *tensor) : unary(op, as_tensor(x));
}
Tensor unary(std::string_view name, const Tensor& x) { return unary(operator_named(name), x); }

namespace {

// Compares with an int that is out of range of the other operand's dtype: it is above or below all elements. Returns nothing
// for other comparisons.
std::optional<Tensor> compare_out_of_range(const OpDef& op, const MixedOperands& operands, py::handle a, py::handle b) {
  const bool number_left = !operands.a.storage(), number_right = !operands.b.storage();
  if (!op.is(Family::compare) || number_left == number_right) return std::nullopt;
  const py::handle number = number_left ? a : b;
  if (fits(number, operands.dtype)) return std::nullopt;
  const int is_above = PyObject_RichCompareBool(number.ptr(), py::int_(0).ptr(), Py_GT);
  if (is_above < 0) throw py::error_already_set();
  const std::int64_t element = 0, side = is_above == 1 ? 1 : -1;
  Tensor result = Tensor::empty(DType::b8, (number_left ? operands.b : operands.a).shape());
  const auto compare = kernels().compare[op.as<ListedKernel>()->code][static_cast<std::size_t>(compute_index(DType::i64))];
  return computed(result.size(), [&] {
    run_stoppable(result.size(), 1, [&](std::int64_t first, std::int64_t last) {
      compare(number_left ? &side : &element, 0, number_left ? &element : &side, 0, result.raw() + first, last - first);
    });
    return std::move(result);
  });
}

// Compares int64 (or a smaller signed type) with uint64 by value: no dtype holds both. Returns nothing for other comparisons.
std::optional<Tensor> compare_signs(const OpDef& op, const MixedOperands& operands) {
  if (!op.is(Family::compare) || !operands.a.storage() || !operands.b.storage()) return std::nullopt;
  const auto is_signed = [](const Tensor& x) { return is_integer(x.dtype()) && !is_unsigned(x.dtype()); };
  const bool left = is_signed(operands.a) && operands.b.dtype() == DType::u64;
  if (!left && !(is_signed(operands.b) && operands.a.dtype() == DType::u64)) return std::nullopt;
  const Tensor number = computed_cast(left ? operands.a : operands.b, DType::i64);
  const Tensor of_sign[] = {number, scalar(py::int_(0), DType::i64)};
  const Tensor wide[] = {left ? computed_cast(number, DType::u64) : operands.a,
                         left ? operands.b : computed_cast(number, DType::u64)};
  const std::int64_t below = -1, zero = 0;  // a negative number compares so with any of uint64
  bool result = false;
  kernels().compare[op.as<ListedKernel>()->code][static_cast<std::size_t>(compute_index(DType::i64))](
      left ? &below : &zero, 0, left ? &zero : &below, 0, &result, 1);
  const Tensor choices[] = {run(operator_named("Less"), of_sign), scalar(py::bool_(result), DType::b8), run(op, wide)};
  return run(operator_named("Where"), choices);
}

// Refuses integers to the power of negative integers, as NumPy does: the results are no integers.
void check_exponents(const OpDef& op, DType dtype, const Tensor& exponents, py::handle number) {
  if (op.name != "Power" || !is_integer(dtype)) return;
  bool negative = false;
  if (!exponents.storage()) {
    negative = PyObject_RichCompareBool(number.ptr(), py::int_(0).ptr(), Py_LT) == 1;
  } else if (is_integer(exponents.dtype()) && !is_unsigned(exponents.dtype()) && exponents.size() > 0) {
    const Tensor least = cast(reduce("ReduceMin", exponents, py::none(), false), DType::i64);
    negative = *least.data<const std::int64_t>() < 0;
  }
  if (negative) throw py::value_error("integers to negative integer powers are not integers; convert one of them to floats");
}

// Returns the dedicated operator of x ** 2, x ** 0.5 or x ** -1, null for other exponents.
const char* power_operator(py::handle exponent, DType dtype) {
  if (!PyLong_CheckExact(exponent.ptr()) && !PyFloat_CheckExact(exponent.ptr())) return nullptr;
  const double power = PyFloat_AsDouble(exponent.ptr());
  if (power == 2) return "Square";
  if (!is_floating(dtype) && !is_complex(dtype)) return nullptr;
  return power == 0.5 ? "Sqrt" : power == -1 ? "Reciprocal" : nullptr;
}

}  // namespace

Tensor binary(const OpDef& given, py::handle a, py::handle b) {
  const bool is_power = given.name == "Power";
  if (!is_power)
    if (auto result = fast_binary(given, a, b)) return *std::move(result);
  MixedOperands operands = mixed_operands(a, b);
  if (is_power) {
    check_exponents(given, operands.dtype, operands.b, b);
    if (auto result = fast_binary(given, a, b)) return *std::move(result);
  }
  if (auto result = compare_out_of_range(given, operands, a, b)) return *std::move(result);
  if (auto result = compare_signs(given, operands)) return *std::move(result);
  if (given.is(Family::matmul) && operands.a.storage() && operands.b.storage())
    if (auto result = fast_matmul(operands.a, operands.b)) return *std::move(result);
  const OpDef& op = operands.dtype == DType::b8 ? operator_named(logical_name(given.name)) : given;
  DType dtype = operands.dtype;
  if (op.name == "Power" && operands.a.storage() && !operands.b.storage())
    if (const char* dedicated = power_operator(b, dtype))
      return unary(operator_named(dedicated), computed_cast(operands.a, compute_dtype(op, dtype)));
  // Div is true division here; the registry's Div divides integers as ONNX does.
  dtype = op.name == "Div" ? floating_dtype(dtype) : compute_dtype(op, dtype);
  const Tensor inputs[] = {operands.a.storage() ? computed_cast(operands.a, dtype) : scalar(a, dtype),
                           operands.b.storage() ? computed_cast(operands.b, dtype) : scalar(b, dtype)};
  return run(op, inputs);
}
Tensor binary(std::string_view name, py::handle a, py::handle b) { return binary(operator_named(name), a, b); }

namespace {

// Returns the dtype of sums and products: 64-bit integers of the same signedness, floating dtypes unchanged.
DType accumulator_dtype(DType dtype) {
  return floating_dtype(dtype) == dtype ? dtype : is_unsigned(dtype) ? DType::u64 : DType::i64;
}

// Returns the 64-bit sum of integers of at most 16 bits. Each block is widened and summed in 32 bits, which cannot overflow.
std::int64_t sum_small(const Tensor& x) {
  constexpr std::int64_t kBlock = 16384;
  constexpr auto kSum = static_cast<std::size_t>(ReduceOp::ReduceSum);
  constexpr std::size_t kI32 = 2;
  const Table& table = kernels();
  const UnaryFn widen = table.cast[static_cast<std::size_t>(compute_index(x.dtype()))][kI32];
  const auto item = static_cast<std::int64_t>(item_size(x.dtype()));
  alignas(64) std::int32_t wide[kBlock];
  std::int64_t total = 0;
  StopPoll poll;
  for (std::int64_t done = 0; done < x.size() && poll.proceed(kBlock); done += kBlock) {
    const std::int64_t size = std::min(kBlock, x.size() - done);
    widen(x.raw() + done * item, 1, wide, size);
    std::int32_t part = 0;
    table.reduce[kSum][kI32](wide, 1, size, &part);
    total += part;
  }
  return total;
}

// Returns the number of true flags. Blocks are added up as bytes, at most 255 of them, so that the bytes cannot overflow.
std::int64_t count_true(const std::byte* flags, std::int64_t count) {
  constexpr std::int64_t kBlock = 4096, kMaxBlocks = 255;
  constexpr auto kAdd = static_cast<std::size_t>(BinaryOp::Add), kSum = static_cast<std::size_t>(ReduceOp::ReduceSum);
  constexpr std::size_t kI32 = 2, kU8 = 4;
  const Table& table = kernels();
  alignas(64) std::byte sums[kBlock];
  alignas(64) std::int32_t wide[kBlock];
  std::int64_t total = 0;
  StopPoll poll;
  for (std::int64_t done = 0; done < count && poll.proceed(kBlock * kMaxBlocks / 4);) {
    const std::int64_t size = std::min(kBlock, count - done), blocks = std::min(kMaxBlocks, (count - done) / size);
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

// Reduces a whole array without converting it first: sums of bools or integers of at most 16 bits, and the maximum or minimum of
// bools, which stops early.
std::optional<Tensor> reduce_small(const std::string& name, const Tensor& x, bool keepdims) {
  if (!x.contiguous()) return std::nullopt;
  const Dims shape(keepdims ? x.shape().size() : 0, 1);
  if (name == "ReduceSum" && (x.dtype() == DType::b8 || (is_integer(x.dtype()) && item_size(x.dtype()) <= 2))) {
    Tensor result = Tensor::empty(accumulator_dtype(x.dtype()), shape);  // the same bits in int64 and uint64
    *result.data<std::int64_t>() =
        computed(x.size(), [&] { return x.dtype() == DType::b8 ? count_true(x.raw(), x.size()) : sum_small(x); });
    return result;
  }
  const bool is_max = name == "ReduceMax";
  if (x.dtype() != DType::b8 || (!is_max && name != "ReduceMin")) return std::nullopt;
  Tensor result = Tensor::empty(DType::b8, shape);
  bool found = false;
  computed(x.size(), [&] {
    run_stoppable(x.size(), 1, [&](std::int64_t first, std::int64_t last) {
      found = found || std::memchr(x.raw() + first, is_max ? 1 : 0, static_cast<std::size_t>(last - first)) != nullptr;
    });
    return true;
  });
  *result.data<bool>() = found == is_max;
  return result;
}

}  // namespace

Tensor reduce(const std::string& given, const Tensor& x, py::handle given_axis, bool keepdims) {
  const bool whole = x.ndim() == 0 && PyLong_CheckExact(given_axis.ptr()) &&  // NumPy gives a number an axis 0
                     (given_axis.equal(py::int_(0)) || given_axis.equal(py::int_(-1)));
  const py::handle axis = whole ? py::handle(py::none()) : given_axis;
  const bool is_logical = given == "All" || given == "Any";  // minimum and maximum of the flags
  const std::string name = !is_logical ? given : given == "All" ? "ReduceMin" : "ReduceMax";
  const OpDef& op = operator_named(name);
  const bool extreme = name == "ReduceMax" || name == "ReduceMin", mean = op.is(Family::mean);
  const std::size_t rank = x.shape().size();
  Tensor input = is_logical ? computed_cast(x, DType::b8) : x;
  if (axis.is_none() && (is_logical || !extreme || input.size() > 0))
    if (auto result = reduce_small(name, input, keepdims)) return *std::move(result);
  if (name == "ReduceSum" || name == "ReduceProd")
    input = computed_cast(input, accumulator_dtype(input.dtype()));
  else if (mean)
    input = computed_cast(input, floating_dtype(input.dtype()));
  if (auto result = fast_reduce(op, input, axis, keepdims)) return *std::move(result);
  Attributes attributes{{"keepdims", std::int64_t{keepdims}}};
  if (op.is(Family::arg)) {
    if (axis.is_none()) input = reshaped(input, {-1});
    attributes.set("axis", axis.is_none() ? std::int64_t{0} : py::cast<std::int64_t>(axis));
  } else if (!axis.is_none()) {
    attributes.set("axes", dims_of(axis));
    if (dims_of(axis).empty()) attributes.set("noop_with_empty_axes", std::int64_t{1});
  }
  // NumPy refuses the maximum and minimum of no elements; ONNX returns infinities.
  if (extreme && !is_logical) {
    const Operand operand{input.dtype(), input.shape(), nullptr, false};
    for (const std::size_t axis_reduced : reduced_axes(op, {&operand, 1}, attributes))
      if (input.shape()[axis_reduced] == 0)
        throw Error(ErrorKind::shape, name + " over axis " + std::to_string(axis_reduced) +
                                          ", an axis without elements, of shape " + to_string(input.shape()));
  }
  const Tensor inputs[] = {input};
  Tensor result = run(op, inputs, attributes);
  if (op.is(Family::arg) && axis.is_none()) result = reshaped(result, Dims(keepdims ? rank : 0, 1));
  return result;
}

Tensor view(const Tensor& x, Dims shape, Dims strides, std::int64_t offset) {
  return {x.storage(), x.dtype(), std::move(shape), std::move(strides), offset};
}

py::object functions() {
  constexpr const char* kName = "walle.engine_ext.np";
  const auto name = py::str(kName);
  const auto loaded = py::reinterpret_steal<py::object>(PyImport_GetModule(name.ptr()));
  return loaded ? loaded : py::module_::import(kName);
}

Tensor copy_of(const Tensor& x) {
  Tensor result = Tensor::empty(x.dtype(), x.shape());
  computed_assign(x, result);
  return result;
}

// If large, on separate tensors, because another thread may replace the arrays' (setflags) while the GIL is released.
Tensor computed_cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype || x.size() < kReleaseGil) return cast(x, dtype);
  const Tensor from = x;
  return computed_without_gil([&] { return cast(from, dtype); });
}

void computed_assign(const Tensor& from, const Tensor& to) {
  if (to.size() < kReleaseGil) return assign(from, to);
  const Tensor source = from, target = to;
  computed_without_gil([&] {
    assign(source, target);
    return true;
  });
}

Tensor computed_contiguous(const Tensor& x) { return x.contiguous() ? x : copy_of(x); }

py::object only_element(const Tensor& x) {
  if (x.size() != 1)
    throw Error(ErrorKind::shape, "an array of shape " + to_string(x.shape()) +
                                      " cannot be converted to one number; it must have exactly one element");
  return element(x.dtype(), x.raw());
}

namespace {

// Returns the strides that view x in another shape with the same element count and row-major order; nothing where a copy is
// needed. Groups of axes of both shapes with equal products are matched, and x's axes within a group must be mergeable.
std::optional<Dims> reshaped_strides(const Tensor& x, const Dims& shape) {
  if (x.contiguous()) return contiguous_strides(shape);
  Dims sizes, strides;  // x without axes of size 1
  for (std::size_t i = 0; i < x.shape().size(); ++i)
    if (x.shape()[i] != 1) {
      sizes.push_back(x.shape()[i]);
      strides.push_back(x.strides()[i]);
    }
  Dims result(shape.size(), 0);
  std::size_t i = 0, j = 0;
  while (i < sizes.size() && j < shape.size()) {
    const std::size_t first = i;
    std::int64_t left = sizes[i++], right = shape[j++];
    const std::size_t begin = j - 1;
    while (left != right) (left < right) ? left *= sizes[i++] : right *= shape[j++];
    for (std::size_t k = first; k + 1 < i; ++k)
      if (strides[k] != strides[k + 1] * sizes[k + 1]) return std::nullopt;
    std::int64_t stride = strides[i - 1];
    for (std::size_t k = j; k-- > begin; stride *= shape[k]) result[k] = stride;
  }
  return result;
}

}  // namespace

Tensor reshaped(const Tensor& x, Dims shape) {
  std::size_t inferred = shape.size();  // the axis given as -1
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != -1) continue;
    if (inferred != shape.size())
      throw Error(ErrorKind::shape, "cannot reshape to " + to_string(shape) + ": only one dimension may be -1");
    inferred = i;
  }
  if (inferred != shape.size()) {
    shape[inferred] = 1;
    const std::int64_t rest = element_count(shape);
    shape[inferred] = rest == 0 ? 0 : x.size() / rest;
  }
  if (element_count(shape) != x.size())
    throw Error(ErrorKind::shape, "cannot reshape an array of shape " + to_string(x.shape()) + " to " + to_string(shape));
  if (auto strides = reshaped_strides(x, shape)) return view(x, std::move(shape), *std::move(strides), x.offset());
  const Tensor dense = computed_contiguous(x);
  Dims strides = contiguous_strides(shape);
  return view(dense, std::move(shape), std::move(strides), dense.offset());
}

namespace {
Tensor reversed(const Tensor& x) {
  return view(x, Dims(x.shape().rbegin(), x.shape().rend()), Dims(x.strides().rbegin(), x.strides().rend()), x.offset());
}
}  // namespace

Tensor reshaped_by_columns(const Tensor& x, Dims shape) {
  std::reverse(shape.begin(), shape.end());
  return reversed(reshaped(reversed(x), std::move(shape)));
}

bool is_column_major(PyObject* order, const Tensor& x) {
  if (order == nullptr || order == Py_None) return false;
  const Py_UCS4 letter = PyUnicode_Check(order) && PyUnicode_GET_LENGTH(order) == 1 ? PyUnicode_READ_CHAR(order, 0) : 0;
  switch (letter) {
    case 'C':
    case 'c': return false;
    case 'F':
    case 'f': return true;
    case 'A':
    case 'a':
    case 'K':
    case 'k': return !x.contiguous() && reversed(x).contiguous();
    default:
      throw Error(ErrorKind::unsupported,
                  "order " + py::cast<std::string>(py::repr(order)) + " is not supported; known are C, F, A and K");
  }
}

}  // namespace walle
