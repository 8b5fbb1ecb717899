// Gradients of Conv, Linear and Col2Im. Those of a convolution are two convolutions: by its input one of the result's gradient
// with mirrored weights, by its weights a product of the gradient with the columns of the input.
#include <algorithm>

#include "geometry/window.h"
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

Dims spatial(const Window::Axes& axes, std::size_t rank) {
  return Dims(axes.end() - static_cast<std::ptrdiff_t>(rank), axes.end());
}

// A convolution x [n, groups * in, ...] by w [groups * out, in, ...], and the gradient g of its result before the epilogue.
struct Convolution {
  Emitter& emitter;
  Dims x_shape, w_shape, g_shape;
  std::int64_t groups, in, out;
  Window window;
  Ref x, w, g;

  Convolution(Emitter& to, const Attributes& attributes, Ref input, Ref weights, Ref gradient)
      : emitter(to),
        x_shape(emitter.operand(input).shape),
        w_shape(emitter.operand(weights).shape),
        g_shape(emitter.operand(gradient).shape),
        groups(attributes.get_int("group", 1)),
        in(w_shape[1]),
        out(w_shape[0] / groups),
        window(Window::make("Conv", std::span(x_shape).subspan(2), std::span(w_shape).subspan(2), attributes)),
        x(input),
        w(weights),
        g(gradient) {}

  std::size_t rank() const noexcept { return window.rank; }
  bool is_empty() const { return element_count(x_shape) == 0 || element_count(w_shape) == 0 || element_count(g_shape) == 0; }
  DType dtype() const { return emitter.operand(g).dtype; }
  // Return x_shape, w_shape or g_shape, with a count of channels for each group.
  Dims grouped(const Dims& shape, std::size_t axis) const {
    Dims split = shape;
    split[axis] /= groups;
    split.insert(split.begin() + static_cast<std::ptrdiff_t>(axis), groups);
    return split;
  }
};

// Return w with its input and output channels exchanged in every group, and each axis of the kernel mirrored.
Ref mirrored_weights(const Convolution& conv) {
  Dims order{0, 2, 1}, shape{conv.groups * conv.in, conv.out}, axes;
  for (std::size_t i = 0; i < conv.rank(); ++i) {
    order.push_back(static_cast<std::int64_t>(3 + i));
    shape.push_back(conv.w_shape[2 + i]);
    axes.push_back(static_cast<std::int64_t>(2 + i));
  }
  const Ref swapped = transposed(conv.emitter, reshape(conv.emitter, conv.w, conv.grouped(conv.w_shape, 0)), order);
  return conv.emitter.one("Flip", {reshape(conv.emitter, swapped, shape)}, {{"axes", axes}});
}

// Return `value` [n, channels, places...] with zeros between its elements, at the places of an image that the first tap of each
// window reads: an image of the convolution's input for a kernel of one tap, else one of `size` elements along each axis, which
// begins `before` elements earlier.
Ref spaced(const Convolution& conv, Ref value, const Dims& before, const Dims& size) {
  const Window& win = conv.window;
  const std::size_t rank = conv.rank(), first = Window::kAxes - rank;
  const Dims shape = conv.emitter.operand(value).shape;
  Dims split{shape[0], shape[1]}, joined = split, behind(4 + 4 * rank, 0), pads(4 + 2 * rank, 0);
  bool widens = false;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t out = shape[2 + i], stride = win.stride[first + i];
    split.insert(split.end(), {out, 1});
    joined.push_back(out * stride);
    behind[2 + 2 * rank + 2 + 2 * i + 1] = stride - 1;
    widens = widens || stride > 1;
    pads[2 + i] = before[i];
    pads[4 + rank + i] = size[i] - before[i] - out * stride;
  }
  if (widens)
    value = reshape(conv.emitter, conv.emitter.one("Pad", {reshape(conv.emitter, value, split)}, {{"pads", behind}}), joined);
  if (std::ranges::all_of(pads, [](std::int64_t count) { return count == 0; })) return value;
  return conv.emitter.one("Pad", {value}, {{"pads", pads}});
}

constexpr std::string_view kConvolution[] = {"kernel_shape", "strides", "dilations", "pads", "auto_pad", "group"};

