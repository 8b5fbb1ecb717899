// Gradients of elementwise operators, whose operands broadcast.
#include "geometry/composite/expressions.h"
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

using Ref = Emitter::Ref;

// Return the gradients of both operands, given them in the shape of the result.
std::vector<Ref> of_operands(const GradientCall& call, Ref a, Ref b) {
  std::vector<Ref> gradients;
  for (const auto& [result_gradient, input] : {std::pair{a, call.inputs[0]}, std::pair{b, call.inputs[1]}})
    gradients.push_back(summed_to(call.emitter, result_gradient, call.emitter.operand(input).shape));
  return gradients;
}

}  // namespace

Ref summed_to(Emitter& emitter, Ref gradient, const Dims& shape) {
  const Dims from = emitter.operand(gradient).shape;
  if (from == shape) return gradient;
  const std::size_t added = from.size() - shape.size();
  Dims axes;
  for (std::size_t axis = 0; axis < from.size(); ++axis)
    if (axis < added || shape[axis - added] != from[axis]) axes.push_back(static_cast<std::int64_t>(axis));
  const auto count = static_cast<std::int64_t>(axes.size());
  const Ref sums = emitter.one("ReduceSum", {gradient, whole(emitter, axes, {count})}, {{"keepdims", std::int64_t{0}}});
  return reshape(emitter, sums, shape);
}

std::vector<Ref> of_add(const GradientCall& call) { return of_operands(call, call.gradient, call.gradient); }

std::vector<Ref> of_sub(const GradientCall& call) {
  return of_operands(call, call.gradient, call.emitter.one("Neg", {call.gradient}));
}

std::vector<Ref> of_mul(const GradientCall& call) {
  return of_operands(call, call.emitter.one("Mul", {call.gradient, call.inputs[1]}),
                     call.emitter.one("Mul", {call.gradient, call.inputs[0]}));
}

// a / b has the derivatives 1 / b and -(a / b) / b.
std::vector<Ref> of_div(const GradientCall& call) {
  const Ref quotient = call.emitter.one("Div", {call.gradient, call.inputs[1]});
  return of_operands(call, quotient, call.emitter.one("Neg", {call.emitter.one("Mul", {quotient, call.result})}));
}

std::vector<Ref> of_neg(const GradientCall& call) { return {call.emitter.one("Neg", {call.gradient})}; }

std::vector<Ref> of_exp(const GradientCall& call) { return {call.emitter.one("Mul", {call.gradient, call.result})}; }

}  // namespace walle::gradient
