// QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear. There is one scale and zero point for the tensor, for each slice
// along an axis, or for each block of an axis.
#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

Ref given(std::span<const Ref> inputs, std::size_t index) { return index < inputs.size() ? inputs[index] : Emitter::kAbsent; }

struct Range {
  double least, greatest;
};
std::optional<Range> range_of(DType dtype) {
  switch (dtype) {
    case DType::i8: return Range{-128, 127};
    case DType::u8: return Range{0, 255};
    case DType::i16: return Range{-32768, 32767};
    case DType::u16: return Range{0, 65535};
    case DType::i4: return Range{-8, 7};
    case DType::u4: return Range{0, 15};
    case DType::i2: return Range{-2, 1};
    case DType::u2: return Range{0, 3};
    default: return std::nullopt;
  }
}
bool is_small_float(DType dtype) { return is_floating(dtype) && item_size(dtype) == 1; }

// Expand a scale or zero point so that it broadcasts to the tensor of `shape`.
Ref spread(Emitter& emitter, Ref value, const Dims& shape, const Attributes& attributes) {
  const Dims own = emitter.operand(value).shape;
  const std::int64_t block = attributes.get_int("block_size", 0), given_axis = attributes.get_int("axis", 1);
  if (block < 0 || block > kMaxElements) throw Error(ErrorKind::model, "a block_size of " + std::to_string(block));
  if (element_count(own) == 1 && block == 0) return reshape(emitter, value, {});
  const std::size_t axis = normal_axis(given_axis, shape.size());
  const auto misfit = [&](const std::string& expected_form) {
    return Error(ErrorKind::shape, "a scale or zero point of shape " + to_string(own) + " for a tensor of shape " +
                                       to_string(shape) + " along axis " + std::to_string(axis) + "; " + expected_form);
  };
  Dims wide(shape.size(), 1);
  if (block == 0) {
    if (own.size() != 1 || own[0] != shape[axis]) throw misfit("it needs one number, or one for each slice");
    wide[axis] = own[0];
    return reshape(emitter, value, wide);
  }
  Dims expected = shape;
  expected[axis] = (shape[axis] + block - 1) / block;
  if (own != expected) throw misfit("blocks of " + std::to_string(block) + " need " + to_string(expected));
  Dims apart = expected, repeated;
  apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(axis) + 1, 1);
  repeated = apart;
  repeated[axis + 1] = block;
  expected[axis] *= block;
  const Ref blocks = reshape(emitter, emitter.one("Expand", {reshape(emitter, value, apart)}, {{"shape", repeated}}), expected);
  return emitter.one("Slice", {blocks},
                     {{"starts", Dims{0}}, {"ends", Dims{shape[axis]}}, {"axes", Dims{static_cast<std::int64_t>(axis)}}});
}

void check_scale(const Operand& scale) {
  if (scale.absent || !is_floating(scale.dtype))
    throw Error(ErrorKind::dtype, "a scale is a floating number, not " + std::string(dtype_name(scale.dtype)));
}

DType type_named(const Attributes& attributes, std::string_view name, DType fallback) {
  const std::int64_t number = attributes.get_int(name, 0);
  return number == 0 ? fallback : target_dtype({{"to", number}});
}

}  // namespace

