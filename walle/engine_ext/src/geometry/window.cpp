#include "geometry/window.h"

#include <algorithm>

namespace walle {

Dims spatial_numbers(const char* op, const Attributes& attributes, std::string_view name, std::size_t count,
                     std::int64_t fallback, std::int64_t least) {
  const Dims numbers = attributes.get_ints(name).value_or(Dims(count, fallback));
  if (numbers.size() != count)
    throw Error(ErrorKind::shape, std::string(op) + ": '" + std::string(name) + "' is " + to_string(numbers) + ", not " +
                                      std::to_string(count) + " numbers");
  for (const std::int64_t number : numbers)
    if (number < least || number >= (std::int64_t{1} << 31))
      throw Error(ErrorKind::shape, std::string(op) + ": '" + std::string(name) + "' is " + to_string(numbers));
  return numbers;
}

bool Window::padded() const noexcept {
  for (std::size_t i = 0; i < kAxes; ++i)
    if (begin[i] > 0 || source(i, out[i] - 1, kernel[i] - 1) >= in[i]) return true;
  return false;
}

namespace {
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }
}  // namespace

std::pair<std::int64_t, std::int64_t> Window::taps_in(std::size_t axis, std::int64_t o, std::int64_t low,
                                                      std::int64_t high) const noexcept {
  const std::int64_t at = source(axis, o, 0);
  const std::int64_t first = std::clamp<std::int64_t>(ceil_div(low - at, dilation[axis]), 0, kernel[axis]);
  return {first, std::clamp<std::int64_t>(ceil_div(high - at, dilation[axis]), first, kernel[axis])};
}

std::pair<std::int64_t, std::int64_t> Window::valid(std::size_t axis, std::int64_t k) const noexcept {
  const std::int64_t shift = begin[axis] - k * dilation[axis];  // o * stride in [shift, shift + in)
  const std::int64_t first = std::clamp<std::int64_t>(ceil_div(shift, stride[axis]), 0, out[axis]);
  return {first, std::clamp<std::int64_t>(ceil_div(shift + in[axis], stride[axis]), first, out[axis])};
}

Window Window::make(const char* op, std::span<const std::int64_t> in, std::span<const std::int64_t> kernel,
                    const Attributes& attributes) {
  const std::size_t rank = in.size();
  const std::string name = op;
  if (rank < 1 || rank > kAxes)
    throw Error(ErrorKind::unsupported, name + " over " + std::to_string(rank) + " spatial dimensions; 1 to 3 are known");
  if (kernel.size() != rank)
    throw Error(ErrorKind::shape,
                name + ": the kernel has " + std::to_string(kernel.size()) + " dimensions, the input " + std::to_string(rank));
  element_count(Dims(kernel.begin(), kernel.end()));
  const Dims strides = spatial_numbers(op, attributes, "strides", rank, 1, 1);
  const Dims dilations = spatial_numbers(op, attributes, "dilations", rank, 1, 1);
  const std::string auto_pad = attributes.get_string("auto_pad", "NOTSET");
  const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  if (!same && auto_pad != "NOTSET" && auto_pad != "VALID")
    throw Error(ErrorKind::unsupported, name + ": auto_pad '" + auto_pad + "'");
  const Dims pads = auto_pad == "NOTSET" ? spatial_numbers(op, attributes, "pads", 2 * rank, 0, 0) : Dims(2 * rank, 0);
  const bool ceil = attributes.get_int("ceil_mode", 0) != 0;
  Window window;
  window.rank = rank;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::size_t axis = kAxes - rank + i;
    if (in[i] < 0 || in[i] >= (std::int64_t{1} << 40) || kernel[i] < 1 || kernel[i] >= (std::int64_t{1} << 31))
      throw Error(ErrorKind::shape, name + ": a kernel of " + std::to_string(kernel[i]) + " over " + std::to_string(in[i]));
    const std::int64_t stride = strides[i];
    std::int64_t reach;  // extent of the dilated kernel
    if (__builtin_mul_overflow(kernel[i] - 1, dilations[i], &reach) || reach >= (std::int64_t{1} << 50))
      throw Error(ErrorKind::shape, name + ": the kernel reaches too far");
    ++reach;
    std::int64_t begin = pads[i], end = pads[i + rank], out;
    if (same) {
      out = (in[i] + stride - 1) / stride;
      const std::int64_t total = std::max<std::int64_t>((out - 1) * stride + reach - in[i], 0);
      begin = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      end = total - begin;
    } else {
      // By ONNX's formula, whose quotient is rounded down (or up), not towards 0 as ONNX Runtime does below 0.
      const std::int64_t room = in[i] + begin + end - reach;
      out = (ceil ? ceil_div(room, stride) : -ceil_div(-room, stride)) + 1;
      if (ceil && out > 0 && (out - 1) * stride >= in[i] + begin) --out;  // the last window begins inside
      if (out < 0)
        throw Error(ErrorKind::shape, name + ": a kernel that reaches over " + std::to_string(reach) + " of " +
                                          std::to_string(in[i] + begin + end) + " padded elements, with a stride of " +
                                          std::to_string(stride));
    }
    window.in[axis] = in[i];
    window.out[axis] = out;
    window.kernel[axis] = kernel[i];
    window.stride[axis] = stride;
    window.dilation[axis] = dilations[i];
    window.begin[axis] = begin;
    window.end[axis] = end;
  }
  element_count(window.out_dims());
  return window;
}

}  // namespace walle
