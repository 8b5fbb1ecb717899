// Activations as arithmetic. 16-bit floats are computed in float32 and rounded once.
#include <cmath>

#include "geometry/composite/composite.h"
#include "geometry/composite/formula.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// Emit f of the first input, widened if it is a 16-bit float.
template <class F>
std::vector<Ref> formula(Emitter& emitter, Ref x, F&& f) {
  const DType dtype = emitter.operand(x).dtype;
  if (!is_half(dtype)) return {f(Formula(emitter, dtype), x)};
  const auto cast = [&](Ref tensor, DType to) { return emitter.one("Cast", {tensor}, {{"to", std::string(dtype_name(to))}}); };
  return {cast(f(Formula(emitter, DType::f32), cast(x, DType::f32)), dtype)};
}

}  // namespace

#define WALLE_FORMULA(name) \
  std::vector<Ref> decompose_##name(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int)

// max(0, x) + min(0, alpha (e^(x / alpha) - 1))
WALLE_FORMULA(celu) {
  const double alpha = attributes.get_float("alpha", 1);
  return formula(emitter, inputs[0], [&](const Formula& f, Ref x) {
    return f.where(f.negative(x), f.times(f.unary("Expm1", f.div(x, f.number(alpha))), alpha), x);
  });
}

// alpha (e^x - 1) below 0
WALLE_FORMULA(elu) {
  const double alpha = attributes.get_float("alpha", 1);
  return formula(emitter, inputs[0],
                 [&](const Formula& f, Ref x) { return f.where(f.negative(x), f.times(f.unary("Expm1", x), alpha), x); });
}

// x Phi(x), or its approximation by tanh
WALLE_FORMULA(gelu) {
  const std::string approximate = attributes.get_string("approximate", "none");
  if (approximate != "none" && approximate != "tanh")
    throw Error(ErrorKind::model, "approximate '" + approximate + "'; known are none and tanh");
  return formula(emitter, inputs[0], [&](const Formula& f, Ref x) {
    Ref inner;
    if (approximate == "none")
      inner = f.unary("Erf", f.times(x, std::sqrt(0.5)));
    else
      inner = f.unary(
          "Tanh", f.times(f.add(x, f.times(f.mul(x, f.unary("Square", x)), 0.044715)), std::sqrt(2 / 3.14159265358979323846)));
    return f.mul(f.times(x, 0.5), f.add(inner, f.number(1)));
  });
}

WALLE_FORMULA(hard_sigmoid) {
  const double alpha = attributes.get_float("alpha", 0.2), beta = attributes.get_float("beta", 0.5);
  return formula(emitter, inputs[0],
                 [&](const Formula& f, Ref x) { return f.between_0_and_1(f.add(f.times(x, alpha), f.number(beta))); });
}

WALLE_FORMULA(hard_swish) {
  return formula(emitter, inputs[0],
                 [&](const Formula& f, Ref x) { return f.mul(x, f.between_0_and_1(f.add(f.times(x, 1.0 / 6), f.number(0.5)))); });
}

WALLE_FORMULA(leaky_relu) {
  const double alpha = attributes.get_float("alpha", 0.01);
  return formula(emitter, inputs[0], [&](const Formula& f, Ref x) { return f.where(f.negative(x), f.times(x, alpha), x); });
}

// x tanh(ln(1 + e^x))
WALLE_FORMULA(mish) {
  return formula(emitter, inputs[0], [&](const Formula& f, Ref x) { return f.mul(x, f.unary("Tanh", f.unary("Softplus", x))); });
}

// slope x below 0; the slope broadcasts to x
WALLE_FORMULA(prelu) {
  const Operand x = emitter.operand(inputs[0]);
  broadcast_strides(emitter.operand(inputs[1]).shape, contiguous_strides(emitter.operand(inputs[1]).shape), x.shape);
  const Formula f(emitter, x.dtype);
  return {f.where(f.negative(inputs[0]), f.mul(inputs[0], inputs[1]), inputs[0])};
}

WALLE_FORMULA(selu) {
  const double alpha = attributes.get_float("alpha", 1.67326319217681884765625),
               gamma = attributes.get_float("gamma", 1.05070102214813232421875);
  return formula(emitter, inputs[0], [&](const Formula& f, Ref x) {
    return f.times(f.where(f.negative(x), f.times(f.unary("Expm1", x), alpha), x), gamma);
  });
}

