// Bindings of operators as functions, which walle/engine_ext/np/ exposes under NumPy's names, and of the operator registry.
#include <pybind11/stl.h>

#include "bindings/array_object.h"
#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/recording.h"
#include "bindings/released_gil.h"
#include "geometry/span_fill.h"
#include "operators/eager.h"
#include "operators/forecast.h"
#include "operators/gradient/gradient.h"
#include "vm/array_loans.h"

namespace py = pybind11;

namespace walle {

namespace {

// An operator with its inputs and attributes, of Python's objects.
struct Call {
  const OpDef& op;
  std::vector<Tensor> inputs;
  Attributes attributes;

  static Call make(const std::string& name, const py::list& inputs, const py::dict& attributes) {
    const OpDef* op = find_operator(name);
    if (op == nullptr) throw Error(ErrorKind::unsupported, "unknown operator '" + name + "'");
    Call call{*op, {}, attributes_of(attributes)};
    call.inputs.reserve(inputs.size());
    for (const py::handle input : inputs) call.inputs.push_back(input.is_none() ? Tensor() : as_tensor(input));
    for (const auto& item : call.attributes.items()) check_known(*op, item.first);
    return call;
  }
};

std::vector<Tensor> evaluate_named(const std::string& name, const py::list& inputs, const py::dict& attributes, int outputs) {
  const Call call = Call::make(name, inputs, attributes);
  return computed_without_gil([&] { return evaluate(call.op, call.inputs, call.attributes, outputs, kernels()); });
}

// Returns an array and whether its elements are known, for each output.
std::vector<std::pair<Tensor, bool>> forecast_named(const std::string& name, const py::list& inputs,
                                                    const std::vector<bool>& known, const py::dict& attributes, int outputs) {
  Call call = Call::make(name, inputs, attributes);
  if (known.size() != call.inputs.size()) throw py::value_error("forecast: one flag is needed for each input");
  std::vector<Forecast> given;
  for (std::size_t i = 0; i < known.size(); ++i) given.push_back({std::move(call.inputs[i]), known[i]});
  const auto found = computed_without_gil([&] { return forecast(call.op, given, call.attributes, outputs, kernels()); });
  std::vector<std::pair<Tensor, bool>> results;
  for (const auto& [tensor, is_known] : found) results.emplace_back(tensor, is_known);
  return results;
}

Tensor full(py::handle shape, py::handle value, py::handle dtype) {
  const bool number = is_number(value);
  Tensor result = Tensor::empty(!dtype.is_none() ? dtype_of(dtype)
                                : number         ? natural_dtype(value)
                                                 : as_tensor(value).dtype(),
                                dims_of(shape));
  if (const int type = compute_index(result.dtype()); number && type >= 0 && result.size() <= kFastPathElements) {
    alignas(8) std::byte one[kMaxItemSize];
    write_number(value, result.dtype(), one);
    kernels().cast[type][type](one, 0, result.raw(), result.size());
    return result;
  }
  computed_assign(as_tensor(value, result.dtype()), result);
  return result;
}

Tensor arange(double start, double step, std::int64_t count, py::handle dtype) {
  const DType wanted = dtype_of(dtype);
  const bool integers = floating_dtype(wanted) != wanted;
  Tensor result = Tensor::empty(integers ? DType::i64 : DType::f64, {count});
  computed(count, [&] {
    run_stoppable(count, 1,
                  [=, whole = result.data<std::int64_t>(), real = result.data<double>()](std::int64_t first, auto last) {
                    for (std::int64_t i = first; i < last && integers; ++i)
                      whole[i] = static_cast<std::int64_t>(start) + i * static_cast<std::int64_t>(step);
                    for (std::int64_t i = first; i < last && !integers; ++i) real[i] = start + static_cast<double>(i) * step;
                  });
    return true;
  });
  return computed_cast(result, wanted);
}

// Returns a read-only view that repeats elements instead of copying them.
Tensor broadcast_to(const Tensor& x, py::handle shape) {
  Dims target = dims_of(shape);
  Dims strides = broadcast_strides(x.shape(), x.strides(), target);
  return {vm::read_only(x.storage()), x.dtype(), std::move(target), std::move(strides), x.offset()};
}

// Returns a read-only view of x's storage; strides and the offset from x's first element are in elements.
Tensor as_strided(const Tensor& x, py::handle shape, py::handle strides, std::int64_t offset) {
  return {vm::read_only(x.storage()), x.dtype(), dims_of(shape), dims_of(strides), x.offset() + offset};
}

// Returns a read-only view of the diagonals of the plane of two axes; the diagonal is the last axis.
Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t axis1, std::int64_t axis2) {
  Dims shape = x.shape(), strides = x.strides();
  const std::size_t a = normal_axis(axis1, shape.size()), b = normal_axis(axis2, shape.size());
  if (a == b) throw Error(ErrorKind::shape, "diagonal: axis1 and axis2 must differ, both are axis " + std::to_string(a));
  const std::int64_t right = std::max<std::int64_t>(offset, 0), down = std::max<std::int64_t>(-offset, 0);
  const std::int64_t count = std::max<std::int64_t>(0, std::min(shape[a] - down, shape[b] - right));
  const std::int64_t first = count > 0 ? right * strides[b] + down * strides[a] : 0, step = strides[a] + strides[b];
  for (Dims* dims : {&shape, &strides})
    for (const std::size_t axis : {std::max(a, b), std::min(a, b)})
      dims->erase(dims->begin() + static_cast<std::ptrdiff_t>(axis));
  shape.push_back(count);
  strides.push_back(step);
  return {vm::read_only(x.storage()), x.dtype(), std::move(shape), std::move(strides), x.offset() + first};
}

}  // namespace

