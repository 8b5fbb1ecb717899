// The operators on sequences and optionals.
#pragma once
#include "run/flow.h"

namespace walle {

// Null for another operator.
FlowFn sequence_function(std::string_view op) noexcept;

}  // namespace walle
