// The gradient of Relu and of Clip by numbers, and the gradient of that.
#include "operators/gradient/rules.h"

namespace walle::gradient {

Ref gated(Emitter& emitter, Ref g, Ref x, const Bounds& bounds, bool includes_bounds) {
  const DType dtype = emitter.operand(g).dtype;
  const auto& [low, high] = bounds;
  if (!low && !high) return g;
  if (is_half(dtype)) {  // Gate has no kernels for them
    const Formula f(emitter, dtype);
    const auto cut = [&](Ref beyond) { g = f.unless(beyond, g); };
    if (low) cut(f.binary(includes_bounds ? "Less" : "LessOrEqual", x, f.number(*low)));
    if (high) cut(f.binary(includes_bounds ? "Greater" : "GreaterOrEqual", x, f.number(*high)));
    return g;
  }
  Attributes attributes;
  if (low) attributes.set("low", *low);
  if (high) attributes.set("high", *high);
  if (includes_bounds) attributes.set("includes_bounds", std::int64_t{1});
  return emitter.one("Gate", {g, x}, std::move(attributes));
}

std::vector<Ref> of_gate(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) gradients[0] = call.emitter.one("Gate", {call.gradient, call.inputs[1]}, call.attributes);
  return gradients;
}

}  // namespace walle::gradient
