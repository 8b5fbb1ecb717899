// Gradients of reductions and of running totals.
#include <algorithm>

#include "operators/gradient/rules.h"
#include "operators/op.h"

namespace walle::gradient {

namespace {

// A reduction: x, and its result and gradient with the reduced axes, each of length 1.
struct Reduction {
  Emitter& emitter;
  Dims shape;  // shape of x
  Dims kept;   // shape of the result with its reduced axes
  std::vector<std::size_t> axes;
  Ref x, y, g;

  explicit Reduction(const GradientCall& call, std::span<const std::size_t> reduced)
      : emitter(call.emitter),
        shape(emitter.operand(call.inputs[0]).shape),
        kept(shape),
        axes(reduced.begin(), reduced.end()),
        x(call.inputs[0]) {
    for (const std::size_t axis : axes) kept[axis] = 1;
    y = reshape(emitter, call.result, kept);
    g = reshape(emitter, call.gradient, kept);
  }

  // Number of elements that one of the result is reduced from.
  std::int64_t count() const {
    std::int64_t product = 1;
    for (const std::size_t axis : axes) product *= shape[axis];
    return product;
  }
  Ref sum(Ref value) const {
    Dims over;
    for (const std::size_t axis : axes) over.push_back(static_cast<std::int64_t>(axis));
    if (over.empty()) return value;
    const auto number = static_cast<std::int64_t>(over.size());
    return emitter.one("ReduceSum", {value, whole(emitter, over, {number})}, {{"keepdims", std::int64_t{1}}});
  }
  // Emit a gradient in the shape of x where it has that of the result.
  Ref spread(Ref value) const { return expanded(emitter, value, shape); }
};

// Return the reduction of a composite, whose axes the program does not know.
Reduction composite_reduction(const GradientCall& call, std::string_view op) {
  std::vector<Operand> operands;
  for (const Ref input : call.inputs) operands.push_back(call.emitter.operand(input));
  return Reduction(call, reduced_axes(*find_operator(op), operands, call.attributes));
}

// Emit CumSum or CumProd along an axis.
Ref running(Emitter& emitter, std::string_view op, Ref x, std::int64_t axis, bool exclusive, bool reverse) {
  return emitter.one(op, {x, whole(emitter, {axis}, {})},
                     {{"exclusive", std::int64_t{exclusive}}, {"reverse", std::int64_t{reverse}}});
}

struct Scan {
  std::int64_t axis;
  bool exclusive, reverse;

  explicit Scan(const GradientCall& call)
      : exclusive(call.attributes.get_int("exclusive", 0) != 0), reverse(call.attributes.get_int("reverse", 0) != 0) {
    const Operand operands[] = {call.emitter.operand(call.inputs[0]),
                                call.inputs.size() > 1 ? call.emitter.operand(call.inputs[1]) : Operand::none()};
    axis = required_numbers(operands, 1, call.attributes, "axis")[0];
  }
};

}  // namespace

// The result of a reduction may lack the second input, the axes: they are constants of the program.

std::vector<Ref> of_reduce_sum(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Reduction of(call, call.axes);
  gradients[0] = of.spread(of.g);
  return gradients;
}

std::vector<Ref> of_reduce_mean(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Reduction of(call, call.axes);
  gradients[0] = of.spread(formula_of(call).times(of.g, 1 / static_cast<double>(std::max<std::int64_t>(of.count(), 1))));
  return gradients;
}

// The product of the others: of those before and those behind, so that a factor may be 0.
std::vector<Ref> of_reduce_prod(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Reduction of(call, call.axes);
  Emitter& emitter = call.emitter;
  const Formula f = formula_of(call);
  if (of.axes.empty()) {
    gradients[0] = of.g;
    return gradients;
  }
  // The reduced axes together as the last one.
  Dims order, back(of.shape.size()), rows;
  for (std::size_t axis = 0; axis < of.shape.size(); ++axis)
    if (!std::ranges::binary_search(of.axes, axis))
      order.push_back(static_cast<std::int64_t>(axis)), rows.push_back(of.shape[axis]);
  for (const std::size_t axis : of.axes) order.push_back(static_cast<std::int64_t>(axis));
  for (std::size_t i = 0; i < order.size(); ++i) back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  rows.push_back(of.count());
  const auto last = static_cast<std::int64_t>(rows.size()) - 1;
  Dims moved;
  for (const std::int64_t axis : order) moved.push_back(of.shape[static_cast<std::size_t>(axis)]);
  const Ref x = reshape(emitter, transposed(emitter, of.x, order), rows);
  const Ref others = f.mul(running(emitter, "CumProd", x, last, true, false), running(emitter, "CumProd", x, last, true, true));
  gradients[0] = f.mul(transposed(emitter, reshape(emitter, others, moved), back), of.g);
  return gradients;
}

// ReduceMax and ReduceMin: equal parts for all elements that are the result.
std::vector<Ref> of_reduce_extreme(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Reduction of(call, call.axes);
  const Formula f = formula_of(call);
  const Ref chosen = f.equal(of.x, of.y);
  const Ref count = of.sum(cast(call.emitter, chosen, call.emitter.operand(of.x).dtype));
  gradients[0] = f.where(chosen, f.div(of.g, count));
  return gradients;
}

// x / |x|, 0 where the norm is 0.
std::vector<Ref> of_reduce_l2(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Reduction of = composite_reduction(call, "ReduceL2");
  const Formula f = formula_of(call);
  gradients[0] = f.mul(of.x, f.unless(f.equal(of.y, f.number(0)), f.div(of.g, of.y)));
  return gradients;
}

// e^(x - result): the softmax.
std::vector<Ref> of_reduce_log_sum_exp(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Reduction of = composite_reduction(call, "ReduceLogSumExp");
  const Formula f = formula_of(call);
  gradients[0] = f.mul(f.unary("Exp", f.sub(of.x, of.y)), of.g);
  return gradients;
}

// An element counts for all totals from its own on: the running total from the other end.
std::vector<Ref> of_cum_sum(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Scan scan(call);
  gradients[0] = running(call.emitter, "CumSum", call.gradient, scan.axis, scan.exclusive, !scan.reverse);
  return gradients;
}

// The sum of g y over all products with x, divided by x. Behind the first 0 all products are 0; at it, they are those of a 1 in
// its place.
std::vector<Ref> of_cum_prod(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Scan scan(call);
  const Formula f = formula_of(call);
  Emitter& emitter = call.emitter;
  const Ref x = call.inputs[0], zero = f.equal(x, f.number(0));
  const Ref zeros_so_far = running(emitter, "CumSum", cast(emitter, zero, DType::i32), scan.axis, false, scan.reverse);
  const auto counts = [&](double number) { return f.equal(zeros_so_far, emitter.number(number, DType::i32)); };
  const Ref first = f.binary("And", zero, counts(1)), none = counts(0);
  const auto sums = [&](Ref products) {
    return running(emitter, "CumSum", f.mul(call.gradient, products), scan.axis, scan.exclusive, !scan.reverse);
  };
  const Ref patched = f.where(first, f.number(1), x);
  const Ref at_first = sums(running(emitter, "CumProd", patched, scan.axis, scan.exclusive, scan.reverse));
  const Ref before = f.div(sums(call.result), f.where(none, x, f.number(1)));
  gradients[0] = f.where(first, at_first, f.where(none, before));
  return gradients;
}

}  // namespace walle::gradient
