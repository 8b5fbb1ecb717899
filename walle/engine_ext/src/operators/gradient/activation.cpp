// Gradients of activations that are composites, and of Clip: one expression each, which needs less than the gradients of the
// parts. Computed in float32 for 16-bit floats, as the activations are. Where a derivative jumps the value is PyTorch's.
#include <cmath>
#include <numbers>

#include "geometry/slope_layout.h"
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

// The operand x, the result y and the result's gradient g, not narrower than float32.
struct Wide {
  Formula f;
  Ref x, y, g;

  explicit Wide(const GradientCall& call)
      : f(call.emitter, dtype(call)),
        x(cast(call.emitter, call.inputs[0], dtype(call))),
        y(cast(call.emitter, call.result, dtype(call))),
        g(cast(call.emitter, call.gradient, dtype(call))) {}

 private:
  static DType dtype(const GradientCall& call) {
    const DType given = call.emitter.operand(call.gradient).dtype;
    return is_half(given) ? DType::f32 : given;
  }
};

// Return the gradients of a call whose only differentiated input is the first.
std::vector<Ref> of_first(const GradientCall& call, Ref gradient) {
  std::vector<Ref> gradients = no_gradients(call);
  gradients[0] = cast(call.emitter, gradient, call.emitter.operand(call.gradient).dtype);
  return gradients;
}

// s + alpha y (1 - s) with the sigmoid s of alpha x.
Ref swish_derivative(const Wide& w, double alpha) {
  const Ref s = w.f.unary("Sigmoid", w.f.times(w.x, alpha));
  return w.f.add(s, w.f.times(w.f.mul(w.y, w.f.sub(w.f.number(1), s)), alpha));
}

// alpha e^x below 0, which is y + alpha.
Ref elu(const Wide& w, double alpha, double gamma) {
  const auto& f = w.f;
  const Ref below = f.binary("LessOrEqual", alpha * gamma >= 0 && gamma > 0 ? w.y : w.x, f.number(0));
  return f.where(below, f.mul(w.g, f.plus(w.y, alpha * gamma)), f.times(w.g, gamma));
}

bool has_input(const GradientCall& call, std::size_t index) {
  return index < call.inputs.size() && call.inputs[index] != kAbsent;
}

// Return the bounds of a Clip where they are numbers that are known before running.
std::optional<Bounds> number_bounds(const GradientCall& call) {
  Bounds bounds;
  const auto find = [&](std::size_t index, const char* name, std::optional<double>& bound) {
    if (has_input(call, index)) {
      bound = number_of(call.emitter.operand(call.inputs[index]));
      return bound.has_value();
    }
    if (call.attributes.has(name)) bound = call.attributes.get_float(name, 0);
    return true;
  };
  if (!find(1, "min", bounds.low) || !find(2, "max", bounds.high)) return std::nullopt;
  return bounds;
}

// Whether PReluGradient computes what a call of PRelu needs.
bool in_one_pass(const GradientCall& call) {
  const Operand &x = call.emitter.operand(call.inputs[0]), &slope = call.emitter.operand(call.inputs[1]);
  return needs(call, 0) && needs(call, 1) && !is_half(x.dtype) && slope_layout(x.shape, slope.shape);
}

// Return the parts of PReluGradient's flat vector, in the shapes of x and slope.
std::pair<Ref, Ref> parted(Emitter& emitter, Ref flat, Ref x, Ref slope) {
  const Dims of_x = emitter.operand(x).shape, of_slope = emitter.operand(slope).shape;
  const std::int64_t count = element_count(of_x);
  return {reshape(emitter, sliced(emitter, flat, 0, 0, count), of_x),
          reshape(emitter, sliced(emitter, flat, 0, count, count + element_count(of_slope)), of_slope)};
}

}  // namespace

std::vector<Ref> of_elu(const GradientCall& call) {
  return of_first(call, elu(Wide(call), call.attributes.get_float("alpha", 1), 1));
}

std::vector<Ref> of_selu(const GradientCall& call) {
  return of_first(call, elu(Wide(call), call.attributes.get_float("alpha", 1.67326319217681884765625),
                            call.attributes.get_float("gamma", 1.05070102214813232421875)));
}

// Phi(x) + x phi(x) of the normal distribution; or the derivative of its approximation by tanh.
std::vector<Ref> of_gelu(const GradientCall& call) {
  const Wide w(call);
  const Formula& f = w.f;
  if (call.attributes.get_string("approximate", "none") == "none") {
    const Ref below = f.times(f.plus(f.unary("Erf", f.times(w.x, std::sqrt(0.5))), 1), 0.5);
    const Ref density = f.times(f.unary("Exp", f.times(f.unary("Square", w.x), -0.5)), std::sqrt(0.5) * std::numbers::inv_sqrtpi);
    return of_first(call, f.mul(w.g, f.add(below, f.mul(w.x, density))));
  }
  const double scale = std::sqrt(2.0) * std::numbers::inv_sqrtpi;
  constexpr double kCubic = 0.044715;
  const Ref square = f.unary("Square", w.x);
  const Ref tanh = f.unary("Tanh", f.times(f.mul(w.x, f.plus(f.times(square, kCubic), 1)), scale));
  const Ref inner = f.times(f.plus(f.times(square, 3 * kCubic), 1), scale);
  const Ref slope = f.mul(f.mul(w.x, f.sub(f.number(1), f.unary("Square", tanh))), inner);
  return of_first(call, f.mul(w.g, f.times(f.add(f.plus(tanh, 1), slope), 0.5)));
}

