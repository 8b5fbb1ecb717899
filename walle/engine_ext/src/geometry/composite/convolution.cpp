// Composite convolutions and poolings: ConvTranspose, ConvInteger, QLinearConv, DeformConv, MaxPool, LpPool and the
// global poolings.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "geometry/composite/expressions.h"
#include "geometry/composite/integer_forms.h"
#include "geometry/indexed_raster.h"
#include "geometry/window.h"

namespace walle {

// quantized_linear.cpp
Emitter::Ref requantized(Emitter& emitter, Emitter::Ref product, Emitter::Ref scale, Emitter::Ref zero,
                         const std::string& activation);

namespace {

using Ref = Emitter::Ref;

Ref int64_vector(Emitter& emitter, const Dims& numbers) {
  return whole(emitter, numbers, {static_cast<std::int64_t>(numbers.size())});
}

// Reshape a number for each channel, or one, to broadcast over a result [batch, channels, spatial...].
Ref per_channel(Emitter& emitter, Ref value, std::size_t rank) {
  const Dims shape = emitter.operand(value).shape;
  if (element_count(shape) == 1) return reshape(emitter, value, {});
  Dims spread(rank, 1);
  spread[1] = element_count(shape);
  return reshape(emitter, value, spread);
}

constexpr std::string_view kPooled[] = {"kernel_shape", "strides", "dilations", "pads", "auto_pad", "ceil_mode"};
constexpr std::string_view kWindow[] = {"kernel_shape", "strides", "dilations", "pads", "auto_pad", "group"};
constexpr std::string_view kQuantised[] = {"kernel_shape", "strides", "dilations", "pads", "auto_pad", "group", "activation"};

// The limit of dimensions and kernels: they are multiplied by strides and dilations, which are below 2^31.
constexpr std::int64_t kMaxSpatial = std::int64_t{1} << 30;

constexpr std::string_view kDeformed[] = {"strides", "dilations", "pads", "offset_group"};

Ref as_int(Emitter& emitter, Ref value) { return emitter.one("Cast", {value}, {{"to", std::string("int32")}}); }

// Emit Conv of x - x_zero and w - w_zero in int32; the border is x_zero, so 0 after the subtraction.
Ref integer_conv(Emitter& emitter, Ref x, Ref x_zero, Ref w, Ref w_zero, Ref bias, const Attributes& attributes) {
  const auto centred = [&](Ref value, Ref zero, bool rows) {
    const Ref wide = as_int(emitter, value);
    if (zero == Emitter::kAbsent) return wide;
    Dims spread(emitter.operand(value).shape.size(), 1);
    const std::int64_t count = element_count(emitter.operand(zero).shape);
    if (rows && !spread.empty()) spread[0] = count;
    if (!rows && count != 1) throw Error(ErrorKind::shape, "the zero point of an input must be one number");
    return emitter.one("Sub", {wide, reshape(emitter, as_int(emitter, zero), spread)});
  };
  std::vector<Ref> operands{centred(x, x_zero, false), centred(w, w_zero, true)};
  if (bias != Emitter::kAbsent) operands.push_back(bias);
  return emitter.one("Conv", operands, attributes.only(kWindow));
}

// One axis of a transposed convolution of stride s and dilation d as phases of a plain one. Tap k of input i contributes to
// output i s + k d, so outputs of phase p (their position modulo s) use every (s / g)-th tap, g = gcd(s, d), each d / g inputs
// further back; phases that g does not divide use no tap, and those of a kernel shorter than s / g use none after its last tap.
// `shift` is the number of inputs by which a phase begins later.
struct Phases {
  std::int64_t stride, gap, count, taps, dilation;  // gap: g; count: number of computed phases 0, g, 2 g, ...
  std::vector<std::int64_t> tap, shift;             // first tap and shift of each phase

