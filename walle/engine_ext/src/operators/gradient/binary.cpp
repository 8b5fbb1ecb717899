// Gradients of elementwise operators of two operands, which broadcast, and of Where.
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

// Return the gradients of both operands; `of_a` and `of_b` emit them in the shape of the result.
template <class A, class B>
std::vector<Ref> of_operands(const GradientCall& call, A&& of_a, B&& of_b) {
  std::vector<Ref> gradients = no_gradients(call);
  const auto sum = [&](std::size_t input, Ref gradient) {
    return gradient == kAbsent ? kAbsent
                               : summed_to(call.emitter, gradient, Dims(call.emitter.operand(call.inputs[input]).shape));
  };
  const Formula f = formula_of(call);
  if (needs(call, 0)) gradients[0] = sum(0, of_a(f, call.inputs[0], call.inputs[1]));
  if (needs(call, 1)) gradients[1] = sum(1, of_b(f, call.inputs[0], call.inputs[1]));
  return gradients;
}

Ref flat(const Formula&, Ref, Ref) { return kAbsent; }

// The greater (or lesser) operand has the gradient; each has half of it where they are equal.
std::vector<Ref> of_extreme(const GradientCall& call, std::string_view is_chosen) {
  const auto of = [&](const Formula& f, Ref own, Ref other) {
    const Ref tied = f.where(f.equal(own, other), f.times(call.gradient, 0.5));
    return f.where(f.binary(is_chosen, own, other), call.gradient, tied);
  };
  return of_operands(call, of, [&](const Formula& f, Ref a, Ref b) { return of(f, b, a); });
}

// Return x^(n - 1) n for a constant exponent n of one element.
Ref power_derivative(const Formula& f, const GradientCall& call, Ref a, double n) {
  if (n == 1) return f.number(1);
  if (n == 2) return f.add(a, a);
  if (n == 3) return f.times(f.unary("Square", a), 3);
  if (n == 0.5) return f.div(f.number(0.5), call.result);
  return f.times(f.binary("Power", a, f.number(n - 1)), n);
}

}  // namespace

std::optional<double> number_of(const Operand& operand) {
  if (operand.constant == nullptr || operand.constant->size() != 1) return std::nullopt;
  const Tensor& value = *operand.constant;
  if (value.dtype() == DType::f32) return static_cast<double>(*value.data<float>());
  if (value.dtype() == DType::f64) return *value.data<double>();
  return std::nullopt;
}

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

std::vector<Ref> of_add(const GradientCall& call) {
  const auto same = [&](const Formula&, Ref, Ref) { return call.gradient; };
  return of_operands(call, same, same);
}

std::vector<Ref> of_sub(const GradientCall& call) {
  return of_operands(
      call, [&](const Formula&, Ref, Ref) { return call.gradient; },
      [&](const Formula& f, Ref, Ref) { return f.unary("Neg", call.gradient); });
}

std::vector<Ref> of_mul(const GradientCall& call) {
  return of_operands(
      call, [&](const Formula& f, Ref, Ref b) { return f.mul(call.gradient, b); },
      [&](const Formula& f, Ref a, Ref) { return f.mul(call.gradient, a); });
}

// a / b has the derivatives 1 / b and -(a / b) / b.
std::vector<Ref> of_div(const GradientCall& call) {
  Ref quotient = kAbsent;
  const auto by_b = [&](const Formula& f, Ref b) { return quotient = quotient == kAbsent ? f.div(call.gradient, b) : quotient; };
  return of_operands(
      call, [&](const Formula& f, Ref, Ref b) { return by_b(f, b); },
      [&](const Formula& f, Ref, Ref b) { return f.unary("Neg", f.mul(by_b(f, b), call.result)); });
}