std::vector<Ref> of_hard_sigmoid(const GradientCall& call) {
  const Wide w(call);
  const Ref scaled = w.f.times(w.g, call.attributes.get_float("alpha", 0.2));
  return of_first(call, gated(call.emitter, scaled, w.y, {.low = 0, .high = 1}));
}

// 0 up to -3, x / 3 + 1/2 up to 3, then 1.
std::vector<Ref> of_hard_swish(const GradientCall& call) {
  const Wide w(call);
  const Formula& f = w.f;
  const Ref between = f.mul(w.g, f.plus(f.times(w.x, 1.0 / 3), 0.5));
  const Ref below = f.binary("LessOrEqual", w.x, f.number(-3));
  return of_first(call, f.unless(below, f.where(f.less(w.x, f.number(3)), between, w.g)));
}

std::vector<Ref> of_leaky_relu(const GradientCall& call) {
  const Wide w(call);
  const double alpha = call.attributes.get_float("alpha", 0.01);
  const Ref above = w.f.binary("Greater", alpha >= 0 ? w.y : w.x, w.f.number(0));
  return of_first(call, w.f.where(above, w.g, w.f.times(w.g, alpha)));
}

// t + x sigmoid(x) (1 - t^2) with t = tanh(ln(1 + e^x)).
std::vector<Ref> of_mish(const GradientCall& call) {
  const Wide w(call);
  const Formula& f = w.f;
  const Ref t = f.unary("Tanh", f.unary("Softplus", w.x));
  const Ref slope = f.mul(f.mul(w.x, f.unary("Sigmoid", w.x)), f.sub(f.number(1), f.unary("Square", t)));
  return of_first(call, f.mul(w.g, f.add(t, slope)));
}

// The slope, which broadcasts to x, at and below 0.
std::vector<Ref> of_prelu(const GradientCall& call) {
  const Formula f = formula_of(call);
  if (in_one_pass(call)) {
    const Ref both = call.emitter.one("PReluGradient", {call.gradient, call.inputs[0], call.inputs[1]});
    const auto [of_x, of_slope] = parted(call.emitter, both, call.inputs[0], call.inputs[1]);
    return {of_x, of_slope};
  }
  const Ref above = f.binary("Greater", call.inputs[0], f.number(0));
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) gradients[0] = f.where(above, call.gradient, f.mul(call.gradient, call.inputs[1]));
  if (needs(call, 1))
    gradients[1] = summed_to(call.emitter, f.unless(above, f.mul(call.gradient, call.inputs[0])),
                             Dims(call.emitter.operand(call.inputs[1]).shape));
  return gradients;
}

// Inputs g, x and slope.
std::vector<Ref> of_prelu_gradient(const GradientCall& call) {
  const Formula f = formula_of(call);
  const Ref g = call.inputs[0], x = call.inputs[1], slope = call.inputs[2];
  const auto [of_x, of_slope] = parted(call.emitter, call.gradient, x, slope);
  const Ref above = f.binary("Greater", x, f.number(0));
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) gradients[0] = f.where(above, of_x, f.add(f.mul(of_x, slope), f.mul(x, of_slope)));
  if (needs(call, 1)) gradients[1] = f.unless(above, f.mul(g, of_slope));
  if (needs(call, 2))
    gradients[2] = summed_to(call.emitter, f.unless(above, f.mul(g, of_x)), Dims(call.emitter.operand(slope).shape));
  return gradients;
}

std::vector<Ref> of_swish(const GradientCall& call) {
  const Wide w(call);
  return of_first(call, w.f.mul(w.g, swish_derivative(w, call.attributes.get_float("alpha", 1))));
}

// The gradient of x between the bounds; a bound has it beyond itself. Bounds that are attributes are those of Relu6 and Hardtanh,
// which PyTorch excludes; operands are torch.clamp's, which it includes.
std::vector<Ref> of_clip(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  if (const auto bounds = number_bounds(call); bounds && !needs(call, 1) && !needs(call, 2)) {
    std::vector<Ref> gradients = no_gradients(call);
    const bool is_clamp = has_input(call, 1) || has_input(call, 2);
    gradients[0] = gated(emitter, call.gradient, is_clamp ? call.inputs[0] : call.result, *bounds, is_clamp);
    return gradients;
  }
  const Formula f = formula_of(call);
  const auto bound = [&](std::size_t index, const char* name) {
    if (index < call.inputs.size() && call.inputs[index] != kAbsent) return call.inputs[index];
    return call.attributes.has(name) ? f.number(call.attributes.get_float(name, 0)) : kAbsent;
  };
  const Ref x = call.inputs[0], low = bound(1, "min"), high = bound(2, "max");
  const Ref below = low == kAbsent ? kAbsent : f.less(x, low), above = high == kAbsent ? kAbsent : f.less(high, x);
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) {
    gradients[0] = call.gradient;
    if (below != kAbsent) gradients[0] = f.unless(below, gradients[0]);
    if (above != kAbsent) gradients[0] = f.unless(above, gradients[0]);
  }
  // Where the bounds cross, the upper one is the result.
  const Ref crossed = below == kAbsent || above == kAbsent ? kAbsent : f.less(high, low);
  const auto sum = [&](std::size_t index, Ref gradient) {
    gradients[index] = summed_to(emitter, gradient, Dims(emitter.operand(call.inputs[index]).shape));
  };
  if (needs(call, 1)) {
    const Ref own = f.where(below, call.gradient);
    sum(1, crossed == kAbsent ? own : f.unless(crossed, own));
  }
  if (needs(call, 2)) sum(2, f.where(crossed == kAbsent ? above : f.binary("Or", above, crossed), call.gradient));
  return gradients;
}

}  // namespace walle::gradient
