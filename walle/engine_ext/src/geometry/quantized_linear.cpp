// MatMulInteger and QLinearMatMul: matrix products of quantised numbers, in int32.
#include "geometry/composite.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// The tensor in int32 without its zero point, which is one number or one for each row (of A) or column (of B).
Ref centred(Emitter& emitter, Ref tensor, Ref zero, bool rows) {
  const Attributes to_int{{"to", std::string("int32")}};
  const Ref wide = emitter.one("Cast", {tensor}, to_int);
  if (zero == Emitter::kAbsent) return wide;
  if (emitter.operand(zero).dtype != emitter.operand(tensor).dtype)
    throw Error(ErrorKind::dtype, "a zero point has another dtype than its tensor");
  Ref point = emitter.one("Cast", {zero}, to_int);
  if (rows && emitter.operand(point).shape.size() == 1 && emitter.operand(point).shape[0] != 1)
    point = emitter.one("Unsqueeze", {point}, {{"axes", Dims{1}}});
  return emitter.one("Sub", {wide, point});
}

Ref scale_of(Emitter& emitter, Ref scale, bool rows) {
  const Ref wide =
      emitter.operand(scale).dtype == DType::f32 ? scale : emitter.one("Cast", {scale}, {{"to", std::string("float32")}});
  if (rows && emitter.operand(wide).shape.size() == 1 && emitter.operand(wide).shape[0] != 1)
    return emitter.one("Unsqueeze", {wide}, {{"axes", Dims{1}}});
  return wide;
}

}  // namespace

// Inputs: A, B, A's zero point, B's zero point.
std::vector<Ref> decompose_matmul_integer(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  const auto given = [&](std::size_t i) { return i < inputs.size() ? inputs[i] : Emitter::kAbsent; };
  return {emitter.one("MatMul", {centred(emitter, inputs[0], given(2), true), centred(emitter, inputs[1], given(3), false)})};
}

// round(int32 result * scale) + zero point, saturated to the zero point's dtype.
Ref requantized(Emitter& emitter, Ref product, Ref scale, Ref zero) {
  const DType dtype = emitter.operand(zero).dtype;
  if (dtype != DType::u8 && dtype != DType::i8)
    throw Error(ErrorKind::dtype, "a result is quantised to uint8 or int8, not " + std::string(dtype_name(dtype)));
  Ref value = emitter.one("Mul", {emitter.one("Cast", {product}, {{"to", std::string("float32")}}), scale});
  value = emitter.one("Add", {emitter.one("Round", {value}), emitter.one("Cast", {zero}, {{"to", std::string("float32")}})});
  value = emitter.one("Maximum", {value, emitter.number(dtype == DType::u8 ? 0 : -128, DType::f32)});
  value = emitter.one("Minimum", {value, emitter.number(dtype == DType::u8 ? 255 : 127, DType::f32)});
  return emitter.one("Cast", {value}, {{"to", std::string(dtype_name(dtype))}});
}

// Inputs: A, its scale and zero point, B, its scale and zero point, the result's scale and zero point.
std::vector<Ref> decompose_qlinear_matmul(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  const Ref product =
      emitter.one("MatMul", {centred(emitter, inputs[0], inputs[2], true), centred(emitter, inputs[3], inputs[5], false)});
  const Ref scale =
      emitter.one("Div", {emitter.one("Mul", {scale_of(emitter, inputs[1], true), scale_of(emitter, inputs[4], false)}),
                          scale_of(emitter, inputs[6], false)});
  return {requantized(emitter, product, scale, inputs[7])};
}

}  // namespace walle
