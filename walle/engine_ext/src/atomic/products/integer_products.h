// IntegerConv and IntegerLinear: quantised convolutions and matrix products by constant weights, by the kernels of bytes. Sums
// are computed in int32 and wrap around; where a scale is given, a sum times it, rounded to the nearest (ties to even),
// + the result's zero point, saturated, is a byte again.
//
// Operands: x, uint8 or int8, its channels last ([batch, in..., channels]; [..., k]); constant int8 weights without their zero
// point ([out channels, in channels, kernel...]; [k, columns]); x's zero point, one number, which is also the border; an int32
// bias for each column; a float32 scale, one or for each column; the result's zero point, one number. The result's channels are
// last too.
// Attributes: those of Conv's window, and `activation`, which may be Relu where there is a scale.
#pragma once
#include "atomic/products/convolution.h"
#include "kernels/bytes.h"

namespace walle {

class IntegerShape {
 public:
  // Of operands that shape inference accepted.
  IntegerShape(std::span<const Dims> shapes, const Attributes& attributes, bool linear, const Bytes& kernels);

  // Return the weights in quads, followed by the sum of each column's weights.
  Tensor pack(const Tensor& weights) const;
  // Return the properties, besides their shape, on which the order of packed weights depends.
  std::string key() const;

  ConvShape conv;
  const Bytes& bytes;
  bool linear, depthwise;
  std::int64_t unit = 0;    // quads of a group's channels
  std::int64_t blocks = 0;  // blocks of columns of a group
  std::int64_t depth() const noexcept { return conv.window.taps() * (depthwise ? 1 : unit); }
  std::int64_t columns() const noexcept { return conv.groups * blocks * bytes.pack; }
};

// `packed` is the result of pack().
std::unique_ptr<HostStep> make_integer_product(const StepRequest& request, bool linear, Tensor packed);

}  // namespace walle
