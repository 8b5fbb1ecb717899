// The optimizers of ai.onnx.preview.training. Inputs: learning rate R, update count T, then all tensors X, their gradients G, and
// one or two states of each; outputs: the new X, then the new states.
#include <cmath>

#include "geometry/composite/composite.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

class Update {
 public:
  Update(Emitter& emitter, std::span<const Ref> inputs, std::size_t kinds, int outputs)
      : emitter_(emitter), inputs_(inputs), tensors_((inputs.size() - 2) / kinds) {
    if ((inputs.size() - 2) % kinds != 0 || static_cast<std::size_t>(outputs) != tensors_ * (kinds - 1))
      throw Error(ErrorKind::model, std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs) +
                                        " outputs are no whole number of tensors with gradients and states");
    dtype_ = emitter.operand(inputs[0]).dtype;
  }

  std::size_t tensors() const { return tensors_; }
  // Return a part of tensor `index`: 0 the value, 1 the gradient, 2 and 3 the states.
  Ref part(std::size_t kind, std::size_t index) const { return inputs_[2 + kind * tensors_ + index]; }
  // Return the update count as a floating-point number.
  Ref count() { return emitter_.one("Cast", {inputs_[1]}, {{"to", std::string(dtype_name(dtype_))}}); }
  Ref started() { return emitter_.one("Greater", {count(), number(0)}); }

  Ref number(double value) { return emitter_.number(value, dtype_); }
  Ref add(Ref a, Ref b) { return emitter_.one("Add", {a, b}); }
  Ref sub(Ref a, Ref b) { return emitter_.one("Sub", {a, b}); }
  Ref mul(Ref a, Ref b) { return emitter_.one("Mul", {a, b}); }
  Ref scaled(Ref a, double factor) { return mul(a, number(factor)); }
  Ref div(Ref a, Ref b) { return emitter_.one("Div", {a, b}); }
  Ref root(Ref a) { return emitter_.one("Sqrt", {a}); }
  Ref power(double base, Ref exponent) { return emitter_.one("Power", {number(base), exponent}); }
  Ref where(Ref condition, Ref yes, Ref no) { return emitter_.one("Where", {condition, yes, no}); }
  Ref rate() const { return inputs_[0]; }
  // Return the gradient with L2 regularisation.
  Ref gradient(std::size_t index, double norm) { return add(scaled(part(0, index), norm), part(1, index)); }

 private:
  Emitter& emitter_;
  std::span<const Ref> inputs_;
  std::size_t tensors_;
  DType dtype_;
};

}  // namespace

std::vector<Ref> decompose_adagrad(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  Update u(emitter, inputs, 3, outputs);
  const double norm = attributes.get_float("norm_coefficient", 0), epsilon = attributes.get_float("epsilon", 1e-6);
  const Ref rate = u.div(u.rate(), u.add(u.scaled(u.count(), attributes.get_float("decay_factor", 0)), u.number(1)));
  std::vector<Ref> tensors, sums;
  for (std::size_t i = 0; i < u.tensors(); ++i) {
    const Ref g = u.gradient(i, norm);
    sums.push_back(u.add(u.part(2, i), u.mul(g, g)));
    tensors.push_back(u.sub(u.part(0, i), u.div(u.mul(rate, g), u.add(u.root(sums.back()), u.number(epsilon)))));
  }
  tensors.insert(tensors.end(), sums.begin(), sums.end());
  return tensors;
}

std::vector<Ref> decompose_adam(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  Update u(emitter, inputs, 4, outputs);
  const double alpha = attributes.get_float("alpha", 0.9), beta = attributes.get_float("beta", 0.999),
               epsilon = attributes.get_float("epsilon", 1e-6);
  const double norm = attributes.get_float("norm_coefficient", 0), after = attributes.get_float("norm_coefficient_post", 0);
  const Ref one = u.number(1), t = u.count();
  const Ref corrected = u.mul(u.rate(), u.div(u.root(u.sub(one, u.power(beta, t))), u.sub(one, u.power(alpha, t))));
  const Ref rate = u.where(u.started(), corrected, u.rate());
  std::vector<Ref> tensors, means, squares;
  for (std::size_t i = 0; i < u.tensors(); ++i) {
    const Ref g = u.gradient(i, norm);
    means.push_back(u.add(u.scaled(u.part(2, i), alpha), u.scaled(g, 1 - alpha)));
    squares.push_back(u.add(u.scaled(u.part(3, i), beta), u.scaled(u.mul(g, g), 1 - beta)));
    const Ref step = u.div(u.mul(rate, means.back()), u.add(u.root(squares.back()), u.number(epsilon)));
    tensors.push_back(u.scaled(u.sub(u.part(0, i), step), 1 - after));
  }
  tensors.insert(tensors.end(), means.begin(), means.end());
  tensors.insert(tensors.end(), squares.begin(), squares.end());
  return tensors;
}

std::vector<Ref> decompose_momentum(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  Update u(emitter, inputs, 3, outputs);
  const double alpha = attributes.get_float("alpha", 0), norm = attributes.get_float("norm_coefficient", 0);
  const std::string mode = attributes.get_string("mode", "standard");
  if (mode != "standard" && mode != "nesterov")
    throw Error(ErrorKind::model, "Momentum in mode '" + mode + "'; known are standard and nesterov");
  const Ref share = u.where(u.started(), u.number(attributes.get_float("beta", 1)), u.number(1));
  std::vector<Ref> tensors, momenta;
  for (std::size_t i = 0; i < u.tensors(); ++i) {
    const Ref g = u.gradient(i, norm);
    momenta.push_back(u.add(u.scaled(u.part(2, i), alpha), u.mul(share, g)));
    const Ref step = mode == "nesterov" ? u.add(g, u.scaled(momenta.back(), alpha)) : momenta.back();
    tensors.push_back(u.sub(u.part(0, i), u.mul(u.rate(), step)));
  }
  tensors.insert(tensors.end(), momenta.begin(), momenta.end());
  return tensors;
}

}  // namespace walle
