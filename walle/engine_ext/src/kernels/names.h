// Names of the operators in kernels.inc.
#pragma once
#include <optional>
#include <string_view>

#include "kernels/table.h"

namespace walle {

// The elementwise operator of one input that has this name; none: there is no such operator.
std::optional<UnaryOp> find_unary(std::string_view name) noexcept;

}  // namespace walle
