// Packed weights of integer products, in the order in which the kernels of bytes read them.
#include <algorithm>
#include <cstring>

#include "atomic/products/integer_products.h"

namespace walle {

namespace {

// Columns of one channel each are read in vectors: whole vectors of the widest instruction set.
constexpr std::int64_t kDepthwiseChannels = 16;

// A matrix product is a convolution of one line of pixels.
ConvShape shape_of(std::span<const Dims> shapes, const Attributes& attributes, bool linear) {
  const Dims &x = shapes[0], &w = shapes[1];
  if (!linear) {
    Dims planes{x.front(), x.back()};
    planes.insert(planes.end(), x.begin() + 1, x.end() - 1);
    return conv_shape(planes, w, DType::i32, attributes);
  }
  ConvShape shape;
  shape.dtype = DType::i32;
  shape.in_channels = w[0];
  shape.out_channels = w[1];
  shape.window.in[2] = shape.window.out[2] = element_count(Dims(x.begin(), x.end() - 1));
  return shape;
}

}  // namespace

IntegerShape::IntegerShape(std::span<const Dims> shapes, const Attributes& attributes, bool is_linear, const Bytes& kernels)
    : conv(shape_of(shapes, attributes, is_linear)),
      bytes(kernels),
      linear(is_linear),
      depthwise(conv.groups > 1 && conv.in_channels == 1 && conv.out_channels == 1) {
  if (depthwise) {  // one group of channels that are not summed over
    conv.in_channels = conv.out_channels = conv.groups;
    conv.groups = 1;
    unit = (conv.in_channels + kDepthwiseChannels - 1) / kDepthwiseChannels * kDepthwiseChannels / 4;
  } else {
    unit = (conv.in_channels + 3) / 4;
  }
  blocks = (conv.out_channels + bytes.pack - 1) / bytes.pack;
}

std::string IntegerShape::key() const {
  return std::string(bytes.name) + (linear ? " linear" : depthwise ? " depthwise" : " conv") + std::to_string(conv.groups);
}

// [group][pair of blocks][k][columns of the pair], 32 bits each: four bytes, or one number of depthwise weights.
Tensor IntegerShape::pack(const Tensor& weights) const {
  const std::int64_t taps = conv.window.taps(), width = bytes.pack, in = depthwise ? 1 : conv.in_channels;
  const auto* w = reinterpret_cast<const std::int8_t*>(weights.raw());
  Tensor packed = Tensor::empty(DType::f32, {columns() * (depth() + 1)});  // integers, stored as floats by their bits
  auto* elements = reinterpret_cast<std::uint32_t*>(packed.raw());
  std::fill_n(elements, packed.size(), 0u);
  std::uint32_t* sums = elements + columns() * depth();
  const std::int64_t k_step = linear ? conv.out_channels : taps, j_step = linear ? 1 : in * taps;
  for (std::int64_t g = 0; g < conv.groups; ++g)
    for (std::int64_t j = 0; j < conv.out_channels; ++j) {
      const std::int64_t pair = j / (2 * width) * 2, in_pair = std::min<std::int64_t>(2, blocks - pair) * width;
      std::uint32_t* to = elements + (g * blocks + pair) * width * depth() + j - pair * width;
      std::uint32_t sum = 0;
      for (std::int64_t tap = 0; tap < taps; ++tap)
        for (std::int64_t c = 0; c < in; ++c) {
          const std::int8_t value = w[(g * conv.out_channels + j) * j_step + c * k_step + tap];
          sum += static_cast<std::uint32_t>(value);
          if (depthwise)
            to[tap * in_pair] = static_cast<std::uint32_t>(value);
          else
            to[(tap * unit + c / 4) * in_pair] |= std::uint32_t{static_cast<std::uint8_t>(value)} << (c % 4 * 8);
        }
      sums[g * blocks * width + j] = sum;
    }
  return packed;
}

}  // namespace walle
