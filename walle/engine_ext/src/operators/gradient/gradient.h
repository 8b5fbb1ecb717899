// Gradients of atomic operators: one rule each, which emits operators as a decomposition does. They are the base of training.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "geometry/emitter.h"

namespace walle {

// A node of a graph, and the gradient of what is learned with respect to its result.
struct GradientCall {
  Emitter& emitter;
  std::span<const Emitter::Ref> inputs;
  Emitter::Ref result;
  Emitter::Ref gradient;
  const Attributes& attributes;
};

// Returns the gradient of each input, in that input's shape and type.
using GradientFn = std::vector<Emitter::Ref> (*)(const GradientCall& call);

// Return the operator's rule; null where it has none yet.
GradientFn find_gradient(std::string_view op) noexcept;

// The names of the operators with a rule, in alphabetical order.
std::vector<std::string_view> operators_with_gradients();

}  // namespace walle
