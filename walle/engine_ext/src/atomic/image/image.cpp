#include "atomic/image/image.h"

#include <algorithm>
#include <cstring>

namespace walle {

ImageShape image_shape(std::string_view op, const Dims& shape) {
  if (shape.size() != 2 && shape.size() != 3)
    throw Error(ErrorKind::shape,
                std::string(op) + " takes an image [height, width] or [height, width, channels], not " + to_string(shape));
  constexpr std::int64_t kMax = std::int64_t{1} << 30;
  const std::int64_t channels = shape.size() == 3 ? shape[2] : 1;
  if (shape[0] < 1 || shape[1] < 1 || channels < 1)
    throw Error(ErrorKind::shape, std::string(op) + " of an image without pixels, shape " + to_string(shape));
  if (shape[0] > kMax || shape[1] > kMax || channels > 512)
    throw Error(ErrorKind::shape, std::string(op) + " of an image that is too large, shape " + to_string(shape) +
                                      "; height and width may be 2^30 at most, channels 512");
  return {shape[0], shape[1], channels};
}

Dims resized_shape(const Dims& like, std::int64_t height, std::int64_t width) {
  Dims shape = like;
  shape[0] = height;
  shape[1] = width;
  return shape;
}

std::size_t pixel_index(std::string_view op, DType dtype) {
  switch (dtype) {
    case DType::u8: return 0;
    case DType::u16: return 1;
    case DType::f32: return 2;
    default:
      throw Error(ErrorKind::dtype,
                  std::string(op) + " takes uint8, uint16 and float32 images, not " + std::string(dtype_name(dtype)));
  }
}

std::size_t signed_pixel_index(std::string_view op, DType dtype) {
  switch (dtype) {
    case DType::u8: return 0;
    case DType::u16: return 1;
    case DType::i16: return 2;
    case DType::f32: return 3;
    default:
      throw Error(ErrorKind::dtype,
                  std::string(op) + " takes uint8, uint16, int16 and float32 images, not " + std::string(dtype_name(dtype)));
  }
}

Border border_of(std::string_view op, const Attributes& attributes) {
  const std::string name = attributes.get_string("border", "reflect101");
  constexpr std::string_view names[] = {"constant", "replicate", "reflect", "wrap", "reflect101", "transparent"};
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names))
    throw Error(ErrorKind::unsupported, std::string(op) + " does not support border '" + name +
                                            "'; known are constant, replicate, reflect, wrap, reflect101 and transparent");
  return static_cast<Border>(found - std::begin(names));
}

std::int64_t border_source(Border border, std::int64_t index, std::int64_t size) noexcept {
  if (index >= 0 && index < size) return index;
  switch (border) {
    case Border::replicate: return index < 0 ? 0 : size - 1;
    case Border::wrap: return ((index % size) + size) % size;
    case Border::reflect:
    case Border::reflect101: {
      if (size == 1) return 0;
      const std::int64_t edge = border == Border::reflect ? 0 : 1, period = 2 * (size - edge);
      const std::int64_t rest = ((index % period) + period) % period;
      return rest < size ? rest : period - 1 + edge - rest;
    }
    default: return -1;
  }
}

void RowFrame::make(const std::byte* row, const std::byte* fill, std::byte* target) const noexcept {
  std::memcpy(target + static_cast<std::size_t>(left) * pixel, row, static_cast<std::size_t>(width) * pixel);
  const auto put = [&](std::int64_t x) {
    const std::int64_t source = border_source(border, x, width);
    std::memcpy(target + static_cast<std::size_t>(left + x) * pixel,
                source < 0 ? fill : row + static_cast<std::size_t>(source) * pixel, pixel);
  };
  for (std::int64_t x = -left; x < 0; ++x) put(x);
  for (std::int64_t x = width; x < width + right; ++x) put(x);
}

void RowFrame::make_constant(const std::byte* fill, std::byte* target) const noexcept {
  for (std::int64_t x = 0; x < left + width + right; ++x) std::memcpy(target + static_cast<std::size_t>(x) * pixel, fill, pixel);
}

std::int64_t anchor_of(std::string_view op, const Attributes& attributes, std::string_view name, std::int64_t size) {
  const std::int64_t given = attributes.get_int(name, -1);
  if (given < -1 || given >= size)
    throw Error(ErrorKind::model, std::string(op) + ": " + std::string(name) + " = " + std::to_string(given) +
                                      " is outside a window of " + std::to_string(size) + " pixels");
  return given < 0 ? size / 2 : given;
}

std::vector<double> numbers_of(std::string_view op, const Attributes& attributes, std::string_view name,
                               std::vector<double> fallback) {
  auto given = attributes.get_floats(name);
  if (!given) return fallback;
  if (given->size() != fallback.size())
    throw Error(ErrorKind::model, std::string(op) + ": attribute '" + std::string(name) + "' must have " +
                                      std::to_string(fallback.size()) + " numbers, not " + std::to_string(given->size()));
  return *std::move(given);
}

}  // namespace walle
