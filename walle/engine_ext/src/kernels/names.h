// Names of the operators in kernels.inc.
#pragma once
#include <optional>
#include <string_view>

#include "kernels/table.h"

namespace walle {

// Return the elementwise operator of one input with this name; none if the name is unknown.
std::optional<UnaryOp> find_unary(std::string_view name) noexcept;

}  // namespace walle
