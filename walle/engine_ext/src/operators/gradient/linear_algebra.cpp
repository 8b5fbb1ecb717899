// Gradients of dense linear algebra.
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

// Return a constant n by n matrix of f(row, column).
template <class F>
Ref matrix(Emitter& emitter, DType dtype, std::int64_t n, F&& f) {
  Tensor value = Tensor::empty(DType::f64, {n, n});
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) value.data<double>()[i * n + j] = f(i, j);
  return cast(emitter, emitter.constant(std::move(value)), dtype);
}

}  // namespace

// x of a @ x = b: the solution s of a' @ s = g is the gradient of b, and -s @ x' that of a.
std::vector<Ref> of_solve(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  std::vector<Ref> gradients = no_gradients(call);
  const Ref of_b = emitter.one("Solve", {transposed_matrices(emitter, call.inputs[0]), call.gradient});
  if (needs(call, 1)) gradients[1] = of_b;
  if (needs(call, 0))
    gradients[0] = emitter.one("Neg", {emitter.one("MatMul", {of_b, transposed_matrices(emitter, call.result)})});
  return gradients;
}

// The transposed inverse times the determinant, or, of the logarithm, alone. A singular matrix is refused when it is met.
std::vector<Ref> of_det(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  const Formula f = formula_of(call);
  const Dims shape = emitter.operand(call.inputs[0]).shape;
  const DType dtype = emitter.operand(call.gradient).dtype;
  if (is_half(dtype)) refuse("Det of 16-bit floats");
  const std::int64_t n = shape.back();
  const Ref one = matrix(emitter, dtype, n, [](auto i, auto j) { return i == j ? 1.0 : 0.0; });
  const Ref inverse = emitter.one("Solve", {transposed_matrices(emitter, call.inputs[0]), expanded(emitter, one, shape)});
  Dims factors = shape;
  factors.back() = factors[factors.size() - 2] = 1;
  Ref factor;
  if (call.attributes.get_int("logarithm", 0) == 0)
    factor = f.mul(call.gradient, call.result);
  else
    factor = sliced(emitter, call.gradient, shape.size() - 2, 1, 2);
  return {f.mul(inverse, reshape(emitter, factor, factors))};
}

// Symmetric, as PyTorch has it: with m = l' g, of which the lower triangle counts, its diagonal by half, l'^-1 m l^-1 and its
// transpose, halved (Murray, 2016).
std::vector<Ref> of_cholesky(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  const Formula f = formula_of(call);
  const DType dtype = emitter.operand(call.gradient).dtype;
  const std::int64_t n = emitter.operand(call.result).shape.back();
  const Ref lower = matrix(emitter, dtype, n, [](auto i, auto j) { return i > j ? 1.0 : i == j ? 0.5 : 0.0; });
  const Ref factor = transposed_matrices(emitter, call.result);
  const Ref inner = f.mul(emitter.one("MatMul", {factor, call.gradient}), lower);
  const Ref left = emitter.one("Solve", {factor, inner});
  // l'^-1 m l^-1, transposed
  const Ref whole = emitter.one("Solve", {factor, transposed_matrices(emitter, left)});
  return {f.times(f.add(whole, transposed_matrices(emitter, whole)), 0.5)};
}

}  // namespace walle::gradient