// FloorMod and Fmod: a - b q with an integer q, (a - result) / b but for rounding.
std::vector<Ref> of_remainder(const GradientCall& call) {
  return of_operands(
      call, [&](const Formula&, Ref, Ref) { return call.gradient; },
      [&](const Formula& f, Ref a, Ref b) {
        return f.unary("Neg", f.mul(call.gradient, f.unary("Round", f.div(f.sub(a, call.result), b))));
      });
}

// b a^(b - 1), 0 where b is 0; and a^b ln a, 0 where a is 0 and b is not negative.
std::vector<Ref> of_power(const GradientCall& call) {
  const auto exponent = number_of(call.emitter.operand(call.inputs[1]));
  return of_operands(
      call,
      [&](const Formula& f, Ref a, Ref b) {
        if (exponent == 0.0) return kAbsent;
        if (exponent) return f.mul(call.gradient, power_derivative(f, call, a, *exponent));
        const Ref derivative = f.mul(b, f.binary("Power", a, f.plus(b, -1)));
        return f.mul(call.gradient, f.unless(f.equal(b, f.number(0)), derivative));
      },
      [&](const Formula& f, Ref a, Ref b) {
        const Ref zero = f.number(0);
        const Ref still = f.binary("And", f.equal(a, zero), f.binary("GreaterOrEqual", b, zero));
        return f.mul(call.gradient, f.unless(still, f.mul(call.result, f.unary("Log", a))));
      });
}

std::vector<Ref> of_maximum(const GradientCall& call) { return of_extreme(call, "Greater"); }
std::vector<Ref> of_minimum(const GradientCall& call) { return of_extreme(call, "Less"); }

// The angle of (b, a) has the derivatives b / r^2 and -a / r^2.
std::vector<Ref> of_atan2(const GradientCall& call) {
  const auto scaled = [&](const Formula& f, Ref a, Ref b) {
    return f.div(call.gradient, f.add(f.unary("Square", a), f.unary("Square", b)));
  };
  return of_operands(
      call, [&](const Formula& f, Ref a, Ref b) { return f.mul(scaled(f, a, b), b); },
      [&](const Formula& f, Ref a, Ref b) { return f.unary("Neg", f.mul(scaled(f, a, b), a)); });
}

// The sign that a is given, times its own; 0 where a is 0.
std::vector<Ref> of_copy_sign(const GradientCall& call) {
  return of_operands(
      call,
      [&](const Formula& f, Ref a, Ref) { return f.mul(call.gradient, f.mul(f.unary("Sign", a), f.unary("Sign", call.result))); },
      flat);
}

std::vector<Ref> of_hypot(const GradientCall& call) {
  const auto of = [&](const Formula& f, Ref own, Ref) { return f.mul(call.gradient, f.div(own, call.result)); };
  return of_operands(call, of, [&](const Formula& f, Ref a, Ref b) { return of(f, b, a); });
}

// e^a / (e^a + e^b) is the sigmoid of a - b.
std::vector<Ref> of_log_add_exp(const GradientCall& call) {
  const auto of = [&](const Formula& f, Ref own, Ref other) {
    return f.mul(call.gradient, f.unary("Sigmoid", f.sub(own, other)));
  };
  return of_operands(call, of, [&](const Formula& f, Ref a, Ref b) { return of(f, b, a); });
}

// The exponent is rounded to an integer, so that its derivative is 0.
std::vector<Ref> of_scale_by_power(const GradientCall& call) {
  return of_operands(call, [&](const Formula& f, Ref, Ref b) { return f.binary("ScaleByPower", call.gradient, b); }, flat);
}

std::vector<Ref> of_where(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  const Formula f = formula_of(call);
  const auto sum = [&](std::size_t input, Ref gradient) {
    gradients[input] = summed_to(call.emitter, gradient, Dims(call.emitter.operand(call.inputs[input]).shape));
  };
  if (needs(call, 1)) sum(1, f.where(call.inputs[0], call.gradient));
  if (needs(call, 2)) sum(2, f.unless(call.inputs[0], call.gradient));
  return gradients;
}

}  // namespace walle::gradient
