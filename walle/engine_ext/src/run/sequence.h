// Operators on sequences and optionals.
#pragma once
#include "run/flow.h"

namespace walle {

// Return the function that computes the operator; null for another operator.
FlowFn sequence_function(std::string_view op) noexcept;

}  // namespace walle
