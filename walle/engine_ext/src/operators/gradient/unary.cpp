// Gradients of elementwise operators of one operand, and of Cast. A rule uses the result where that spares keeping the operand.
// Where a derivative jumps the value is PyTorch's: 0 for Relu and Abs at 0.
#include <numbers>

#include "operators/gradient/rules.h"

namespace walle::gradient {

// A rule: an expression for the gradient, of the operand x, the result y, the result's gradient g and a Formula f.
#define WALLE_UNARY_RULE(name, expression)                                             \
  std::vector<Ref> of_##name(const GradientCall& call) {                               \
    [[maybe_unused]] const Formula f = formula_of(call);                               \
    [[maybe_unused]] const Ref x = call.inputs[0], y = call.result, g = call.gradient; \
    return {expression};                                                               \
  }

namespace {

constexpr double kLn2 = std::numbers::ln2, kLn10 = std::numbers::ln10, kErfScale = 2 * std::numbers::inv_sqrtpi;

Ref square(const Formula& f, Ref x) { return f.unary("Square", x); }
Ref negative(const Formula& f, Ref x) { return f.unary("Neg", x); }
// 1 - x^2
Ref one_less_square(const Formula& f, Ref x) { return f.sub(f.number(1), square(f, x)); }

}  // namespace

WALLE_UNARY_RULE(neg, negative(f, g))
WALLE_UNARY_RULE(abs, f.mul(g, f.unary("Sign", x)))
WALLE_UNARY_RULE(square, f.mul(g, f.add(x, x)))
WALLE_UNARY_RULE(relu, gated(call.emitter, g, y, {.low = 0, .high = {}}))
WALLE_UNARY_RULE(exp, f.mul(g, y))
WALLE_UNARY_RULE(expm1, f.mul(g, f.plus(y, 1)))
WALLE_UNARY_RULE(log, f.div(g, x))
WALLE_UNARY_RULE(log1p, f.div(g, f.plus(x, 1)))
WALLE_UNARY_RULE(sqrt, f.div(g, f.add(y, y)))
WALLE_UNARY_RULE(rsqrt, f.times(f.mul(g, f.mul(square(f, y), y)), -0.5))
WALLE_UNARY_RULE(reciprocal, negative(f, f.mul(g, square(f, y))))
WALLE_UNARY_RULE(tanh, f.mul(g, one_less_square(f, y)))
WALLE_UNARY_RULE(sigmoid, f.mul(g, f.mul(y, f.sub(f.number(1), y))))
WALLE_UNARY_RULE(softplus, f.mul(g, f.unary("Sigmoid", x)))
WALLE_UNARY_RULE(erf, f.mul(g, f.times(f.unary("Exp", negative(f, square(f, x))), kErfScale)))
WALLE_UNARY_RULE(sin, f.mul(g, f.unary("Cos", x)))
WALLE_UNARY_RULE(cos, negative(f, f.mul(g, f.unary("Sin", x))))
WALLE_UNARY_RULE(tan, f.mul(g, f.plus(square(f, y), 1)))
WALLE_UNARY_RULE(asin, f.mul(g, f.unary("Rsqrt", one_less_square(f, x))))
WALLE_UNARY_RULE(acos, negative(f, f.mul(g, f.unary("Rsqrt", one_less_square(f, x)))))
WALLE_UNARY_RULE(atan, f.div(g, f.plus(square(f, x), 1)))
WALLE_UNARY_RULE(sinh, f.mul(g, f.unary("Cosh", x)))
WALLE_UNARY_RULE(cosh, f.mul(g, f.unary("Sinh", x)))
WALLE_UNARY_RULE(asinh, f.mul(g, f.unary("Rsqrt", f.plus(square(f, x), 1))))
WALLE_UNARY_RULE(acosh, f.mul(g, f.unary("Rsqrt", f.plus(square(f, x), -1))))
WALLE_UNARY_RULE(atanh, f.div(g, one_less_square(f, x)))
WALLE_UNARY_RULE(cbrt, f.div(g, f.times(square(f, y), 3)))
WALLE_UNARY_RULE(exp2, f.mul(g, f.times(y, kLn2)))
WALLE_UNARY_RULE(log10, f.div(g, f.times(x, kLn10)))
WALLE_UNARY_RULE(log2, f.div(g, f.times(x, kLn2)))
// x = y * 2^k with an integer k, of which the derivative is 0.
WALLE_UNARY_RULE(mantissa, f.binary("ScaleByPower", g, negative(f, f.unary("Exponent", x))))

#undef WALLE_UNARY_RULE

// Between floats a Cast is the identity; to or from another type it has a derivative of 0.
std::vector<Ref> of_cast(const GradientCall& call) {
  const DType from = call.emitter.operand(call.inputs[0]).dtype, to = call.emitter.operand(call.result).dtype;
  if (!is_floating(from) || !is_floating(to)) return {kAbsent};
  return {cast(call.emitter, call.gradient, from)};
}

}  // namespace walle::gradient
