// Softmax, LogSoftmax, LayerNormalization.
#include "geometry/composite.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

Attributes over(Dims axes) { return {{"axes", std::move(axes)}, {"keepdims", std::int64_t{1}}}; }

// x minus its maximum along the axis, so that no exponential overflows.
Ref shifted(Emitter& emitter, Ref x, const Dims& axes) {
  return emitter.one("Sub", {x, emitter.one("ReduceMax", {x}, over(axes))});
}

Dims softmax_axis(const Emitter& emitter, Ref x, const Attributes& attributes) {
  return {static_cast<std::int64_t>(normal_axis(attributes.get_int("axis", -1), emitter.operand(x).shape.size()))};
}

}  // namespace

std::vector<Ref> decompose_softmax(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims axes = softmax_axis(emitter, inputs[0], attributes);
  const Ref exponentials = emitter.one("Exp", {shifted(emitter, inputs[0], axes)});
  return {emitter.one("Div", {exponentials, emitter.one("ReduceSum", {exponentials}, over(axes))})};
}

std::vector<Ref> decompose_log_softmax(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims axes = softmax_axis(emitter, inputs[0], attributes);
  const Ref shift = shifted(emitter, inputs[0], axes);
  const Ref sum = emitter.one("ReduceSum", {emitter.one("Exp", {shift})}, over(axes));
  return {emitter.one("Sub", {shift, emitter.one("Log", {sum})})};
}

// Over the axes from `axis` to the last; outputs: the result, and where asked for the mean and 1 / standard deviation.
std::vector<Ref> decompose_layer_norm(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  const Operand x = emitter.operand(inputs[0]);
  Dims axes;
  for (std::size_t i = normal_axis(attributes.get_int("axis", -1), x.shape.size()); i < x.shape.size(); ++i)
    axes.push_back(static_cast<std::int64_t>(i));
  const Ref mean = emitter.one("ReduceMean", {inputs[0]}, over(axes));
  const Ref centred = emitter.one("Sub", {inputs[0], mean});
  const Ref variance = emitter.one("ReduceMean", {emitter.one("Square", {centred})}, over(axes));
  const Ref epsilon = emitter.number(attributes.get_float("epsilon", 1e-5), x.dtype);
  const Ref scale = emitter.one("Rsqrt", {emitter.one("Add", {variance, epsilon})});
  Ref result = emitter.one("Mul", {emitter.one("Mul", {centred, scale}), inputs[1]});
  if (inputs.size() > 2 && inputs[2] != Emitter::kAbsent) result = emitter.one("Add", {result, inputs[2]});
  std::vector<Ref> results{result, mean, scale};
  results.resize(static_cast<std::size_t>(outputs), Emitter::kAbsent);
  return results;
}

}  // namespace walle
