// Feature operators of ai.onnx.ml: Binarizer and LabelEncoder.
#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

}  // namespace

// Return 1 where x is above the threshold, else 0, in x's dtype.
std::vector<Ref> decompose_binarizer(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const DType dtype = emitter.operand(inputs[0]).dtype, compared = is_floating(dtype) ? dtype : DType::f64;
  const Ref threshold = emitter.number(attributes.get_float("threshold", 0), compared);
  return {cast(emitter, emitter.one("Greater", {cast(emitter, inputs[0], compared), threshold}), dtype)};
}

// Inputs: x, keys (n), values (n), the value for any other x. The value of the first key that equals x; NaN equals NaN.
std::vector<Ref> decompose_label_encoder(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  const Operand x = emitter.operand(inputs[0]);
  const DType dtype = x.dtype;
  const Dims shape = x.shape, keys = emitter.operand(inputs[1]).shape;
  if (keys.size() != 1 || keys[0] < 1 || emitter.operand(inputs[2]).shape != keys)
    throw Error(ErrorKind::shape, "LabelEncoder with keys of shape " + to_string(keys) + " and values of shape " +
                                      to_string(emitter.operand(inputs[2]).shape));
  Dims wide = shape;
  wide.push_back(1);
  const Ref apart = reshape(emitter, inputs[0], wide);
  Ref equal = emitter.one("Equal", {apart, inputs[1]});
  if (is_floating(dtype))
    equal = emitter.one("Or", {equal, emitter.one("And", {emitter.one("IsNaN", {apart}), emitter.one("IsNaN", {inputs[1]})})});
  const auto last = static_cast<std::int64_t>(shape.size());
  const Ref found = emitter.one("ReduceMax", {equal}, {{"axes", Dims{last}}, {"keepdims", std::int64_t{0}}});
  const Ref first = emitter.one("ArgMax", {cast(emitter, equal, DType::u8)}, {{"axis", last}, {"keepdims", std::int64_t{0}}});
  return {emitter.one("Where", {found, emitter.one("Gather", {inputs[2], first}, {{"axis", std::int64_t{0}}}), inputs[3]})};
}

}  // namespace walle
