// Gradients of matrix products.
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

// Return a stack of matrices as one matrix, of all their rows.
Ref all_rows(Emitter& emitter, Ref matrices) {
  const Dims shape = emitter.operand(matrices).shape;
  if (shape.size() == 2) return matrices;
  return reshape(emitter, matrices, {element_count(Dims(shape.begin(), shape.end() - 1)), shape.back()});
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
  const Ref g = reshape(emitter, call.gradient, g_matrix);
  std::vector<Ref> gradients = no_gradients(call);
  // That of b first, which is mostly a weight: the larger one of a then takes memory when a is not needed any more.
  if (needs(call, 1)) {
    Ref a = reshape(emitter, call.inputs[0], a_matrix), to = g;
    // One matrix for a whole batch: its gradient is one product over all rows, not a sum of products.
    if (b_matrix.size() == 2 && a_matrix.size() > 2) a = all_rows(emitter, a), to = all_rows(emitter, g);
    gradients[1] =
        reshape(emitter, summed_to(emitter, emitter.one("MatMul", {transposed_matrices(emitter, a), to}), b_matrix), b_shape);
  }
  if (needs(call, 0)) {
    const Ref b = reshape(emitter, call.inputs[1], b_matrix);
    gradients[0] =
        reshape(emitter, summed_to(emitter, emitter.one("MatMul", {g, transposed_matrices(emitter, b)}), a_matrix), a_shape);
  }
  return gradients;
}

}  // namespace walle::gradient