  Phases(std::int64_t kernel, std::int64_t stride_of, std::int64_t dilation_of) : stride(stride_of) {
    gap = std::gcd(stride, dilation_of);
    count = stride / gap;
    taps = (kernel + count - 1) / count;
    dilation = dilation_of / gap;
    if (gap == 1 && dilation % count == 1 % count) count = std::min(count, kernel);  // tap k contributes to phase k
  }
  // Compute `tap` and `shift`, one entry per phase: a large stride means many entries.
  void place() {
    tap.resize(static_cast<std::size_t>(count));
    shift.resize(static_cast<std::size_t>(count));
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t falls = k * dilation * gap;
      const auto phase = static_cast<std::size_t>(falls % stride / gap);
      tap[phase] = k;
      shift[phase] = falls / stride;
    }
  }
  std::int64_t every() const { return stride / gap; }  // distance between a phase's taps
  std::int64_t most_shift() const { return *std::max_element(shift.begin(), shift.end()); }
  std::int64_t size(std::int64_t in) const { return in + (taps - 1) * dilation; }  // size of a phase, without its shift
  bool whole() const { return count == stride && most_shift() == 0; }              // no output is 0 for lack of taps
};

// Above this ratio of taps to real taps (holes among phases that do not begin in order) Col2Im is used. Measured on avx2 and
// avx512, phases took 0.3 to 0.9 of its time at 4 : 1 with 16 to 64 channels (1.3 to 1.8 with 256), and 1.3 to 2.4 at 9 : 1.
constexpr std::int64_t kMostPhaseTaps = 4;

bool are_few(std::span<const Phases> axes, std::int64_t real) {
  std::int64_t taps = 1;
  for (const Phases& axis : axes)
    if (__builtin_mul_overflow(taps, axis.count, &taps) || __builtin_mul_overflow(taps, axis.taps, &taps)) return false;
  return taps <= kMostPhaseTaps * real;
}

// Rearrange the weights of a transposed convolution for a plain one that computes the phases of each channel: [groups * out,
// phases..., in, taps...], a phase's last tap first, 0 where it has one tap less.
Tensor phase_weights(const Tensor& w, std::int64_t groups, std::span<const Phases> axes, const Dims& shape) {
  const std::int64_t in = w.shape()[0] / groups, out = w.shape()[1];
  const Dims kernel(w.shape().begin() + 2, w.shape().end());
  std::int64_t phases = 1, steps = 1;
  for (const Phases& axis : axes) phases *= axis.count, steps *= axis.taps;
  Tensor made = Tensor::empty(DType::f32, shape);
  float* to = made.data<float>();
  std::fill_n(to, made.size(), 0.0f);
  const std::int64_t places = element_count(kernel);
  for (std::int64_t phase = 0; phase < phases; ++phase)
    for (std::int64_t step = 0; step < steps; ++step) {
      std::int64_t place = 0, unit = 1, phase_rest = phase, step_rest = step;
      bool real = true;
      for (std::size_t i = axes.size(); i-- > 0; unit *= kernel[i]) {
        const Phases& axis = axes[i];
        const std::int64_t k =
            axis.tap[static_cast<std::size_t>(phase_rest % axis.count)] + (axis.taps - 1 - step_rest % axis.taps) * axis.every();
        real = real && k < kernel[i];
        place += k * unit;
        phase_rest /= axis.count;
        step_rest /= axis.taps;
      }
      for (std::int64_t g = 0; real && g < groups; ++g)
        for (std::int64_t c = 0; c < in; ++c)
          for (std::int64_t m = 0; m < out; ++m)
            to[(((g * out + m) * phases + phase) * in + c) * steps + step] =
                w.data<float>()[((g * in + c) * out + m) * places + place];
    }
  return made;
}

// Shift the pixels of each phase to the phase's start.
Ref shifted_phases(Emitter& emitter, Ref value, const Phases& axis, std::size_t phase_axis, std::size_t pixel_axis) {
  if (axis.most_shift() == 0) return value;
  const std::size_t rank = emitter.operand(value).shape.size();
  std::vector<Ref> moved;
  for (std::int64_t phase = 0; phase < axis.count; ++phase) {
    Dims pads(2 * rank, 0);
    pads[phase_axis] = -phase;
    pads[phase_axis + rank] = phase + 1 - axis.count;
    pads[pixel_axis] = axis.shift[static_cast<std::size_t>(phase)];
    pads[pixel_axis + rank] = axis.most_shift() - pads[pixel_axis];
    moved.push_back(emitter.one("Pad", {value}, {{"pads", pads}}));
  }
  return emitter.one("Concat", moved, {{"axis", static_cast<std::int64_t>(phase_axis)}});
}

// Emit a transposed convolution by constant weights over all covered outputs, 0 beyond, [N, M, reach...]; `bias` may be absent.
Ref phased(Emitter& emitter, Ref value, const Tensor& weights, Ref bias, std::int64_t groups, std::span<const Phases> axes,
           Dims& reach) {
  const Dims x = emitter.operand(value).shape;
  const std::size_t rank = axes.size();
  const std::int64_t channels = groups * weights.shape()[1];
  Dims shape{channels, weights.shape()[0] / groups}, pads(2 * rank), dilations(rank), split{x[0], channels}, filled{0, 0},
      perm{0, 1}, spread{x[0], channels}, last{x[0], channels};
  for (std::size_t i = 0; i < rank; ++i) {
    const Phases& axis = axes[i];
    shape[0] *= axis.count;
    shape.push_back(axis.taps);
    dilations[i] = axis.dilation;
    pads[i] = pads[i + rank] = (axis.taps - 1) * axis.dilation;
    split.push_back(axis.count);
    perm.insert(perm.end(), {static_cast<std::int64_t>(2 + rank + i), static_cast<std::int64_t>(2 + i)});
    const std::int64_t size = axis.size(x[i + 2]) + axis.most_shift();
    // After each phase, or after all of them, the phases without taps.
    if (axis.gap > 1)
      spread.insert(spread.end(), {size * axis.count, 1}), filled.insert(filled.end(), {0, axis.gap - 1});
    else
      spread.insert(spread.end(), {size, axis.count}), filled.insert(filled.end(), {0, axis.stride - axis.count});
    reach[i] = size * axis.stride;
    last.push_back(reach[i]);
  }
  for (std::size_t i = 0; i < rank; ++i) split.push_back(axes[i].size(x[i + 2]));
  std::vector<Ref> operands{value, emitter.constant(phase_weights(weights, groups, axes, shape))};
  if (bias != Emitter::kAbsent) {  // the same for every phase of a channel
    const std::int64_t phases = shape[0] / channels;
    operands.push_back(reshape(
        emitter, emitter.one("Expand", {reshape(emitter, bias, {channels, 1}), int64_vector(emitter, {channels, phases})}),
        {shape[0]}));
  }
  Ref y = reshape(emitter, emitter.one("Conv", operands, {{"pads", pads}, {"dilations", dilations}, {"group", groups}}), split);
  for (std::size_t i = 0; i < rank; ++i) y = shifted_phases(emitter, y, axes[i], 2 + i, 2 + rank + i);
  y = emitter.one("Transpose", {y}, {{"perm", perm}});
  if (std::any_of(filled.begin(), filled.end(), [](std::int64_t count) { return count > 0; })) {
    Dims more(spread.size(), 0);
    more.insert(more.end(), filled.begin(), filled.end());
    y = emitter.one("Pad", {reshape(emitter, y, spread)}, {{"pads", more}});
  }
  return reshape(emitter, y, last);
}

}  // namespace

