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
  std::span<const Emitter::Ref> inputs;  // kAbsent where one is left out
  Emitter::Ref result;
  Emitter::Ref gradient;  // gradient of the result, in its shape and type
  const Attributes& attributes;
  std::span<const std::size_t> axes;  // reduced axes of a reduction, ascending; its result may have them or not (keepdims)
  const std::vector<bool>& needed;    // by input: whether its gradient is asked for
};

// Returns the gradient of each input in that input's shape and type; kAbsent where it is not needed or always zero.
using GradientFn = std::vector<Emitter::Ref> (*)(const GradientCall& call);

// What is known of an operator's gradient: a rule; flat: its derivative is 0 wherever it has one (comparisons, Floor, Sign,
// ArgMax, casts to integers ...); refused: there is none yet, with the reason.
enum class Differentiable : std::uint8_t { by_rule, flat, refused };

struct GradientRule {
  std::string_view op;
  Differentiable kind;
  GradientFn make;          // null where there is none
  std::string_view reason;  // why an operator is refused
};

// Return the operator's entry; null for composites and transforms, which decompose.
const GradientRule* find_gradient(std::string_view op) noexcept;

// Every atomic operator has exactly one entry, in alphabetical order.
std::span<const GradientRule> gradient_rules() noexcept;

}  // namespace walle
