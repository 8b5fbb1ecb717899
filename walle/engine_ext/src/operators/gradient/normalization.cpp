// Gradients of the softmaxes and of the normalisations of rows. Computed in float32 for 16-bit floats.
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

// A call in a dtype that is not narrower than float32, over some axes.
struct Rows {
  Emitter& emitter;
  DType narrow, wide;
  Formula f;
  Dims axes;
  Ref x, g;

  Rows(const GradientCall& call, Dims over)
      : emitter(call.emitter),
        narrow(emitter.operand(call.gradient).dtype),
        wide(is_half(narrow) ? DType::f32 : narrow),
        f(emitter, wide),
        axes(std::move(over)),
        x(widened(call.inputs[0])),
        g(widened(call.gradient)) {}

  Ref widened(Ref value) const { return cast(emitter, value, wide); }
  Ref narrowed(Ref value) const { return cast(emitter, value, narrow); }
  Ref sum(Ref value) const { return emitter.one("ReduceSum", {value}, {{"axes", axes}, {"keepdims", std::int64_t{1}}}); }
  Ref mean(Ref value) const { return emitter.one("ReduceMean", {value}, {{"axes", axes}, {"keepdims", std::int64_t{1}}}); }
};

Dims softmax_axis(const GradientCall& call) {
  const std::size_t rank = call.emitter.operand(call.inputs[0]).shape.size();
  return {static_cast<std::int64_t>(normal_axis(call.attributes.get_int("axis", -1), rank))};
}

// The axes from the attribute `axis` to the last.
Dims last_axes(const GradientCall& call) {
  const std::size_t rank = call.emitter.operand(call.inputs[0]).shape.size();
  Dims axes;
  for (std::size_t i = normal_axis(call.attributes.get_int("axis", -1), rank); i < rank; ++i)
    axes.push_back(static_cast<std::int64_t>(i));
  return axes;
}

// Return the gradients of x, the scale and the bias, where `normal` is x normalised by the factor `inverse` and `centres` says
// whether the mean was subtracted.
std::vector<Ref> of_normal(const GradientCall& call, const Rows& rows, Ref normal, Ref inverse, bool centres) {
  Emitter& emitter = rows.emitter;
  const Formula& f = rows.f;
  std::vector<Ref> gradients = no_gradients(call);
  const auto sum = [&](std::size_t index, Ref gradient) {
    gradients[index] = rows.narrowed(summed_to(emitter, gradient, Dims(emitter.operand(call.inputs[index]).shape)));
  };
  if (needs(call, 0)) {
    const Ref scaled = f.mul(rows.g, rows.widened(call.inputs[1]));
    Ref rest = f.sub(scaled, f.mul(normal, rows.mean(f.mul(scaled, normal))));
    if (centres) rest = f.sub(rest, rows.mean(scaled));
    gradients[0] = rows.narrowed(f.mul(rest, inverse));
  }
  if (needs(call, 1)) sum(1, f.mul(rows.g, normal));
  if (needs(call, 2)) sum(2, rows.g);
  return gradients;
}

}  // namespace

// y (g - sum of g y)
std::vector<Ref> of_softmax(const GradientCall& call) {
  const Rows rows(call, softmax_axis(call));
  const Ref y = rows.widened(call.result), own = rows.f.mul(rows.g, y);
  return {rows.narrowed(rows.f.sub(own, rows.f.mul(y, rows.sum(own))))};
}

// g - e^y sum of g
std::vector<Ref> of_log_softmax(const GradientCall& call) {
  const Rows rows(call, softmax_axis(call));
  const Ref probability = rows.f.unary("Exp", rows.widened(call.result));
  return {rows.narrowed(rows.f.sub(rows.g, rows.f.mul(probability, rows.sum(rows.g))))};
}

std::vector<Ref> of_layer_normalization(const GradientCall& call) {
  const Rows rows(call, last_axes(call));
  const Formula& f = rows.f;
  const Ref centred = f.sub(rows.x, rows.mean(rows.x));
  const Ref variance = rows.mean(f.unary("Square", centred));
  const Ref inverse = f.unary("Rsqrt", f.plus(variance, call.attributes.get_float("epsilon", 1e-5)));
  return of_normal(call, rows, f.mul(centred, inverse), inverse, true);
}

std::vector<Ref> of_rms_normalization(const GradientCall& call) {
  const Rows rows(call, last_axes(call));
  const Formula& f = rows.f;
  const Ref square = rows.mean(f.unary("Square", rows.x));
  const Ref inverse = f.unary("Rsqrt", f.plus(square, call.attributes.get_float("epsilon", 1e-5)));
  return of_normal(call, rows, f.mul(rows.x, inverse), inverse, false);
}

}  // namespace walle::gradient
