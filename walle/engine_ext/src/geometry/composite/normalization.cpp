// Softmax and the normalisations. 16-bit float operands are widened to float32 and the results rounded once.
#include <algorithm>

#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"
#include "geometry/composite/formula.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

Attributes over(Dims axes) { return {{"axes", std::move(axes)}, {"keepdims", std::int64_t{1}}}; }

DType wide_type(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype; }

Ref input(std::span<const Ref> inputs, std::size_t index) { return index < inputs.size() ? inputs[index] : Emitter::kAbsent; }

// Return x minus its maximum along the axis, so that no exponential overflows.
Ref shifted_scores(Emitter& emitter, Ref x, const Dims& axes) {
  return emitter.one("Sub", {x, emitter.one("ReduceMax", {x}, over(axes))});
}

Dims softmax_axis(const Emitter& emitter, Ref x, const Attributes& attributes) {
  return {static_cast<std::int64_t>(normal_axis(attributes.get_int("axis", -1), emitter.operand(x).shape.size()))};
}

// Return all axes except the first `kept`.
Dims axes_from(std::size_t kept, std::size_t rank) {
  Dims axes;
  for (std::size_t i = kept; i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  return axes;
}

struct Normal {
  Ref value, mean, scale;  // (x - mean) * scale, and its parts: the mean and 1 / standard deviation
};

Normal normalised(Emitter& emitter, Ref x, const Dims& axes, double epsilon) {
  const Ref mean = emitter.one("ReduceMean", {x}, over(axes));
  const Ref centred = emitter.one("Sub", {x, mean});
  const Ref variance = emitter.one("ReduceMean", {emitter.one("Square", {centred})}, over(axes));
  const Ref scale = emitter.one("Rsqrt", {emitter.one("Add", {variance, emitter.number(epsilon, emitter.operand(x).dtype)})});
  return {emitter.one("Mul", {centred, scale}), mean, scale};
}

// Reshape a value for each channel, (channels), to broadcast along axis 1 of a tensor of that rank.
Ref by_channel(Emitter& emitter, Ref value, std::size_t rank) {
  const Dims shape = emitter.operand(value).shape;
  if (shape.size() != 1)
    throw Error(ErrorKind::shape, "a value for each channel has shape " + to_string(shape) + ", not one dimension");
  Dims wide(rank > 1 ? rank - 1 : 1, 1);
  wide[0] = shape[0];
  return emitter.one("Reshape", {value}, {{"shape", wide}, {"allowzero", std::int64_t{1}}});
}

void check_rank(const char* op, const Dims& shape, std::size_t least) {
  if (shape.size() < least)
    throw Error(ErrorKind::shape,
                std::string(op) + " of shape " + to_string(shape) + "; it needs " + std::to_string(least) + " dimensions");
}

}  // namespace

#define WALLE_NORMALIZATION(name)                                                                                \
  std::vector<Ref> decompose_##name(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, \
                                    [[maybe_unused]] int outputs)

WALLE_NORMALIZATION(softmax) {
  const DType dtype = emitter.operand(inputs[0]).dtype;
  const Dims axes = softmax_axis(emitter, inputs[0], attributes);
  const Ref exponentials = emitter.one("Exp", {shifted_scores(emitter, cast(emitter, inputs[0], wide_type(dtype)), axes)});
  return {cast(emitter, emitter.one("Div", {exponentials, emitter.one("ReduceSum", {exponentials}, over(axes))}), dtype)};
}

WALLE_NORMALIZATION(log_softmax) {
  const DType dtype = emitter.operand(inputs[0]).dtype;
  const Dims axes = softmax_axis(emitter, inputs[0], attributes);
  const Ref shift = shifted_scores(emitter, cast(emitter, inputs[0], wide_type(dtype)), axes);
  const Ref sum = emitter.one("ReduceSum", {emitter.one("Exp", {shift})}, over(axes));
  return {cast(emitter, emitter.one("Sub", {shift, emitter.one("Log", {sum})}), dtype)};
}

