// Reductions as elementwise operators around a sum. Integers are computed in float64 and 16-bit floats in float32 where a root, a
// logarithm or a square needs the range.
#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// Reduce x over the axes that the operator names, with its keepdims and noop_with_empty_axes.
struct Reducer {
  Emitter& emitter;
  std::span<const Ref> inputs;
  const Attributes& attributes;

  Ref operator()(std::string_view op, Ref x) const {
    std::vector<Ref> operands{x};
    if (inputs.size() > 1) operands.push_back(inputs[1]);
    return emitter.one(op, std::move(operands), attributes);
  }
  Ref one(std::string_view op, Ref x) const { return emitter.one(op, {x}); }
};

template <class F>
std::vector<Ref> widened(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, bool integers, F&& f) {
  const DType dtype = emitter.operand(inputs[0]).dtype;
  const DType computed = is_half(dtype) ? DType::f32 : integers && !is_floating(dtype) ? DType::f64 : dtype;
  return {cast(emitter, f(Reducer{emitter, inputs, attributes}, cast(emitter, inputs[0], computed)), dtype)};
}

}  // namespace

#define WALLE_REDUCTION(name) \
  std::vector<Ref> decompose_reduce_##name(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int)

WALLE_REDUCTION(l1) {
  return widened(emitter, inputs, attributes, false,
                 [](const Reducer& over, Ref x) { return over("ReduceSum", over.one("Abs", x)); });
}

WALLE_REDUCTION(l2) {
  return widened(emitter, inputs, attributes, true,
                 [](const Reducer& over, Ref x) { return over.one("Sqrt", over("ReduceSum", over.one("Square", x))); });
}

WALLE_REDUCTION(log_sum) {
  return widened(emitter, inputs, attributes, true,
                 [](const Reducer& over, Ref x) { return over.one("Log", over("ReduceSum", x)); });
}

// The maximum is subtracted first, so that no exponential overflows; an infinite one (or an empty reduction) is not.
WALLE_REDUCTION(log_sum_exp) {
  return widened(emitter, inputs, attributes, true, [&](const Reducer& over, Ref x) {
    Attributes kept;
    for (const auto& [key, value] : attributes.items())
      if (key != "keepdims") kept.set(key, value);
    kept.set("keepdims", std::int64_t{1});
    const Reducer keeping{emitter, inputs, kept};
    const Ref greatest = keeping("ReduceMax", x);
    const Ref zero = emitter.number(0, emitter.operand(x).dtype);
    const Ref shift = emitter.one("Where", {over.one("IsInfinite", greatest), zero, greatest});
    const Ref sum = over("ReduceSum", over.one("Exp", emitter.one("Sub", {x, shift})));
    // The same shift in the shape of the result.
    const Dims shape = emitter.operand(sum).shape;
    const Ref back = emitter.one("Reshape", {shift}, {{"shape", shape}, {"allowzero", std::int64_t{1}}});
    return emitter.one("Add", {over.one("Log", sum), back});
  });
}

WALLE_REDUCTION(sum_square) {
  return widened(emitter, inputs, attributes, false,
                 [](const Reducer& over, Ref x) { return over("ReduceSum", over.one("Square", x)); });
}

#undef WALLE_REDUCTION

}  // namespace walle
