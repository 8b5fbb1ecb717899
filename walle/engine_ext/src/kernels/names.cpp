#include "kernels/names.h"

namespace walle {

std::optional<UnaryOp> find_unary(std::string_view name) noexcept {
  constexpr std::string_view names[] = {
#define WALLE_UNARY(op, types) #op,
#include "kernels/kernels.inc"
#undef WALLE_UNARY
  };
  for (std::size_t i = 0; i < std::size(names); ++i)
    if (names[i] == name) return static_cast<UnaryOp>(i);
  return std::nullopt;
}

}  // namespace walle