// x [N, C, in...], w [C, M / group, kernel...]: every input element times the weights, summed into the outputs it covers.
std::vector<Ref> decompose_conv_transpose(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims x = emitter.operand(inputs[0]).shape, w = emitter.operand(inputs[1]).shape;
  const std::int64_t groups = attributes.get_int("group", 1);
  if (x.size() < 3 || x.size() > 5 || w.size() != x.size() || x[1] != w[0] || groups < 1 || x[1] % groups != 0 ||
      groups > std::max<std::int64_t>(x[1], 1))
    throw Error(ErrorKind::shape,
                "ConvTranspose of " + to_string(x) + " by " + to_string(w) + " in " + std::to_string(groups) + " groups");
  const std::size_t rank = x.size() - 2;
  const Dims kernel(w.begin() + 2, w.end());
  if (const auto given = attributes.get_ints("kernel_shape"); given && *given != kernel)
    throw Error(ErrorKind::shape, "ConvTranspose: kernel_shape is " + to_string(*given) + ", the weights are " + to_string(w));
  const Dims strides = spatial_numbers("ConvTranspose", attributes, "strides", rank, 1, 1);
  const Dims dilations = spatial_numbers("ConvTranspose", attributes, "dilations", rank, 1, 1);
  const Dims more = spatial_numbers("ConvTranspose", attributes, "output_padding", rank, 0, 0);
  const std::string auto_pad = attributes.get_string("auto_pad", "NOTSET");
  if (auto_pad != "NOTSET" && auto_pad != "VALID" && auto_pad != "SAME_UPPER" && auto_pad != "SAME_LOWER")
    throw Error(ErrorKind::unsupported, "ConvTranspose: auto_pad '" + auto_pad + "'");
  Dims pads = auto_pad == "NOTSET" ? spatial_numbers("ConvTranspose", attributes, "pads", 2 * rank, 0, 0) : Dims(2 * rank, 0);
  auto asked = attributes.get_ints("output_shape");
  if (asked && asked->size() == rank + 2) asked = Dims(asked->begin() + 2, asked->end());
  if (asked && asked->size() != rank) throw Error(ErrorKind::shape, "ConvTranspose: output_shape is " + to_string(*asked));
  Dims image(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    if (x[i + 2] >= kMaxSpatial || kernel[i] < 1 || kernel[i] >= kMaxSpatial ||
        (asked && ((*asked)[i] < 1 || (*asked)[i] > kMaxElements)))
      throw Error(ErrorKind::shape, "ConvTranspose of " + to_string(x) + " by " + to_string(w) + " is too large");
    if (x[i + 2] < 1) throw Error(ErrorKind::shape, "ConvTranspose of " + to_string(x) + ", which has no element");
    const std::int64_t full = strides[i] * (x[i + 2] - 1) + more[i] + (kernel[i] - 1) * dilations[i] + 1;
    if (asked || auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      image[i] = asked ? (*asked)[i] : x[i + 2] * strides[i];
      const std::int64_t total = std::max<std::int64_t>(full - image[i], 0);
      pads[i] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      pads[i + rank] = total - pads[i];
    } else {
      image[i] = full - pads[i] - pads[i + rank];
    }
    if (image[i] < 1)
      throw Error(ErrorKind::shape, "ConvTranspose of " + to_string(x) + " by " + to_string(w) + " leaves nothing");
  }
  const Ref bias = inputs.size() > 2 ? inputs[2] : Emitter::kAbsent;
  // If the result is larger than the covered part, it ends in zeros.
  const auto cropped = [&](Ref value, const Dims& reach, Ref added) {
    Dims rest(2 * (rank + 2), 0);
    for (std::size_t i = 0; i < rank; ++i) {
      rest[i + 2] = -pads[i];
      rest[i + 2 + rank + 2] = image[i] + pads[i] - reach[i];
    }
    const Ref result = emitter.one("Pad", {value}, {{"pads", rest}});
    return added == Emitter::kAbsent ? result : emitter.one("Add", {result, per_channel(emitter, added, rank + 2)});
  };
  const Operand weights_given = emitter.operand(inputs[1]);
  std::vector<Phases> axes;
  for (std::size_t i = 0; i < rank; ++i) axes.emplace_back(kernel[i], strides[i], dilations[i]);
  if (weights_given.constant != nullptr && weights_given.dtype == DType::f32 && are_few(axes, element_count(kernel))) {
    for (Phases& axis : axes) axis.place();
    // The bias can be fused into the convolution if every output comes from the convolution.
    bool inside = bias != Emitter::kAbsent && emitter.operand(bias).shape == Dims{groups * w[1]};
    for (std::size_t i = 0; i < rank; ++i)
      inside = inside && axes[i].whole() && image[i] + pads[i] <= axes[i].size(x[i + 2]) * strides[i];
    Dims reach(rank);
    const Ref whole_image =
        phased(emitter, inputs[0], *weights_given.constant, inside ? bias : Emitter::kAbsent, groups, axes, reach);
    return {cropped(whole_image, reach, inside ? Emitter::kAbsent : bias)};
  }
  const std::int64_t places = element_count(Dims(x.begin() + 2, x.end())), taps = element_count(kernel);
  const std::int64_t in = x[1] / groups, out = w[1];
  // [group, out * taps, in] times [batch, group, in, places].
  Ref weights = emitter.one("Transpose", {reshape(emitter, inputs[1], {groups, in, out * taps})}, {{"perm", Dims{0, 2, 1}}});
  Ref columns = emitter.one("MatMul", {weights, reshape(emitter, inputs[0], {x[0], groups, in, places})});
  columns = reshape(emitter, columns, {x[0], groups * out * taps, places});
  Dims covered(rank);  // Col2Im gets an image of exactly this size
  for (std::size_t i = 0; i < rank; ++i) covered[i] = strides[i] * (x[i + 2] - 1) + (kernel[i] - 1) * dilations[i] + 1;
  const Ref result = emitter.one("Col2Im", {columns, int64_vector(emitter, covered), int64_vector(emitter, kernel)},
                                 {{"strides", strides}, {"dilations", dilations}});
  return {cropped(result, covered, bias)};
}

