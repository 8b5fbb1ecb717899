// Epilogue of a convolution or a matrix product, as a value: what is done with its sums before they are stored. Fusion extends it
// (plan/fuse.cpp); atomic/epilogue_kernel.h applies it.
#pragma once
#include <limits>
#include <optional>
#include <string_view>
#include <variant>

#include "core/attributes.h"
#include "kernels/table.h"

namespace walle {

// Operands of Conv and Linear; 0 and 1 are x and the weights.
inline constexpr std::size_t kBias = 2, kResidual = 3, kSlope = 4;

// An elementwise kernel with its two numbers (see MapOp).
struct Map {
  MapOp op;
  double a = 0, b = 0;
};

// PRelu with a slope for each channel: operand kSlope.
struct ChannelSlope {};

// std::monostate: none.
using Activation = std::variant<std::monostate, UnaryOp, Map, ChannelSlope>;

// Where operand kResidual is added: to the sums with their bias, or behind the activation.
enum class Residual : std::uint8_t { none, to_sums, behind_activation };

// Applied in the order of its members, but for a residual behind the activation.
struct Epilogue {
  bool bias = false;  // operand kBias, a number for each channel
  Residual residual = Residual::none;
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  Activation activation;

  bool bounded() const noexcept {
    return low != -std::numeric_limits<float>::infinity() || high != std::numeric_limits<float>::infinity();
  }
  bool activated() const noexcept { return !std::holds_alternative<std::monostate>(activation); }
};

// Whether steps of this operator apply an epilogue.
inline bool takes_epilogue(std::string_view op) noexcept { return op == "Conv" || op == "Linear"; }

// Return the activation that an elementwise operator of one input is; nothing for another operator.
std::optional<Activation> elementwise_activation(std::string_view op) noexcept;
// Return the epilogue of a model's node, by the operands that it has and its attribute `activation`, the name of an elementwise
// operator of one input. Throws Error (unsupported) for another name.
Epilogue read_epilogue(const Attributes& attributes, bool bias, bool residual);

}  // namespace walle