// round(x / scale) + zero point, saturated; for small floats x / scale, rounded as by Cast.
std::vector<Ref> decompose_quantize_linear(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand x = emitter.operand(inputs[0]), scale = emitter.operand(inputs[1]);
  check_scale(scale);
  const Dims shape = x.shape;
  const Ref point = given(inputs, 2);
  DType dtype = type_named(attributes, "output_dtype", point == Emitter::kAbsent ? DType::u8 : emitter.operand(point).dtype);
  if (point != Emitter::kAbsent && emitter.operand(point).dtype != dtype)
    throw Error(ErrorKind::dtype, "a zero point of " + std::string(dtype_name(emitter.operand(point).dtype)) +
                                      " for a result of " + std::string(dtype_name(dtype)));
  const auto range = range_of(dtype);
  if (!range && !is_small_float(dtype))
    throw Error(ErrorKind::dtype, "QuantizeLinear to " + std::string(dtype_name(dtype)) + " is not supported");
  const DType divided = type_named(attributes, "precision", is_small_float(scale.dtype) ? DType::f32 : scale.dtype);
  const std::int64_t saturate = attributes.get_int("saturate", 1);

  const bool bytes = dtype == DType::u8 || dtype == DType::i8;
  if (bytes && x.dtype == DType::f32 && divided == DType::f32 && element_count(scale.shape) == 1 &&
      attributes.get_int("block_size", 0) == 0 &&
      (point == Emitter::kAbsent || element_count(emitter.operand(point).shape) == 1)) {
    const Ref zero = point == Emitter::kAbsent ? emitter.number(0, dtype) : point;
    return {emitter.one("IntegerQuantize", {inputs[0], cast(emitter, inputs[1], DType::f32), zero})};
  }
  const Ref quotient = emitter.one(
      "Div", {cast(emitter, inputs[0], divided), spread(emitter, cast(emitter, inputs[1], divided), shape, attributes)});
  const DType wide = divided == DType::f64 ? DType::f64 : DType::f32;
  Ref value = cast(emitter, quotient, wide);
  if (!range) {
    if (point != Emitter::kAbsent)
      value = emitter.one("Add", {value, spread(emitter, cast(emitter, point, wide), shape, attributes)});
    return {emitter.one("Cast", {value}, {{"to", std::string(dtype_name(dtype))}, {"saturate", saturate}})};
  }
  value = emitter.one("Round", {value});
  if (point != Emitter::kAbsent)
    value = emitter.one("Add", {value, spread(emitter, cast(emitter, point, wide), shape, attributes)});
  value = emitter.one("Max", {value, emitter.number(range->least, wide)});
  value = emitter.one("Min", {value, emitter.number(range->greatest, wide)});
  return {cast(emitter, value, dtype)};
}

// (x - zero point) * scale.
std::vector<Ref> decompose_dequantize_linear(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand x = emitter.operand(inputs[0]), scale = emitter.operand(inputs[1]);
  check_scale(scale);
  const DType from = x.dtype;
  if (!range_of(from) && !is_small_float(from) && from != DType::i32)
    throw Error(ErrorKind::dtype, "DequantizeLinear of " + std::string(dtype_name(from)) + " is not supported");
  const Dims shape = x.shape;
  const DType result = type_named(attributes, "output_dtype", scale.dtype);
  const DType wide = scale.dtype == DType::f64 || result == DType::f64 ? DType::f64 : DType::f32;
  Ref value = inputs[0];
  if (const Ref point = given(inputs, 2); point != Emitter::kAbsent) {
    if (emitter.operand(point).dtype != from) throw Error(ErrorKind::dtype, "a zero point has another dtype than its tensor");
    // Integers are subtracted as integers: float32 does not represent all of 32 bits.
    const DType apart = range_of(from) || from == DType::i32 ? DType::i32 : wide;
    value = emitter.one("Sub", {cast(emitter, value, apart), spread(emitter, cast(emitter, point, apart), shape, attributes)});
  }
  value = emitter.one("Mul", {cast(emitter, value, wide), spread(emitter, cast(emitter, inputs[1], wide), shape, attributes)});
  return {cast(emitter, value, result)};
}

// Quantize to uint8 over the range of the values and 0; outputs: the result, its scale, its zero point.
std::vector<Ref> decompose_dynamic_quantize_linear(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  const Operand x = emitter.operand(inputs[0]);
  if (x.absent || x.dtype != DType::f32)
    throw Error(ErrorKind::dtype, "DynamicQuantizeLinear takes float32, not " + std::string(dtype_name(x.dtype)));
  const auto number = [&](double value) { return emitter.number(value, DType::f32); };
  const Ref greatest = emitter.one("Max", {emitter.one("ReduceMax", {inputs[0]}, {{"keepdims", std::int64_t{0}}}), number(0)});
  const Ref least = emitter.one("Min", {emitter.one("ReduceMin", {inputs[0]}, {{"keepdims", std::int64_t{0}}}), number(0)});
  const Ref width = emitter.one("Sub", {greatest, least});
  // All zeros have an empty range; any scale is valid.
  const Ref scale =
      emitter.one("Where", {emitter.one("Equal", {width, number(0)}), number(1), emitter.one("Div", {width, number(255)})});
  Ref point = emitter.one("Div", {emitter.one("Neg", {least}), scale});
  point = emitter.one("Round", {emitter.one("Min", {emitter.one("Max", {point, number(0)}), number(255)})});
  point = cast(emitter, point, DType::u8);
  return {emitter.one("QuantizeLinear", {inputs[0], scale, point}), scale, point};
}

}  // namespace walle
