#include "bindings/operations.h"

#include <cstring>
#include <optional>

#include "atomic/conversion.h"
#include "bindings/at_once.h"
#include "bindings/bind.h"
#include "bindings/convert.h"
#include "operators/eager.h"

namespace py = pybind11;

namespace walle {

const OpDef& operator_named(std::string_view name) {
  if (const OpDef* op = find_operator(name)) return *op;
  throw Error(ErrorKind::unsupported, "unknown operator '" + std::string(name) + "'");
}

namespace {

// The dtype in which an operator computes what it was given as `dtype`.
DType computed_in(const OpDef& op, DType dtype) {
  const auto takes = [](const OpDef& one, DType type) {
    return one.as<ListedKernel>() == nullptr || one.is(Family::select) || computes(one, type);
  };
  if (takes(op, dtype)) return dtype;
  if (dtype == DType::b8 && takes(op, DType::i64)) return DType::i64;
  if (takes(op, floating(dtype)) && compute_index(dtype) >= 0) return floating(dtype);
  return dtype;  // inference refuses it by name
}

Tensor run(const OpDef& op, std::span<const Tensor> inputs, const Attributes& attributes = {}) {
  constexpr std::int64_t kLong = 1 << 16;  // elements from which the GIL is worth giving up
  std::int64_t work = op.is(Family::matmul) ? kLong : 0;
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
  if (!op.is(Family::compare) || left == right) return std::nullopt;
  const py::handle number = left ? a : b;
  if (fits(number, operands.dtype)) return std::nullopt;
  const std::int64_t element = 0, side = PyObject_RichCompareBool(number.ptr(), py::int_(0).ptr(), Py_GT) == 1 ? 1 : -1;
  Tensor result = Tensor::empty(DType::b8, (left ? operands.b : operands.a).shape());
  kernels().compare[op.as<ListedKernel>()->code][static_cast<std::size_t>(compute_index(DType::i64))](
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
  if (given.is(Family::matmul) && operands.a.storage() && operands.b.storage())
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
  const bool extreme = name == "ReduceMax" || name == "ReduceMin", mean = op.is(Family::mean);
  Tensor input = logic ? cast(x, DType::b8) : x;
  if (axis.is_none() && (logic || !extreme || x.size() > 0))
    if (auto result = reduced_small(name, input, keepdims)) return *std::move(result);
  if (name == "ReduceSum" || name == "ReduceProd")
    input = cast(x, summed_in(x.dtype()));
  else if (mean)
    input = cast(x, floating(x.dtype()));
  if (auto result = reduced_at_once(op, input, axis, keepdims)) return *std::move(result);
  Attributes attributes{{"keepdims", std::int64_t{keepdims}}};
  if (op.is(Family::arg)) {
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
  if (op.is(Family::arg) && axis.is_none()) result = reshaped(result, Dims(keepdims ? x.shape().size() : 0, 1));
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
