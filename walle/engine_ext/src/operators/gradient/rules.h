// Parts that the gradient rules share. There is one file for each family of operators; gradient.cpp lists the rules.
#pragma once
#include <optional>

#include "geometry/composite/expressions.h"
#include "geometry/composite/formula.h"
#include "operators/gradient/gradient.h"

namespace walle::gradient {

using Ref = Emitter::Ref;

// Return whether the gradient of an input is asked for; false for an input that the call does not have.
inline bool needs(const GradientCall& call, std::size_t input) { return input < call.needed.size() && call.needed[input]; }

// Return a Formula of the gradient's dtype.
inline Formula formula_of(const GradientCall& call) { return Formula(call.emitter, call.emitter.operand(call.gradient).dtype); }

// Return gradients with one entry for each input, all absent.
inline std::vector<Ref> no_gradients(const GradientCall& call) { return std::vector<Ref>(call.inputs.size(), kAbsent); }

// Return the gradient of an operand that was broadcast: summed over the axes along which it was repeated.
Ref summed_to(Emitter& emitter, Ref gradient, const Dims& shape);

// The rule of MatMul, which Linear shares.
std::vector<Ref> of_matmul(const GradientCall& call);

// Return x repeated to a larger shape.
inline Ref expanded(Emitter& emitter, Ref x, Dims shape) {
  if (emitter.operand(x).shape == shape) return x;
  return emitter.one("Expand", {x}, {{"shape", std::move(shape)}});
}

// Return zeros of a shape.
inline Ref zeros(Emitter& emitter, DType dtype, Dims shape) {
  return expanded(emitter, emitter.number(0, dtype), std::move(shape));
}

inline Ref transposed(Emitter& emitter, Ref x, Dims order) { return emitter.one("Transpose", {x}, {{"perm", std::move(order)}}); }

// Return matrices with their last two axes swapped.
inline Ref transposed_matrices(Emitter& emitter, Ref matrices) {
  const std::size_t rank = emitter.operand(matrices).shape.size();
  Dims order(rank);
  for (std::size_t axis = 0; axis < rank; ++axis) order[axis] = static_cast<std::int64_t>(axis);
  std::swap(order[rank - 1], order[rank - 2]);
  return transposed(emitter, matrices, std::move(order));
}

// Return elements [begin, end) along an axis.
inline Ref sliced(Emitter& emitter, Ref x, std::size_t axis, std::int64_t begin, std::int64_t end) {
  return emitter.one("Slice", {x},
                     {{"starts", Dims{begin}}, {"ends", Dims{end}}, {"axes", Dims{static_cast<std::int64_t>(axis)}}});
}

// Return the value of a constant operand of one element of float32 or float64.
std::optional<double> number_of(const Operand& operand);

struct Bounds {
  std::optional<double> low, high;
};
// Return g where low < x < high, else 0; where the bounds are included, low <= x <= high. An absent bound holds.
Ref gated(Emitter& emitter, Ref g, Ref x, const Bounds& bounds, bool includes_bounds = false);

// Throw Error (unsupported) for what a rule cannot differentiate.
[[noreturn]] inline void refuse(const std::string& what) { throw Error(ErrorKind::unsupported, what + " has no gradient rule"); }

}  // namespace walle::gradient