void bind_operators(py::module_& module) {
  module.def(
      "unary",
      [](const std::string& op, py::handle x) {
        if (py::object result = recorded_or_null("unary", {x}, op, x)) return result;
        return py::cast(unary(operator_named(op), x));
      },
      py::arg("op"), py::arg("x"));
  module.def(
      "binary",
      [](const std::string& op, py::handle a, py::handle b) {
        if (py::object result = recorded_or_null("binary", {a, b}, op, a, b)) return result;
        return py::cast(binary(op, a, b));
      },
      py::arg("op"), py::arg("a"), py::arg("b"));
  module.def(
      "reduce",
      [](const std::string& op, py::handle x, py::handle axis, bool keepdims) {
        if (py::object result = recorded_or_null("reduce", {x}, op, x, axis, keepdims)) return result;
        return py::cast(reduce(op, as_tensor(x), axis, keepdims));
      },
      py::arg("op"), py::arg("x"), py::arg("axis"), py::arg("keepdims"));
  module.def(
      "clip",
      [](py::handle x, py::handle low, py::handle high) {
        if (py::object result = recorded_or_null("clip", {x, low, high}, x, low, high)) return result;
        return py::cast(clip(as_tensor(x), low, high));
      },
      py::arg("x"), py::arg("low"), py::arg("high"));
  module.def(
      "as_strided",
      [](py::handle x, py::handle shape, py::handle strides, std::int64_t offset) {
        return as_strided(as_tensor(x), shape, strides, offset);
      },
      py::arg("x"), py::arg("shape"), py::arg("strides"), py::arg("offset") = 0,
      "Return a read-only view of the array's memory; strides and offset are in elements.");
  module.def(
      "where",
      [](py::handle condition, py::handle a, py::handle b) {
        if (py::object result = recorded_or_null("where", {condition, a, b}, condition, a, b)) return result;
        return py::cast(where(condition, a, b));
      },
      py::arg("condition"), py::arg("a"), py::arg("b"));
  module.def(
      "operator",
      [](const std::string& name, const py::list& inputs, const py::kwargs& attributes) {
        if (has_recorded(inputs)) return py::object(record("evaluate", name, inputs, attributes, 1)[py::int_(0)]);
        return py::cast(std::move(evaluate_named(name, inputs, attributes, 1)[0]));
      },
      py::arg("op"), py::arg("inputs"),
      "Return the only output of an operator of the registry; None stands for an input that is left out.");
  module.def(
      "evaluate",
      [](const std::string& name, const py::list& inputs, const py::dict& attributes, int outputs) {
        if (has_recorded(inputs)) return record("evaluate", name, inputs, attributes, outputs);
        return py::cast(evaluate_named(name, inputs, attributes, outputs));
      },
      py::arg("op"), py::arg("inputs"), py::arg("attributes"), py::arg("outputs") = 1,
      "Compute any operator of the registry and return its outputs.");
  module.def(
      "forecast", &forecast_named, py::arg("op"), py::arg("inputs"), py::arg("known"), py::arg("attributes"), py::arg("outputs"),
      "Return what an operator will give, for each output an array and whether its elements are known: the others stand for "
      "their dtype and shape. `known` says the same of the inputs.");
  module.def("full", &full, py::arg("shape"), py::arg("value"), py::arg("dtype"));
  module.def("arange", &arange, py::arg("start"), py::arg("step"), py::arg("count"), py::arg("dtype"));
  module.def(
      "broadcast_to",
      [](py::handle x, py::handle shape) {
        if (py::object result = recorded_or_null("broadcast_to", {x}, x, shape)) return result;
        return py::cast(broadcast_to(as_tensor(x), shape));
      },
      py::arg("x"), py::arg("shape"));
  module.def(
      "contiguous",
      [](py::handle value) {
        if (is_recorded(value)) return py::reinterpret_borrow<py::object>(value);
        const Tensor x = as_tensor(value);
        return is_ndarray(value) && x.contiguous() ? py::reinterpret_borrow<py::object>(value) : py::cast(computed_contiguous(x));
      },
      py::arg("value"), "Return the array itself if its elements are in row-major order, else a copy.");
  module.def(
      "exclusive",
      [](const py::object& array, Py_ssize_t holders) -> py::object {
        const Tensor& x = tensor_of(array);
        const auto& object = *reinterpret_cast<const ArrayObject*>(array.ptr());
        const bool is_whole = x.storage()->is_owned() && x.storage()->writable() && x.contiguous() && object.base == nullptr &&
                              x.storage()->size_bytes() == static_cast<std::size_t>(x.size()) * item_size(x.dtype());
        constexpr Py_ssize_t kOfCall = 2;  // references of the caller's argument and of this function's
        if (is_whole && x.storage().use_count() == 1 && Py_REFCNT(array.ptr()) <= holders + kOfCall) return array;
        return py::cast(copy_of(x));
      },
      py::arg("array"), py::arg("holders"),
      "Return the array itself if it is writable and nothing but that number of references uses its memory, else a copy.");
  module.def(
      "diagonal",
      [](py::handle x, std::int64_t offset, std::int64_t axis1, std::int64_t axis2) {
        if (py::object result = recorded_or_null("diagonal", {x}, x, offset, axis1, axis2)) return result;
        return py::cast(diagonal(as_tensor(x), offset, axis1, axis2));
      },
      py::arg("x"), py::arg("offset"), py::arg("axis1"), py::arg("axis2"));
  module.def(
      "unstack",
      [](py::handle x) {
        if (py::object result = recorded_or_null("unstack", {x}, x)) return result;
        return py::object(unstack(as_tensor(x)));
      },
      py::arg("x"), "Return views of the sub-arrays along the first axis.");
  module.def(
      "fill_spans",
      [](Tensor image, Tensor spans, Tensor colour) {  // tensors of its own, since the GIL may be released
        computed(image.size() + spans.size(), [&] {
          fill_spans(image, spans, colour);
          return true;
        });
      },
      py::arg("image"), py::arg("spans"), py::arg("colour"));
  module.def("promote", [](py::handle a, py::handle b) { return std::string(dtype_name(promote(dtype_of(a), dtype_of(b)))); });
  module.def(
      "operators",
      [] {
        py::list list;
        for (const OpDef& op : operators()) {
          py::list parts;
          if (const auto* composite = op.as<CompositeRule>())
            for (const auto part : composite->parts) parts.append(std::string(part));
          list.append(py::make_tuple(std::string(op.name), std::string(category_name(op.category())), py::tuple(parts)));
        }
        return list;
      },
      "(name, category, what it decomposes to) of every operator.");
  module.def(
      "gradient_rules",
      [] {
        constexpr const char* kinds[] = {"rule", "flat", "refused"};
        py::list list;
        for (const GradientRule& rule : gradient_rules())
          list.append(py::make_tuple(std::string(rule.op), kinds[static_cast<std::size_t>(rule.kind)], std::string(rule.reason)));
        return list;
      },
      "(operator, \"rule\", \"flat\" or \"refused\", reason of a refusal) of every atomic operator, and of the composites with a "
      "rule.");
  module.def(
      "known_attributes",
      [](const std::string& op) {
        const auto& known = operator_named(op).attributes;
        return std::vector<std::string>(known.begin(), known.end());
      },
      py::arg("op"), "The attributes that an operator knows, in alphabetical order.");
}

}  // namespace walle
