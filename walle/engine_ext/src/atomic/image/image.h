// Shapes, borders and attributes shared by the image operators. An image is [height, width] or [height, width, channels] with
// interleaved pixels.
#pragma once
#include <string>

#include "atomic/atomic.h"
#include "kernels/image.h"

namespace walle {

struct ImageShape {
  std::int64_t height = 0, width = 0, channels = 1;

  std::int64_t row() const noexcept { return width * channels; }
  std::int64_t pixels() const noexcept { return height * width; }
};

// Throws Error (shape) where `shape` is not that of an image.
ImageShape image_shape(std::string_view op, const Dims& shape);
// Returns the shape of an image of the given size with the channels of `like`, including whether it has a third dimension.
Dims resized_shape(const Dims& like, std::int64_t height, std::int64_t width);

// Returns the index of a dtype among the pixel types of kernels/image.h (uint8, uint16, float32). Throws Error (dtype) for
// others.
std::size_t pixel_index(std::string_view op, DType dtype);
// The same for kernels that also have int16: uint8, uint16, int16, float32.
std::size_t signed_pixel_index(std::string_view op, DType dtype);

// Extrapolation of an image beyond its edges, by OpenCV's names.
enum class Border : std::uint8_t { constant, replicate, reflect, wrap, reflect101, transparent };
// Returns the attribute "border". Throws Error (unsupported) for an unknown name.
Border border_of(std::string_view op, const Attributes& attributes);
// Returns the index of the element, out of `size`, that a border puts at `index`; -1 for the constant border.
std::int64_t border_source(Border border, std::int64_t index, std::int64_t size) noexcept;
// Returns the slot of a row, which may be above the image (negative), in a ring buffer of `size` rows.
constexpr std::int64_t ring_slot(std::int64_t row, std::int64_t size) noexcept {
  return row >= 0 ? row % size : size - 1 + (row + 1) % size;
}

// A row padded with `left` pixels before it and `right` after it, of `pixel` bytes each; `fill` is a pixel of the constant
// border.
struct RowFrame {
  Border border = Border::reflect101;
  std::int64_t width = 0, left = 0, right = 0;
  std::size_t pixel = 1;

  std::size_t bytes() const noexcept { return static_cast<std::size_t>(left + width + right) * pixel; }
  void make(const std::byte* row, const std::byte* fill, std::byte* target) const noexcept;
  // Fills a whole padded row with the constant border.
  void make_constant(const std::byte* fill, std::byte* target) const noexcept;
};

// Returns the anchor of a window of `size` pixels: the attribute, or the middle where it is -1. Throws Error (model) for an
// anchor outside the window.
std::int64_t anchor_of(std::string_view op, const Attributes& attributes, std::string_view name, std::int64_t size);
// Returns a number of bytes rounded up to whole cache lines.
constexpr std::size_t cache_aligned(std::size_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

// Returns the numbers of an attribute, or `fallback` if it is absent. Throws Error (model) for another count than `fallback` has.
std::vector<double> numbers_of(std::string_view op, const Attributes& attributes, std::string_view name,
                               std::vector<double> fallback);

}  // namespace walle