// x + bias below -lambd, x - bias above lambd, else 0
WALLE_FORMULA(shrink) {
  const double lambd = attributes.get_float("lambd", 0.5), bias = attributes.get_float("bias", 0);
  const DType dtype = emitter.operand(inputs[0]).dtype;
  // Integers shrink as floats do, and are truncated to integers.
  const bool whole = is_integer(dtype);
  const Ref given = whole ? emitter.one("Cast", {inputs[0]}, {{"to", std::string("float64")}}) : inputs[0];
  auto result = formula(emitter, given, [&](const Formula& f, Ref x) {
    const Ref above = f.where(f.less(f.number(lambd), x), f.sub(x, f.number(bias)), f.number(0));
    return f.where(f.less(x, f.number(-lambd)), f.add(x, f.number(bias)), above);
  });
  if (whole) result[0] = emitter.one("Cast", {result[0]}, {{"to", std::string(dtype_name(dtype))}});
  return result;
}

WALLE_FORMULA(softsign) {
  return formula(emitter, inputs[0], [&](const Formula& f, Ref x) { return f.div(x, f.add(f.unary("Abs", x), f.number(1))); });
}

// x sigmoid(alpha x)
WALLE_FORMULA(swish) {
  const double alpha = attributes.get_float("alpha", 1);
  return formula(emitter, inputs[0], [&](const Formula& f, Ref x) { return f.mul(x, f.unary("Sigmoid", f.times(x, alpha))); });
}

WALLE_FORMULA(thresholded_relu) {
  const double alpha = attributes.get_float("alpha", 1);
  return formula(emitter, inputs[0],
                 [&](const Formula& f, Ref x) { return f.where(f.less(f.number(alpha), x), x, f.number(0)); });
}

#undef WALLE_FORMULA

std::span<const Composite> activation_composites() noexcept {
  static constexpr std::string_view celu_parts[] = {"Div", "Expm1", "Less", "Mul", "Where"};
  static constexpr std::string_view elu_parts[] = {"Expm1", "Less", "Mul", "Where"};
  static constexpr std::string_view gelu_parts[] = {"Add", "Erf", "Mul", "Square", "Tanh"};
  static constexpr std::string_view hard_sigmoid_parts[] = {"Add", "Maximum", "Minimum", "Mul"};
  static constexpr std::string_view hard_swish_parts[] = {"Add", "Maximum", "Minimum", "Mul"};
  static constexpr std::string_view leaky_relu_parts[] = {"Less", "Mul", "Where"};
  static constexpr std::string_view mish_parts[] = {"Mul", "Softplus", "Tanh"};
  static constexpr std::string_view prelu_parts[] = {"Less", "Mul", "Where"};
  static constexpr std::string_view selu_parts[] = {"Expm1", "Less", "Mul", "Where"};
  static constexpr std::string_view shrink_parts[] = {"Add", "Less", "Sub", "Where"};
  static constexpr std::string_view softsign_parts[] = {"Abs", "Add", "Div"};
  static constexpr std::string_view swish_parts[] = {"Mul", "Sigmoid"};
  static constexpr std::string_view thresholded_relu_parts[] = {"Less", "Where"};
  static constexpr Composite table[] = {
      {"Celu", 1, 1, &decompose_celu, celu_parts},
      {"Elu", 1, 1, &decompose_elu, elu_parts},
      {"Gelu", 1, 1, &decompose_gelu, gelu_parts},
      {"HardSigmoid", 1, 1, &decompose_hard_sigmoid, hard_sigmoid_parts},
      {"HardSwish", 1, 1, &decompose_hard_swish, hard_swish_parts},
      {"LeakyRelu", 1, 1, &decompose_leaky_relu, leaky_relu_parts},
      {"Mish", 1, 1, &decompose_mish, mish_parts},
      {"PRelu", 2, 2, &decompose_prelu, prelu_parts},
      {"Selu", 1, 1, &decompose_selu, selu_parts},
      {"Shrink", 1, 1, &decompose_shrink, shrink_parts},
      {"Softsign", 1, 1, &decompose_softsign, softsign_parts},
      {"Swish", 1, 1, &decompose_swish, swish_parts},
      {"ThresholdedRelu", 1, 1, &decompose_thresholded_relu, thresholded_relu_parts},
  };
  return table;
}

}  // namespace walle