// Return the attributes of a convolution, with the shape of its kernel.
Attributes with_kernel(const Attributes& given, const Dims& weights) {
  Attributes attributes = given.only(kConvolution);
  if (!attributes.has("kernel_shape")) attributes.set("kernel_shape", Dims(weights.begin() + 2, weights.end()));
  return attributes;
}

// Steps of 1: a convolution with mirrored weights. The same of a kernel of one tap, with zeros between its results; and of one
// input channel a group, with zeros between the gradient's elements. Others, and those with more weights than elements to
// mirror them for: a product of the weights as they lie.
Ref by_input(const Convolution& conv, const Attributes& attributes) {
  const Window& win = conv.window;
  const std::size_t rank = conv.rank(), first = Window::kAxes - rank;
  if (conv.is_empty()) return zeros(conv.emitter, conv.dtype(), conv.x_shape);
  Dims begin(rank), mirrored(2 * rank), before(rank), size(rank), pads(2 * rank), more(rank);
  bool by_ones = true, fits = true;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::size_t axis = first + i;
    const std::int64_t reach = (win.kernel[axis] - 1) * win.dilation[axis];
    by_ones = by_ones && win.stride[axis] == 1;
    mirrored[i] = reach - win.begin[axis];
    mirrored[i + rank] = win.in[axis] + win.begin[axis] - win.out[axis];
    fits = fits && mirrored[i] >= 0 && mirrored[i + rank] >= 0;
    begin[i] = -win.begin[axis];
    before[i] = mirrored[i];
    size[i] = win.in[axis] + reach;
    // What the windows leave over at the end is padding of the result.
    const std::int64_t end = (win.out[axis] - 1) * win.stride[axis] + reach + 1 - win.begin[axis] - win.in[axis];
    pads[i] = win.begin[axis];
    pads[i + rank] = std::max<std::int64_t>(end, 0);
    more[i] = std::max<std::int64_t>(-end, 0);
  }
  const auto convolved = [&](Ref value, const Dims& padding) {
    return conv.emitter.one("Conv", {value, mirrored_weights(conv)},
                            {{"group", conv.groups}, {"dilations", spatial(win.dilation, rank)}, {"pads", padding}});
  };
  const Dims none(2 * rank, 0);
  // Channel by channel, with the weights as they lie.
  const bool is_depthwise = conv.in == 1 && conv.out == 1 && rank <= 2 && conv.dtype() == DType::f32;
  const bool many_weights = 2 * element_count(conv.w_shape) >= element_count(conv.x_shape);
  if (is_depthwise ||
      (conv.in > 1 && item_size(conv.dtype()) >= sizeof(float) && (many_weights || (!by_ones && win.taps() > 1)))) {
    Attributes window = with_kernel(attributes, conv.w_shape);
    window.set("shape", conv.x_shape);
    return conv.emitter.one("ConvInputGradient", {conv.g, conv.w}, std::move(window));
  }
  if (by_ones && fits) return convolved(conv.g, mirrored);
  if (win.taps() == 1) return spaced(conv, convolved(conv.g, none), begin, Dims(conv.x_shape.begin() + 2, conv.x_shape.end()));
  if (conv.in == 1) return convolved(spaced(conv, conv.g, before, size), none);
  return conv.emitter.one("ConvTranspose", {conv.g, conv.w},
                          {{"group", conv.groups},
                           {"strides", spatial(win.stride, rank)},
                           {"dilations", spatial(win.dilation, rank)},
                           {"pads", pads},
                           {"output_padding", more}});
}

Ref by_weights(const Convolution& conv, const Attributes& attributes) {
  if (conv.is_empty()) return zeros(conv.emitter, conv.dtype(), conv.w_shape);
  return conv.emitter.one("ConvWeightGradient", {conv.x, conv.g}, with_kernel(attributes, conv.w_shape));
}

