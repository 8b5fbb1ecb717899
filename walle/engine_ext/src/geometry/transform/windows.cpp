// SlidingWindow and Im2Col: windows that may overlap, each copied separately.
#include <algorithm>

#include "geometry/transform/frame.h"
#include "geometry/window.h"

namespace walle {

// Every window of `window` elements along `axes` (default all), `steps` apart: an axis of d elements becomes one of (d - w) /
// step + 1 positions, and the windows' own axes come last.
std::vector<Movement> make_sliding_window(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Dims window = required_numbers({}, 0, attributes, "window");
  Dims every(from.size());
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::int64_t>(i);
  const Dims axes = attributes.get_ints("axes").value_or(every);
  const Dims steps = attributes.get_ints("steps").value_or(Dims(window.size(), 1));
  if (window.size() != axes.size() || steps.size() != axes.size())
    throw Error(ErrorKind::shape, "SlidingWindow of " + to_string(window) + " along axes " + to_string(axes) + " in steps of " +
                                      to_string(steps) + "; give one of each for every axis");
  Movement result{operands[0].dtype, from, {}, {}};
  const Dims strides = contiguous_strides(from);
  Dims src = strides;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = normal_axis(axes[i], from.size());
    std::int64_t& places = result.shape[axis];  // an axis named twice slides over the windows of the first time
    if (window[i] < 1 || steps[i] < 1 || window[i] > places)
      throw Error(ErrorKind::shape, "SlidingWindow of " + std::to_string(window[i]) + " in steps of " + std::to_string(steps[i]) +
                                        " over an axis of " + std::to_string(places));
    places = (places - window[i]) / steps[i] + 1;
    result.shape.push_back(window[i]);
    src.push_back(src[axis]);
    if (__builtin_mul_overflow(src[axis], std::min(steps[i], from[axis]), &src[axis]))
      throw Error(ErrorKind::shape, "SlidingWindow leaves 63 bits");
  }
  if (element_count(result.shape) > 0)
    add_regions(result.regions, 0, result.shape, src, 0, contiguous_strides(result.shape), 0, from, result.shape);
  return {std::move(result)};
}

// (n, c, spatial...) → (n, c * taps, positions): every window of a convolution (kernel_shape, strides, dilations, pads, auto_pad,
// ceil_mode as in Conv) as a column; zeros where it extends over the border. One region for each tap, with padding a few more.
std::vector<Movement> make_im2col(std::span<const Operand> operands, const Attributes& attributes, int) {
  constexpr std::int64_t kMaxTaps = 1 << 12;
  const Dims& from = operands[0].shape;
  if (from.size() < 3) throw Error(ErrorKind::shape, "Im2Col of " + to_string(from) + "; three dimensions or more are needed");
  const Dims kernel = required_numbers({}, 0, attributes, "kernel_shape");
  element_count(kernel);
  const Window window = Window::make("Im2Col", std::span(from).subspan(2), kernel, attributes);
  const std::int64_t n = from[0], c = from[1], taps = window.taps(), places = window.out_count();
  std::int64_t rows;
  if (taps > kMaxTaps || __builtin_mul_overflow(c, taps, &rows))
    throw Error(ErrorKind::unsupported, "Im2Col of " + std::to_string(c) + " channels and " + std::to_string(taps) + " taps");
  Movement result{operands[0].dtype, {n, rows, places}, {}, zero_fill(operands[0].dtype)};
  if (element_count(result.shape) == 0) return {std::move(result)};
  const auto& out = window.out;
  const std::int64_t depth = window.in[1] * window.in[2], width = window.in[2];
  const Dims in_stride{depth, width, 1};
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    const std::array<std::int64_t, 3> k{tap / window.kernel[2] / window.kernel[1], tap / window.kernel[2] % window.kernel[1],
                                        tap % window.kernel[2]};
    Frame frame{{n, c, out[0], out[1], out[2]},
                {0, 0, 0, 0, 0},
                {n, c, 0, 0, 0},
                {c * window.in_count(), window.in_count(), 0, 0, 0},
                {c * taps * places, taps * places, out[1] * out[2], out[2], 1},
                0,
                tap * places};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const auto [first, last] = window.valid(axis, k[axis]);
      frame.low[axis + 2] = first;
      frame.high[axis + 2] = last;
      frame.src_stride[axis + 2] = window.stride[axis] * in_stride[axis];
      if (first < last) frame.src_offset += window.source(axis, first, k[axis]) * in_stride[axis];
    }
    frame.add_to(result.regions, 0, Movement::kFill, from, result.shape);
  }
  return {std::move(result)};
}

}  // namespace walle
