// Composite operators: each decomposes to transform and atomic operators (§4.1). The decomposition defines the operator.
#pragma once
#include <span>
#include <vector>

#include "geometry/emitter.h"

namespace walle {

using CompositeFn = std::vector<Emitter::Ref> (*)(Emitter& emitter, std::span<const Emitter::Ref> inputs,
                                                  const Attributes& attributes, int outputs);

struct Composite {
  std::string_view name;
  int min_inputs, max_inputs;
  CompositeFn decompose;
  std::span<const std::string_view> parts;  // operators of its decomposition
};
// All composites, in alphabetical order; each is defined in the file of its family.
std::span<const Composite> composites() noexcept;
// The composites of activation.cpp.
std::span<const Composite> activation_composites() noexcept;

}  // namespace walle