// Inputs: x, w, x's zero point, w's zero point.
std::vector<Ref> decompose_conv_integer(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const auto given = [&](std::size_t i) { return i < inputs.size() ? inputs[i] : Emitter::kAbsent; };
  if (const auto form = integer_conv_form(emitter, {inputs[0], given(2), inputs[1], given(3)}, attributes.only(kWindow)))
    return {*form};
  return {integer_conv(emitter, inputs[0], given(2), inputs[1], given(3), Emitter::kAbsent, attributes)};
}

// Inputs: x, its scale and zero point, w, its scale and zero point, the result's scale and zero point, an int32 bias.
// Attribute, not ONNX's: `activation`, which may be Relu.
std::vector<Ref> decompose_qlinear_conv(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Ref bias = inputs.size() > 8 ? inputs[8] : Emitter::kAbsent;
  if (element_count(emitter.operand(inputs[1]).shape) == 1) {
    const Ref scale = scale_of(emitter, inputs[1], inputs[4], inputs[6]);
    if (const auto form = integer_conv_form(emitter, {inputs[0], inputs[2], inputs[3], inputs[5], bias, scale, inputs[7]},
                                            attributes.only(kQuantised)))
      return {*form};
  }
  const Ref sums = integer_conv(emitter, inputs[0], inputs[2], inputs[3], inputs[5], bias, attributes);
  const std::size_t rank = emitter.operand(sums).shape.size();
  const Ref scale =
      emitter.one("Div", {emitter.one("Mul", {per_channel(emitter, inputs[1], rank), per_channel(emitter, inputs[4], rank)}),
                          per_channel(emitter, inputs[6], rank)});
  return {requantized(emitter, sums, scale, per_channel(emitter, inputs[7], rank), attributes.get_string("activation", ""))};
}

