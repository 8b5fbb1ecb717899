#include "geometry/composite/integer_forms.h"

#include <limits>

namespace walle {

namespace {

using Ref = Emitter::Ref;

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }
bool is_number(const Operand& operand) { return !operand.absent && element_count(operand.shape) == 1; }

int byte_at(const Tensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::i8 ? static_cast<int>(tensor.data<std::int8_t>()[i]) : tensor.data<std::uint8_t>()[i];
}

// Return constant weights minus their zero point, which is one number or one for each slice of `inner` elements, cyclically;
// nothing if the result does not fit int8.
std::optional<Tensor> centred_weights(const Operand& w, const Operand& zero, std::int64_t inner) {
  if (w.constant == nullptr || !is_byte(w.dtype) || !w.constant->contiguous()) return std::nullopt;
  const Tensor& weights = *w.constant;
  const std::int64_t points = zero.absent ? 0 : element_count(zero.shape);
  if (!zero.absent && (zero.constant == nullptr || zero.dtype != w.dtype || !zero.constant->contiguous() || points < 1))
    return std::nullopt;
  bool none = true;
  for (std::int64_t i = 0; i < points; ++i) none = none && byte_at(*zero.constant, i) == 0;
  if (none && w.dtype == DType::i8) return weights;
  Tensor result = Tensor::empty(DType::i8, weights.shape());
  for (std::int64_t i = 0; i < weights.size(); ++i) {
    const int value = byte_at(weights, i) - (none ? 0 : byte_at(*zero.constant, i / inner % points));
    if (value < std::numeric_limits<std::int8_t>::min() || value > std::numeric_limits<std::int8_t>::max()) return std::nullopt;
    result.data<std::int8_t>()[i] = static_cast<std::int8_t>(value);
  }
  return result;
}

// Return whether integer products support x and the result's scale and zero point.
bool fits(Emitter& emitter, const IntegerOperands& given, std::int64_t columns) {
  const Operand x = emitter.operand(given.x), x_zero = emitter.operand(given.x_zero);
  if (!is_byte(x.dtype) || (!x_zero.absent && (!is_number(x_zero) || x_zero.dtype != x.dtype))) return false;
  const Operand bias = emitter.operand(given.bias), scale = emitter.operand(given.scale), zero = emitter.operand(given.zero);
  if (!bias.absent && (bias.dtype != DType::i32 || bias.shape != Dims{columns})) return false;
  if (scale.absent) return true;
  return scale.dtype == DType::f32 && (is_number(scale) || element_count(scale.shape) == columns) && is_number(zero) &&
         is_byte(zero.dtype);
}

Ref flat(Emitter& emitter, Ref value) {
  if (value == Emitter::kAbsent || emitter.operand(value).shape.size() == 1) return value;
  return emitter.one("Reshape", {value},
                     {{"shape", Dims{element_count(emitter.operand(value).shape)}}, {"allowzero", std::int64_t{1}}});
}

Ref integer_product(Emitter& emitter, std::string_view op, Ref x, Tensor weights, const IntegerOperands& given,
                    Attributes attributes) {
  const Ref scale = flat(emitter, given.scale), w = emitter.constant(std::move(weights));
  return emitter.one(op, {x, w, given.x_zero, given.bias, scale, given.zero}, std::move(attributes));
}

Attributes activation_of(const Attributes& attributes) {
  const std::string activation = attributes.get_string("activation", "");
  return activation.empty() ? Attributes{} : Attributes{{"activation", activation}};
}

}  // namespace

Ref channels_last(Emitter& emitter, Ref value) {
  const auto rank = static_cast<std::int64_t>(emitter.operand(value).shape.size());
  Dims perm{0};
  for (std::int64_t axis = 2; axis < rank; ++axis) perm.push_back(axis);
  perm.push_back(1);
  return emitter.one("Transpose", {value}, {{"perm", perm}});
}
Ref channels_second(Emitter& emitter, Ref value) {
  const auto rank = static_cast<std::int64_t>(emitter.operand(value).shape.size());
  Dims perm{0, rank - 1};
  for (std::int64_t axis = 1; axis + 1 < rank; ++axis) perm.push_back(axis);
  return emitter.one("Transpose", {value}, {{"perm", perm}});
}

Ref scale_of(Emitter& emitter, Ref x, Ref y, Ref z) {
  const auto wide = [&](Ref scale) {
    const Ref one = flat(emitter, scale);
    return emitter.operand(one).dtype == DType::f32 ? one : emitter.one("Cast", {one}, {{"to", std::string("float32")}});
  };
  const Ref product = y == Emitter::kAbsent ? wide(x) : emitter.one("Mul", {wide(x), wide(y)});
  return emitter.one("Div", {product, wide(z)});
}

std::optional<Ref> integer_conv_form(Emitter& emitter, const IntegerOperands& given, const Attributes& attributes) {
  const Operand w = emitter.operand(given.w), w_zero = emitter.operand(given.w_zero);
  const std::size_t rank = w.shape.size();
  if (rank < 3 || rank > 5 || emitter.operand(given.x).shape.size() != rank || w.shape[0] < 1) return std::nullopt;
  const std::int64_t columns = w.shape[0], points = w_zero.absent ? 1 : element_count(w_zero.shape);
  if ((points != 1 && points != columns) || !fits(emitter, given, columns)) return std::nullopt;
  auto weights = centred_weights(w, w_zero, element_count(w.shape) / columns);
  if (!weights) return std::nullopt;
  Attributes window = activation_of(attributes);
  for (const auto& [name, value] : attributes.items())
    if (name != "activation") window.set(name, value);
  const Ref x = channels_last(emitter, given.x);
  return channels_second(emitter, integer_product(emitter, "IntegerConv", x, std::move(*weights), given, std::move(window)));
}

std::optional<Ref> integer_linear_form(Emitter& emitter, const IntegerOperands& given, const Attributes& attributes) {
  const Operand w = emitter.operand(given.w), w_zero = emitter.operand(given.w_zero);
  if (w.shape.size() != 2 || emitter.operand(given.x).shape.empty()) return std::nullopt;
  const std::int64_t columns = w.shape[1], points = w_zero.absent ? 1 : element_count(w_zero.shape);
  if ((points != 1 && points != columns) || !fits(emitter, given, columns)) return std::nullopt;
  auto weights = centred_weights(w, w_zero, 1);
  if (!weights) return std::nullopt;
  return integer_product(emitter, "IntegerLinear", given.x, std::move(*weights), given, activation_of(attributes));
}

}  // namespace walle