// Return the gradient of a product's sums: of its result before `activation`, which is computed again without it.
Ref before_activation(const GradientCall& call, std::string_view op) {
  const std::string name = call.attributes.get_string("activation", "");
  if (name.empty()) return call.gradient;
  Attributes plain;
  for (const auto& [key, value] : call.attributes.items())
    if (key != "activation") plain.set(key, value);
  const Ref sums[] = {call.emitter.one(op, std::vector<Ref>(call.inputs.begin(), call.inputs.end()), std::move(plain))};
  const GradientRule* rule = find_gradient(name);
  if (rule == nullptr || rule->make == nullptr) refuse("the activation " + name + " of " + std::string(op));
  const Attributes none;
  return rule->make({call.emitter, sums, call.result, call.gradient, none, {}, {true}})[0];
}

// The sums of a gradient [n, channels, ...] by channel.
Ref by_bias(Emitter& emitter, Ref gradient, std::size_t channel_axis) {
  Dims axes;
  const std::size_t rank = emitter.operand(gradient).shape.size();
  for (std::size_t i = 0; i < rank; ++i)
    if (i != channel_axis) axes.push_back(static_cast<std::int64_t>(i));
  if (axes.empty()) return gradient;
  return emitter.one("ReduceSum", {gradient}, {{"axes", axes}, {"keepdims", std::int64_t{0}}});
}

}  // namespace

std::vector<Ref> of_conv(const GradientCall& call) {
  const Convolution conv(call.emitter, call.attributes, call.inputs[0], call.inputs[1], before_activation(call, "Conv"));
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) gradients[0] = by_input(conv, call.attributes);
  if (needs(call, 1)) gradients[1] = by_weights(conv, call.attributes);
  if (needs(call, 2)) gradients[2] = by_bias(call.emitter, conv.g, 1);
  if (needs(call, 3)) gradients[3] = conv.g;
  return gradients;
}

// Linear in x and in the gradient of the convolution: with h, the gradient of the result, as weights, they have those of the
// convolution.
std::vector<Ref> of_conv_weight_gradient(const GradientCall& call) {
  const Convolution conv(call.emitter, call.attributes, call.inputs[0], call.gradient, call.inputs[1]);
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0)) gradients[0] = by_input(conv, call.attributes);
  if (needs(call, 1))
    gradients[1] = call.emitter.one("Conv", {call.inputs[0], call.gradient}, with_kernel(call.attributes, conv.w_shape));
  return gradients;
}

// Linear in the gradient of the convolution and in the weights: with h, the gradient of the result, as the convolution's input.
std::vector<Ref> of_conv_input_gradient(const GradientCall& call) {
  const Convolution conv(call.emitter, call.attributes, call.gradient, call.inputs[1], call.inputs[0]);
  std::vector<Ref> gradients = no_gradients(call);
  if (needs(call, 0))
    gradients[0] = call.emitter.one("Conv", {call.gradient, call.inputs[1]}, with_kernel(call.attributes, conv.w_shape));
  if (needs(call, 1)) gradients[1] = by_weights(conv, call.attributes);
  return gradients;
}

std::vector<Ref> of_linear(const GradientCall& call) {
  const Ref g = before_activation(call, "Linear");
  const std::vector<bool> needed(call.needed.begin(), call.needed.begin() + 2);
  const Attributes none;
  std::vector<Ref> gradients = no_gradients(call);
  const auto product = of_matmul({call.emitter, call.inputs.first(2), kAbsent, g, none, {}, needed});
  gradients[0] = product[0];
  gradients[1] = product[1];
  if (needs(call, 2)) gradients[2] = by_bias(call.emitter, g, call.emitter.operand(g).shape.size() - 1);
  if (needs(call, 3)) gradients[3] = g;
  return gradients;
}

// Columns are added up to an image: each has the gradient of the elements that it was added to.
std::vector<Ref> of_col2im(const GradientCall& call) {
  constexpr std::string_view names[] = {"strides", "dilations", "pads"};
  const Tensor block = call.emitter.value(call.inputs[2], "'block_shape'");
  const Operand operands[] = {{block.dtype(), block.shape(), &block, false}};
  Attributes window = call.attributes.only(names);
  window.set("kernel_shape", required_numbers(operands, 0, Attributes(), "block_shape"));
  std::vector<Ref> gradients = no_gradients(call);
  gradients[0] = call.emitter.one("Im2Col", {call.gradient}, std::move(window));
  return gradients;
}

}  // namespace walle::gradient