// Inputs: x, w, offsets, bias, mask. The taps are sampled at positions moved by the offsets, then one matrix product per group.
std::vector<Ref> decompose_deform_conv(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Dims x = emitter.operand(inputs[0]).shape, w = emitter.operand(inputs[1]).shape;
  const std::int64_t groups = attributes.get_int("group", 1);
  if (x.size() != 4 || w.size() != 4 || groups < 1 || x[1] % groups != 0 || w[0] % groups != 0 || w[1] != x[1] / groups)
    throw Error(ErrorKind::shape,
                "DeformConv of " + to_string(x) + " by " + to_string(w) + " in " + std::to_string(groups) + " groups");
  if (const auto given = attributes.get_ints("kernel_shape"); given && *given != Dims{w[2], w[3]})
    throw Error(ErrorKind::shape, "DeformConv: kernel_shape is " + to_string(*given) + ", the weights are " + to_string(w));
  Attributes window = attributes.only(kDeformed);
  window.set("kernel_shape", Dims{w[2], w[3]});
  std::vector<Ref> operands{inputs[0], inputs[2]};
  if (inputs.size() > 4 && inputs[4] != Emitter::kAbsent) operands.push_back(inputs[4]);
  const Ref columns = emitter.one("DeformColumns", operands, window);  // [batch, channels * taps, height, width]
  const Dims sampled = emitter.operand(columns).shape;
  const std::int64_t taps = w[2] * w[3], places = sampled[2] * sampled[3];
  const Ref product = emitter.one("MatMul", {reshape(emitter, inputs[1], {groups, w[0] / groups, w[1] * taps}),
                                             reshape(emitter, columns, {x[0], groups, w[1] * taps, places})});
  Ref result = reshape(emitter, product, {x[0], w[0], sampled[2], sampled[3]});
  if (inputs.size() > 3 && inputs[3] != Emitter::kAbsent)
    result = emitter.one("Add", {result, per_channel(emitter, inputs[3], 4)});
  return {result};
}

