// MatMulInteger, QLinearMatMul, QLinearAdd, QLinearRescale and QLinearGlobalAveragePool: int32 matrix products of quantised
// numbers, their sums and means.
#include <algorithm>
#include <limits>
#include <numeric>

#include "geometry/composite/integer_forms.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// Return the tensor in int32 minus its zero point, which is one number or one for each row (of A) or column (of B).
Ref centred_operand(Emitter& emitter, Ref tensor, Ref zero, bool rows) {
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

Ref broadcast_scale(Emitter& emitter, Ref scale, bool rows) {
  const Ref wide =
      emitter.operand(scale).dtype == DType::f32 ? scale : emitter.one("Cast", {scale}, {{"to", std::string("float32")}});
  if (rows && emitter.operand(wide).shape.size() == 1 && emitter.operand(wide).shape[0] != 1)
    return emitter.one("Unsqueeze", {wide}, {{"axes", Dims{1}}});
  return wide;
}

}  // namespace

// Inputs: A, B, A's zero point, B's zero point.
std::vector<Ref> decompose_matmul_integer(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const auto given = [&](std::size_t i) { return i < inputs.size() ? inputs[i] : Emitter::kAbsent; };
  if (const auto form = integer_linear_form(emitter, {inputs[0], given(2), inputs[1], given(3)}, attributes)) return {*form};
  return {emitter.one(
      "MatMul", {centred_operand(emitter, inputs[0], given(2), true), centred_operand(emitter, inputs[1], given(3), false)})};
}

// round(int32 result * scale) + zero point, saturated to the zero point's dtype; with Relu, at least the zero point.
Ref requantized(Emitter& emitter, Ref product, Ref scale, Ref zero, const std::string& activation) {
  const DType dtype = emitter.operand(zero).dtype;
  if (dtype != DType::u8 && dtype != DType::i8)
    throw Error(ErrorKind::dtype, "a result is quantised to uint8 or int8, not " + std::string(dtype_name(dtype)));
  if (!activation.empty() && activation != "Relu")
    throw Error(ErrorKind::unsupported, "a quantised result's activation may be Relu, not '" + activation + "'");
  const Ref point = emitter.one("Cast", {zero}, {{"to", std::string("float32")}});
  Ref value = emitter.one("Mul", {emitter.one("Cast", {product}, {{"to", std::string("float32")}}), scale});
  value = emitter.one("Add", {emitter.one("Round", {value}), point});
  value = emitter.one("Maximum", {value, emitter.number(dtype == DType::u8 ? 0 : -128, DType::f32)});
  if (!activation.empty()) value = emitter.one("Maximum", {value, point});
  value = emitter.one("Minimum", {value, emitter.number(dtype == DType::u8 ? 255 : 127, DType::f32)});
  return emitter.one("Cast", {value}, {{"to", std::string(dtype_name(dtype))}});
}

// Inputs: A, its scale and zero point, B, its scale and zero point, the result's scale and zero point, and, as extension of ONNX,
// an int32 bias for each column. Attribute, as extension of ONNX: `activation`, which may be Relu.
std::vector<Ref> decompose_qlinear_matmul(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Ref bias = inputs.size() > 8 ? inputs[8] : Emitter::kAbsent;
  if (element_count(emitter.operand(inputs[1]).shape) == 1) {
    const Ref scale = scale_of(emitter, inputs[1], inputs[4], inputs[6]);
    if (const auto form =
            integer_linear_form(emitter, {inputs[0], inputs[2], inputs[3], inputs[5], bias, scale, inputs[7]}, attributes))
      return {*form};
  }
  Ref product = emitter.one(
      "MatMul", {centred_operand(emitter, inputs[0], inputs[2], true), centred_operand(emitter, inputs[3], inputs[5], false)});
  if (bias != Emitter::kAbsent) product = emitter.one("Add", {product, bias});
  const Ref scale = emitter.one(
      "Div", {emitter.one("Mul", {broadcast_scale(emitter, inputs[1], true), broadcast_scale(emitter, inputs[4], false)}),
              broadcast_scale(emitter, inputs[6], false)});
  return {requantized(emitter, product, scale, inputs[7], attributes.get_string("activation", ""))};
}

