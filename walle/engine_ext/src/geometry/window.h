// Sliding windows: one parser of kernel_shape, strides, dilations, pads, auto_pad and ceil_mode, shared by convolution,
// pooling and Col2Im.
#pragma once
#include <array>

#include "geometry/operand.h"

namespace walle {

// Three spatial axes: depth, height and width; for a tensor with fewer, the first ones are 1.
struct Window {
  static constexpr std::size_t kAxes = 3;
  using Axes = std::array<std::int64_t, kAxes>;

  std::size_t rank = 0;  // number of axes the tensor really has, the last ones
  Axes in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, dilation{1, 1, 1}, begin{0, 0, 0}, end{0, 0, 0};  // pads

  std::int64_t taps() const noexcept { return kernel[0] * kernel[1] * kernel[2]; }
  std::int64_t in_count() const noexcept { return in[0] * in[1] * in[2]; }
  std::int64_t out_count() const noexcept { return out[0] * out[1] * out[2]; }
  bool padded() const noexcept;
  // Return the range of outputs along an axis whose tap `k` is inside the input: [first, last).
  std::pair<std::int64_t, std::int64_t> valid(std::size_t axis, std::int64_t k) const noexcept;
  // Return the range of taps of output `o` along an axis that lie in [low, high) of the input: [first, last).
  std::pair<std::int64_t, std::int64_t> taps_in(std::size_t axis, std::int64_t o, std::int64_t low,
                                                std::int64_t high) const noexcept;
  // Return the range of taps that lie inside the input.
  std::pair<std::int64_t, std::int64_t> taps_of(std::size_t axis, std::int64_t o) const noexcept {
    return taps_in(axis, o, 0, in[axis]);
  }
  // Return the input that tap k of output o reads along an axis; may lie outside.
  std::int64_t source(std::size_t axis, std::int64_t o, std::int64_t k) const noexcept {
    return o * stride[axis] - begin[axis] + k * dilation[axis];
  }

  bool operator==(const Window&) const = default;
  Dims out_dims() const { return Dims(out.end() - static_cast<std::ptrdiff_t>(rank), out.end()); }

  // Make the window for spatial dimensions `in` and `kernel` from the attributes strides, dilations, pads, auto_pad and
  // ceil_mode. Throws Error (shape, model, unsupported) naming `op`.
  static Window make(const char* op, std::span<const std::int64_t> in, std::span<const std::int64_t> kernel,
                     const Attributes& attributes);
};

// Return one number per spatial axis from an attribute, `fallback` for each if it is absent; all in [least, 2^31).
Dims spatial_numbers(const char* op, const Attributes& attributes, std::string_view name, std::size_t count,
                     std::int64_t fallback, std::int64_t least);

}  // namespace walle