std::vector<Ref> decompose_average_pool(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  return {emitter.one("PoolMean", {inputs[0]}, attributes)};
}

std::vector<Ref> decompose_max_pool(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  const Operand x = emitter.operand(inputs[0]);
  if (outputs == 1 && (x.dtype == DType::u8 || x.dtype == DType::i8) && x.shape.size() > 2) {
    Attributes window = attributes.only(kPooled);
    return {channels_second(emitter, emitter.one("IntegerPoolMax", {channels_last(emitter, inputs[0])}, std::move(window)))};
  }
  std::vector<Ref> results{emitter.one("PoolMax", {inputs[0]}, attributes)};
  if (outputs > 1) results.push_back(emitter.one("PoolArgMax", {inputs[0]}, attributes));
  return results;
}

// Emit (sum |x|^p)^(1/p) of each window; `sum` emits the sum.
template <class Sum>
Ref norm(Emitter& emitter, Ref x, std::int64_t p, Sum&& sum) {
  if (p == 1) return sum(emitter.one("Abs", {x}));
  if (p == 2) return emitter.one("Sqrt", {sum(emitter.one("Square", {x}))});
  const DType dtype = emitter.operand(x).dtype;
  const Ref powers = emitter.one("Power", {emitter.one("Abs", {x}), emitter.number(static_cast<double>(p), dtype)});
  return emitter.one("Power", {sum(powers), emitter.number(1.0 / static_cast<double>(p), dtype)});
}

std::vector<Ref> decompose_lp_pool(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  return {norm(emitter, inputs[0], attributes.get_int("p", 2),
               [&](Ref powers) { return emitter.one("PoolSum", {powers}, attributes); })};
}