// (x - mean) / sqrt(variance + epsilon) * scale + bias by channel. With training_mode the mean and variance are the batch's, and
// the running ones are outputs too.
WALLE_NORMALIZATION(batch_normalization) {
  const Operand x = emitter.operand(inputs[0]);
  const DType dtype = x.dtype, wide = wide_type(dtype);
  const std::size_t rank = x.shape.size();
  check_rank("BatchNormalization", x.shape, 2);
  const double epsilon = attributes.get_float("epsilon", 1e-5), momentum = attributes.get_float("momentum", 0.9);
  const bool training = attributes.get_int("training_mode", 0) != 0;
  const Ref wide_x = cast(emitter, inputs[0], wide), scale = cast(emitter, inputs[1], wide),
            bias = cast(emitter, inputs[2], wide);
  if (!training) {
    if (outputs > 1) throw Error(ErrorKind::model, "BatchNormalization gives running statistics in training_mode only");
    const Ref variance = cast(emitter, inputs[4], wide), mean = cast(emitter, inputs[3], wide);
    const Ref factor =
        emitter.one("Mul", {scale, emitter.one("Rsqrt", {emitter.one("Add", {variance, emitter.number(epsilon, wide)})})});
    const Ref rest = emitter.one("Sub", {bias, emitter.one("Mul", {mean, factor})});
    const Ref scaled = emitter.one("Mul", {wide_x, by_channel(emitter, factor, rank)});
    return {cast(emitter, emitter.one("Add", {scaled, by_channel(emitter, rest, rank)}), dtype)};
  }
  const Ref moments = emitter.one("ChannelMoments", {wide_x});
  std::vector<Ref> results{
      cast(emitter, emitter.one("ChannelNormalize", {wide_x, moments, scale, bias}, {{"epsilon", epsilon}}), dtype)};
  if (outputs == 1) return results;
  const Formula f(emitter, wide);
  const auto running = [&](std::size_t index, std::int64_t row) {
    const DType own = emitter.operand(inputs[index]).dtype;
    const Ref line = emitter.one("Slice", {moments}, {{"starts", Dims{row}}, {"ends", Dims{row + 1}}, {"axes", Dims{0}}});
    const Ref now = f.times(reshape(emitter, line, {x.shape[1]}), 1 - momentum);
    if (momentum == 0) return cast(emitter, now, own);
    return cast(emitter, f.add(f.times(cast(emitter, inputs[index], wide), momentum), now), own);
  };
  results.push_back(running(3, 0));
  results.push_back(running(4, 1));
  return results;
}

// Normalize each channel of each sample over its own elements.
WALLE_NORMALIZATION(instance_normalization) {
  const Operand x = emitter.operand(inputs[0]);
  const DType dtype = x.dtype, wide = wide_type(dtype);
  const std::size_t rank = x.shape.size();
  check_rank("InstanceNormalization", x.shape, 3);
  const Normal normal =
      normalised(emitter, cast(emitter, inputs[0], wide), axes_from(2, rank), attributes.get_float("epsilon", 1e-5));
  const Ref scaled = emitter.one("Mul", {normal.value, by_channel(emitter, cast(emitter, inputs[1], wide), rank)});
  return {cast(emitter, emitter.one("Add", {scaled, by_channel(emitter, cast(emitter, inputs[2], wide), rank)}), dtype)};
}

// Normalize each group of channels of each sample; scale and bias are per channel.
WALLE_NORMALIZATION(group_normalization) {
  const Operand x = emitter.operand(inputs[0]);
  const DType dtype = x.dtype, wide = attributes.get_int("stash_type", 1) == 1 ? wide_type(dtype) : dtype;
  const Dims shape = x.shape;
  check_rank("GroupNormalization", shape, 2);
  const std::int64_t groups = attributes.get_int("num_groups", 0);
  if (groups < 1 || shape[1] % groups != 0)
    throw Error(ErrorKind::shape,
                "GroupNormalization of " + std::to_string(shape[1]) + " channels in " + std::to_string(groups) + " groups");
  const Dims grouped{shape[0], groups, element_count(Dims(shape.begin() + 1, shape.end())) / groups};
  const Ref rows = emitter.one("Reshape", {cast(emitter, inputs[0], wide)}, {{"shape", grouped}, {"allowzero", std::int64_t{1}}});
  const Normal normal = normalised(emitter, rows, {2}, attributes.get_float("epsilon", 1e-5));
  // Rounded before scale and bias, which ONNX's definition applies in the input's type.
  const Ref value =
      emitter.one("Reshape", {cast(emitter, normal.value, dtype)}, {{"shape", shape}, {"allowzero", std::int64_t{1}}});
  const Ref scaled = emitter.one("Mul", {value, by_channel(emitter, inputs[1], shape.size())});
  return {emitter.one("Add", {scaled, by_channel(emitter, inputs[2], shape.size())})};
}

// Normalize over the axes from `axis` to the last. Outputs: the result and, optionally, the mean and 1 / standard deviation.
WALLE_NORMALIZATION(layer_norm) {
  const Operand x = emitter.operand(inputs[0]);
  const DType dtype = x.dtype, wide = attributes.get_int("stash_type", 1) == 1 ? wide_type(dtype) : dtype;
  const Dims axes = axes_from(normal_axis(attributes.get_int("axis", -1), x.shape.size()), x.shape.size());
  const Normal normal = normalised(emitter, cast(emitter, inputs[0], wide), axes, attributes.get_float("epsilon", 1e-5));
  Ref result = emitter.one("Mul", {cast(emitter, normal.value, dtype), inputs[1]});
  if (input(inputs, 2) != Emitter::kAbsent) result = emitter.one("Add", {result, inputs[2]});
  std::vector<Ref> results{result, normal.mean, normal.scale};
  results.resize(static_cast<std::size_t>(outputs), Emitter::kAbsent);
  return results;
}

