// Gradients of operators by channel, with the closed form of normalisation by batch: one pass over x and the gradient for sums,
// one for the gradient of x.
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

// Return row 0 or 1 of (2, channels), as (channels).
Ref row(Emitter& emitter, Ref pair, std::int64_t index) {
  const Dims shape = emitter.operand(pair).shape;
  return reshape(emitter, sliced(emitter, pair, 0, index, index + 1), {shape[1]});
}

// Return the number of elements of one channel.
double count_of(Emitter& emitter, Ref x) {
  const Dims shape = emitter.operand(x).shape;
  return static_cast<double>(element_count(shape)) / static_cast<double>(shape[1]);
}

Ref scaled(Emitter& emitter, Ref x, Ref factor) { return emitter.one("ChannelAffine", {x, factor}); }

// Return the sums of g * x by channel.
Ref products(Emitter& emitter, Ref g, Ref x) {
  const Operand operand = emitter.operand(x);
  const Ref centre = zeros(emitter, operand.dtype, {Dims(operand.shape)[1]});
  return emitter.one("ChannelSums", {g, x, centre});
}

}  // namespace

// The mean is linear; the variance has the derivative 2 (x - mean) / count, since its derivative by the mean is 0.
std::vector<Ref> of_channel_moments(const GradientCall& call) {
  const Formula f = formula_of(call);
  const double count = count_of(call.emitter, call.inputs[0]);
  const Ref of_mean = row(call.emitter, call.gradient, 0), of_variance = row(call.emitter, call.gradient, 1);
  const Ref mean = row(call.emitter, call.result, 0);
  const Ref a = f.times(of_variance, 2 / count);
  return {call.emitter.one("ChannelAffine", {call.inputs[0], a, f.sub(f.times(of_mean, 1 / count), f.mul(a, mean))})};
}

std::vector<Ref> of_channel_sums(const GradientCall& call) {
  const Formula f = formula_of(call);
  Emitter& emitter = call.emitter;
  const Ref g = call.inputs[0], x = call.inputs[1], centre = call.inputs[2];
  const Ref of_sum = row(emitter, call.gradient, 0), of_product = row(emitter, call.gradient, 1);
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) gradients[0] = emitter.one("ChannelAffine", {x, of_product, f.sub(of_sum, f.mul(of_product, centre))});
  if (needs(call, 1)) gradients[1] = scaled(emitter, g, of_product);
  if (needs(call, 2)) gradients[2] = f.unary("Neg", f.mul(of_product, row(emitter, call.result, 0)));
  return gradients;
}

std::vector<Ref> of_channel_affine(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) gradients[0] = scaled(emitter, call.gradient, call.inputs[1]);
  if (needs(call, 1) || needs(call, 2)) {
    const Ref sums = products(emitter, call.gradient, call.inputs[0]);
    if (needs(call, 1)) gradients[1] = row(emitter, sums, 1);
    if (needs(call, 2)) gradients[2] = row(emitter, sums, 0);
  }
  if (needs(call, 3)) gradients[3] = scaled(emitter, call.gradient, call.inputs[4]);
  if (needs(call, 4)) gradients[4] = row(emitter, products(emitter, call.gradient, call.inputs[3]), 1);
  return gradients;
}

// With n = (x - mean) r and r = 1 / sqrt(variance + epsilon), the gradients of scale and bias are sum(g n) and sum(g), and that
// of x is scale r (g - mean(g) - n mean(g n)): a x + b + p g with numbers for each channel. It includes the dependence of the
// moments on x, whose own gradient therefore is absent.
std::vector<Ref> of_channel_normalize(const GradientCall& call) {
  if (call.attributes.has("low") || call.attributes.has("high")) refuse("ChannelNormalize with bounds");
  // Moments that are not trained through are numbers; others are taken for those of x, as BatchNormalization has them.
  const bool own_moments = needs(call, 1);
  const Formula f = formula_of(call);
  Emitter& emitter = call.emitter;
  const Ref x = call.inputs[0], mean = row(emitter, call.inputs[1], 0), variance = row(emitter, call.inputs[1], 1);
  const Ref sums = emitter.one("ChannelSums", {call.gradient, x, mean});
  const Ref of_bias = row(emitter, sums, 0);
  const Ref inverse = f.unary("Rsqrt", f.plus(variance, call.attributes.get_float("epsilon", 1e-5)));
  const Ref of_scale = f.mul(row(emitter, sums, 1), inverse);
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) {
    const double share = 1 / count_of(emitter, x);
    const Ref p = f.mul(call.inputs[2], inverse);
    if (!own_moments) {
      gradients[0] = scaled(emitter, call.gradient, p);
      if (needs(call, 2)) gradients[2] = of_scale;
      if (needs(call, 3)) gradients[3] = of_bias;
      return gradients;
    }
    const Ref a = f.mul(p, f.times(f.mul(of_scale, inverse), -share));
    const Ref b = f.sub(f.mul(p, f.times(of_bias, -share)), f.mul(a, mean));
    gradients[0] = emitter.one("ChannelAffine", {x, a, b, call.gradient, p});
  }
  if (needs(call, 2)) gradients[2] = of_scale;
  if (needs(call, 3)) gradients[3] = of_bias;
  return gradients;
}

}  // namespace walle::gradient