namespace {

Attributes over_space(Emitter& emitter, Ref x) {
  const std::size_t rank = emitter.operand(x).shape.size();
  if (rank < 3)
    throw Error(ErrorKind::shape, "a global pooling of " + to_string(emitter.operand(x).shape) +
                                      "; batch, channels and at least one more dimension are needed");
  Dims axes(rank - 2);
  std::iota(axes.begin(), axes.end(), 2);
  return {{"axes", axes}, {"keepdims", std::int64_t{1}}};
}

}  // namespace

std::vector<Ref> decompose_global_average_pool(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  return {emitter.one("ReduceMean", {inputs[0]}, over_space(emitter, inputs[0]))};
}

std::vector<Ref> decompose_global_max_pool(Emitter& emitter, std::span<const Ref> inputs, const Attributes&, int) {
  return {emitter.one("ReduceMax", {inputs[0]}, over_space(emitter, inputs[0]))};
}

std::vector<Ref> decompose_global_lp_pool(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Attributes axes = over_space(emitter, inputs[0]);
  return {
      norm(emitter, inputs[0], attributes.get_int("p", 2), [&](Ref powers) { return emitter.one("ReduceSum", {powers}, axes); })};
}

// Inputs: x, the indices from MaxPool, the result's shape. Every element is written to its position in the pooled tensor; a
// larger result has the pooled tensor at its beginning.
std::vector<Ref> max_unpool_at_run_time(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand input = emitter.operand(inputs[0]);
  const Dims x = input.shape;
  const auto kernel = attributes.get_ints("kernel_shape");
  if (x.size() < 3 || !kernel || kernel->size() != x.size() - 2 || emitter.operand(inputs[1]).shape != x)
    throw Error(ErrorKind::shape,
                "MaxUnpool of " + to_string(x) + " with places of shape " + to_string(emitter.operand(inputs[1]).shape));
  const DType dtype = input.dtype;
  const std::size_t rank = x.size() - 2;
  const Dims strides = spatial_numbers("MaxUnpool", attributes, "strides", rank, 1, 1),
             pads = spatial_numbers("MaxUnpool", attributes, "pads", 2 * rank, 0, 0);
  Dims pooled = x;
  for (std::size_t i = 0; i < rank; ++i)
    if (x[i + 2] >= kMaxSpatial || (*kernel)[i] < 1 || (*kernel)[i] >= kMaxSpatial)
      throw Error(ErrorKind::shape, "MaxUnpool of " + to_string(x) + " by " + to_string(*kernel));
  for (std::size_t i = 0; i < rank; ++i) pooled[i + 2] = (x[i + 2] - 1) * strides[i] - pads[i] - pads[i + rank] + (*kernel)[i];
  Dims result = pooled;
  if (inputs.size() > 2 && inputs[2] != Emitter::kAbsent) {
    const Tensor given = emitter.value(inputs[2], "'output_shape'");
    const Operand operand{given.dtype(), given.shape(), &given, false};
    result = required_numbers(std::span(&operand, 1), 0, Attributes(), "output_shape");
    element_count(result);
    if (result.size() != x.size()) throw Error(ErrorKind::shape, "MaxUnpool to " + to_string(result));
  }
  const std::int64_t count = element_count(x), total = element_count(pooled);
  Tensor nothing = Tensor::empty(dtype, pooled);
  std::memset(nothing.raw(), 0, static_cast<std::size_t>(total) * item_size(dtype));
  IndexedMovement movement{{count}, {0}, {1}, {1}, 0, 0, 0, 0, {1}, {total}};
  Attributes scatter = movement.attributes();
  Ref value = emitter.one("IndexedScatter", {emitter.constant(std::move(nothing)), inputs[1], inputs[0]}, std::move(scatter));
  if (result == pooled) return {value};
  Dims more(2 * x.size(), 0);
  for (std::size_t i = 0; i < x.size(); ++i) more[i + x.size()] = result[i] - pooled[i];
  return {emitter.one("Pad", {value}, {{"pads", more}})};
}

}  // namespace walle
