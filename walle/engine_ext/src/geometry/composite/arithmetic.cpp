// ONNX's elementwise operators that are more general than a kernel: any number of operands, mixed types, variants by attribute.
#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// Combine the operands from left to right.
Ref chain(Emitter& emitter, std::string_view op, std::span<const Ref> inputs) {
  Ref result = inputs[0];
  for (const Ref input : inputs.subspan(1)) result = emitter.one(op, {result, input});
  return inputs.size() == 1 ? emitter.one("Identity", {result}) : result;
}

}  // namespace

std::vector<Ref> decompose_bit_shift(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const std::string direction = attributes.get_string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    throw Error(ErrorKind::model, "direction '" + direction + "'; known are LEFT and RIGHT");
  return {emitter.one(direction == "LEFT" ? "ShiftLeft" : "ShiftRight", {inputs[0], inputs[1]})};
}

std::vector<Ref> decompose_cast_like(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  Attributes same = attributes;
  same.set("to", std::string(dtype_name(emitter.operand(inputs[1]).dtype)));
  return {emitter.one("Cast", {inputs[0]}, std::move(same))};
}

std::vector<Ref> decompose_is_inf(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const bool negative = attributes.get_int("detect_negative", 1) != 0, positive = attributes.get_int("detect_positive", 1) != 0;
  const Ref infinite = emitter.one("IsInfinite", {inputs[0]});
  if (negative && positive) return {infinite};
  if (!negative && !positive) return {emitter.one("Xor", {infinite, infinite})};
  const Ref zero = emitter.number(0, emitter.operand(inputs[0]).dtype);
  return {emitter.one("And", {infinite, emitter.one(negative ? "Less" : "Greater", {inputs[0], zero})})};
}

std::vector<Ref> decompose_max(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  return {chain(emitter, "Maximum", inputs)};
}

std::vector<Ref> decompose_mean(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  const DType dtype = emitter.operand(inputs[0]).dtype, computed = is_half(dtype) ? DType::f32 : dtype;
  std::vector<Ref> wide;
  for (const Ref input : inputs) wide.push_back(cast(emitter, input, computed));
  const Ref count = emitter.number(static_cast<double>(inputs.size()), computed);
  return {cast(emitter, emitter.one("Div", {chain(emitter, "Add", wide), count}), dtype)};
}

std::vector<Ref> decompose_min(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  return {chain(emitter, "Minimum", inputs)};
}

std::vector<Ref> decompose_mod(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  return {emitter.one(attributes.get_int("fmod", 0) != 0 ? "Fmod" : "FloorMod", {inputs[0], inputs[1]})};
}

// The result has the base's type. If the exponent has another, both are cast to a type that holds the relevant values of each.
std::vector<Ref> decompose_pow(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  const DType base = emitter.operand(inputs[0]).dtype, exponent = emitter.operand(inputs[1]).dtype;
  DType computed = base;
  if (base != exponent) {
    if (is_floating(base))
      computed = base == DType::f64 || exponent == DType::f64 ? DType::f64 : DType::f32;
    else
      computed = is_floating(exponent) ? DType::f64 : DType::i64;
  }
  return {cast(emitter, emitter.one("Power", {cast(emitter, inputs[0], computed), cast(emitter, inputs[1], computed)}), base)};
}

std::vector<Ref> decompose_sum(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  return {chain(emitter, "Add", inputs)};
}

}  // namespace walle