// Inputs: a, its scale and zero point, b, its scale and zero point, the result's scale and zero point.
// Attribute: `activation`, which may be Relu.
std::vector<Ref> decompose_qlinear_add(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims shape = broadcast_shape(emitter.operand(inputs[0]).shape, emitter.operand(inputs[3]).shape);
  const bool channels = shape.size() > 2;
  const auto whole = [&](Ref value) {
    if (emitter.operand(value).shape != shape) value = emitter.one("Expand", {value}, {{"shape", shape}});
    return channels ? channels_last(emitter, value) : value;
  };
  const auto scale = [&](Ref one) { return scale_of(emitter, one, Emitter::kAbsent, inputs[6]); };
  const Ref a_scale = scale(inputs[1]), b_scale = scale(inputs[4]), a = whole(inputs[0]), b = whole(inputs[3]);
  const Ref sum = emitter.one("IntegerSum", {a, a_scale, inputs[2], b, b_scale, inputs[5], inputs[7]}, attributes);
  return {channels ? channels_second(emitter, sum) : sum};
}

// Requantize bytes to another scale and zero point. Inputs: x, its scale and zero point, the result's scale and zero point.
std::vector<Ref> decompose_qlinear_rescale(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  const bool channels = emitter.operand(inputs[0]).shape.size() > 2;
  const Ref scale = scale_of(emitter, inputs[1], Emitter::kAbsent, inputs[3]), none = emitter.number(0, DType::f32);
  const Ref x = channels ? channels_last(emitter, inputs[0]) : inputs[0];
  const Ref sum = emitter.one("IntegerSum", {x, scale, inputs[2], x, none, inputs[2], inputs[4]});
  return {channels ? channels_second(emitter, sum) : sum};
}

namespace {

// The mean of the dequantised numbers, in float32.
Ref float_mean(Emitter& emitter, std::span<const Ref> inputs, Ref ratio) {
  Ref x = emitter.one("Cast", {inputs[0]}, {{"to", std::string("float32")}});
  if (inputs[2] != Emitter::kAbsent)
    x = emitter.one("Sub", {x, emitter.one("Cast", {inputs[2]}, {{"to", std::string("float32")}})});
  Dims axes(emitter.operand(x).shape.size() - 2);
  std::iota(axes.begin(), axes.end(), 2);
  const Ref mean = emitter.one("ReduceMean", {x}, {{"axes", axes}, {"keepdims", std::int64_t{1}}});
  return requantized(emitter, mean, ratio, inputs[4], "");
}

}  // namespace

// Mean over all spatial axes, which stay with size 1: a convolution by ones, if it supports that many axes and no sum exceeds
// int32. Inputs: x, its scale and zero point, the result's scale and zero point.
std::vector<Ref> decompose_qlinear_global_average_pool(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  constexpr std::int64_t kMostPixels = std::numeric_limits<std::int32_t>::max() / 255;
  const Operand x = emitter.operand(inputs[0]);
  if (x.shape.size() < 3) throw Error(ErrorKind::shape, "QLinearGlobalAveragePool of " + to_string(x.shape));
  const auto is_number = [&](std::size_t i) {
    return i == 2 && inputs[i] == Emitter::kAbsent ? true : element_count(emitter.operand(inputs[i]).shape) == 1;
  };
  if ((x.dtype != DType::u8 && x.dtype != DType::i8) || !is_number(1) || !is_number(2) || !is_number(3) || !is_number(4))
    throw Error(ErrorKind::unsupported, "QLinearGlobalAveragePool takes bytes with one scale and one zero point");
  const Dims kernel(x.shape.begin() + 2, x.shape.end());
  const std::int64_t pixels = element_count(kernel);
  const Ref ratio = scale_of(emitter, inputs[1], Emitter::kAbsent, inputs[3]);
  if (kernel.size() > 3 || x.shape[1] < 1 || pixels < 1 || pixels > kMostPixels) return {float_mean(emitter, inputs, ratio)};
  Dims shape{x.shape[1], 1};
  shape.insert(shape.end(), kernel.begin(), kernel.end());
  Tensor ones = Tensor::empty(DType::i8, shape);
  std::fill_n(ones.data<std::int8_t>(), ones.size(), std::int8_t{1});
  const Ref scale = emitter.one("Div", {ratio, emitter.number(static_cast<double>(pixels), DType::f32)});
  const IntegerOperands operands{inputs[0], inputs[2], emitter.constant(std::move(ones)), Emitter::kAbsent, Emitter::kAbsent,
                                 scale,     inputs[4]};
  const auto mean = integer_conv_form(emitter, operands, {{"group", shape[0]}});
  if (!mean) throw Error(ErrorKind::unsupported, "QLinearGlobalAveragePool: a zero point has another dtype than its tensor");
  return {*mean};
}

}  // namespace walle