// x / sqrt(mean of squares + epsilon) * scale, over the axes from `axis` to the last.
WALLE_NORMALIZATION(rms_normalization) {
  const Operand x = emitter.operand(inputs[0]);
  const DType dtype = x.dtype, wide = attributes.get_int("stash_type", 1) == 1 ? wide_type(dtype) : dtype;
  const Dims axes = axes_from(normal_axis(attributes.get_int("axis", -1), x.shape.size()), x.shape.size());
  const Ref wide_x = cast(emitter, inputs[0], wide);
  const Ref square = emitter.one("ReduceMean", {emitter.one("Square", {wide_x})}, over(axes));
  const Ref scale =
      emitter.one("Rsqrt", {emitter.one("Add", {square, emitter.number(attributes.get_float("epsilon", 1e-5), wide)})});
  const Ref value = cast(emitter, emitter.one("Mul", {wide_x, scale}), dtype);
  return {emitter.one("Mul", {value, inputs[1]})};
}

WALLE_NORMALIZATION(mean_variance_normalization) {
  const DType dtype = emitter.operand(inputs[0]).dtype, wide = wide_type(dtype);
  const Dims axes = attributes.get_ints("axes").value_or(Dims{0, 2, 3});
  const Ref x = cast(emitter, inputs[0], wide);
  const Ref centred = emitter.one("Sub", {x, emitter.one("ReduceMean", {x}, over(axes))});
  const Ref deviation = emitter.one("Sqrt", {emitter.one("ReduceMean", {emitter.one("Square", {centred})}, over(axes))});
  return {cast(emitter, emitter.one("Div", {centred, emitter.one("Add", {deviation, emitter.number(1e-9, wide)})}), dtype)};
}

// x / its 1- or 2-norm along the axis; 0 where the norm is 0.
WALLE_NORMALIZATION(lp_normalization) {
  const DType dtype = emitter.operand(inputs[0]).dtype, wide = wide_type(dtype);
  const std::int64_t p = attributes.get_int("p", 2);
  if (p != 1 && p != 2)
    throw Error(ErrorKind::unsupported, "LpNormalization with p = " + std::to_string(p) + "; known are 1 and 2");
  const Dims axes = softmax_axis(emitter, inputs[0], attributes);
  const Ref x = cast(emitter, inputs[0], wide);
  Ref norm = emitter.one("ReduceSum", {emitter.one(p == 1 ? "Abs" : "Square", {x})}, over(axes));
  if (p == 2) norm = emitter.one("Sqrt", {norm});
  const Ref zero = emitter.number(0, wide);
  return {cast(emitter, emitter.one("Where", {emitter.one("Equal", {norm, zero}), zero, emitter.one("Div", {x, norm})}), dtype)};
}

// x / (bias + alpha / size * sum of squares of the `size` surrounding channels)^beta
WALLE_NORMALIZATION(lrn) {
  const Operand x = emitter.operand(inputs[0]);
  const DType dtype = x.dtype, wide = wide_type(dtype);
  const Dims shape = x.shape;
  check_rank("LRN", shape, 2);
  const std::int64_t size = attributes.get_int("size", 0), before = (size - 1) / 2;
  if (size < 1) throw Error(ErrorKind::model, "LRN over " + std::to_string(size) + " channels");
  const Ref wide_x = cast(emitter, inputs[0], wide), squares = emitter.one("Square", {wide_x});
  Dims pads(2 * shape.size(), 0);
  pads[1] = before;
  pads[shape.size() + 1] = size - 1 - before;
  const Ref padded = emitter.one("Pad", {squares}, {{"pads", pads}});
  Ref sum = Emitter::kAbsent;
  for (std::int64_t i = 0; i < size; ++i) {
    const Ref one = emitter.one("Slice", {padded}, {{"starts", Dims{i}}, {"ends", Dims{i + shape[1]}}, {"axes", Dims{1}}});
    sum = i == 0 ? one : emitter.one("Add", {sum, one});
  }
  const double alpha = attributes.get_float("alpha", 1e-4), beta = attributes.get_float("beta", 0.75),
               bias = attributes.get_float("bias", 1);
  const Ref base = emitter.one(
      "Add", {emitter.one("Mul", {sum, emitter.number(alpha / static_cast<double>(size), wide)}), emitter.number(bias, wide)});
  return {cast(emitter, emitter.one("Div", {wide_x, emitter.one("Power", {base, emitter.number(beta, wide)})}), dtype)};
}

#undef WALLE_NORMALIZATION

}  // namespace walle
