// Gradients of matrix products.
#include "geometry/composite/expressions.h"
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

using Ref = Emitter::Ref;

Ref transposed(Emitter& emitter, Ref matrices) {
  const std::size_t rank = emitter.operand(matrices).shape.size();
  Dims order(rank);
  for (std::size_t axis = 0; axis < rank; ++axis) order[axis] = static_cast<std::int64_t>(axis);
  std::swap(order[rank - 1], order[rank - 2]);
  return emitter.one("Transpose", {matrices}, {{"perm", std::move(order)}});
}

}  // namespace

// With g the gradient of a @ b: g @ b' for a, a' @ g for b, summed over the batches along which an operand was repeated. A vector
// is a matrix of one row (a) or one column (b).
std::vector<Ref> of_matmul(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  const Dims a_shape = emitter.operand(call.inputs[0]).shape, b_shape = emitter.operand(call.inputs[1]).shape;
  Dims a_matrix = a_shape, b_matrix = b_shape, g_matrix = emitter.operand(call.gradient).shape;
  if (a_shape.size() == 1) a_matrix.insert(a_matrix.begin(), 1);
  if (b_shape.size() == 1) b_matrix.push_back(1);
  if (a_shape.size() == 1) g_matrix.insert(g_matrix.end() - (b_shape.size() == 1 ? 0 : 1), 1);
  if (b_shape.size() == 1) g_matrix.push_back(1);
  const Ref a = reshape(emitter, call.inputs[0], a_matrix), b = reshape(emitter, call.inputs[1], b_matrix),
            g = reshape(emitter, call.gradient, g_matrix);
  const Ref of_a = summed_to(emitter, emitter.one("MatMul", {g, transposed(emitter, b)}), a_matrix),
            of_b = summed_to(emitter, emitter.one("MatMul", {transposed(emitter, a), g}), b_matrix);
  return {reshape(emitter, of_a, a_shape), reshape(emitter, of_b, b_shape)};
}

}  // namespace walle::gradient
