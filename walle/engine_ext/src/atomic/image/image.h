// What the operators of images share: an image is [height, width] or [height, width, channels], its pixels interleaved.
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

// Throws Error (shape) where `shape` is no image's.
ImageShape image_shape(std::string_view op, const Dims& shape);
// The shape of an image of this size with as many channels as `like`, or with `channels`; one channel needs no third dimension
// where `like` had none.
Dims resized_shape(const Dims& like, std::int64_t height, std::int64_t width);

// The place of a dtype among the pixels of kernels/image.h. Throws Error (dtype) for others.
std::size_t pixel_index(std::string_view op, DType dtype);

// How an image goes on outside of it, by OpenCV's names.
enum class Border : std::uint8_t { constant, replicate, reflect, wrap, reflect101, transparent };
// The attribute "border". Throws Error (unsupported).
Border border_of(std::string_view op, const Attributes& attributes);
// Which of `size` elements stands at `at`; -1: none (constant).
std::int64_t border_source(Border border, std::int64_t at, std::int64_t size) noexcept;
// Where row `at`, perhaps above the image, is kept in a ring of `size` rows.
constexpr std::int64_t ring_slot(std::int64_t at, std::int64_t size) noexcept {
  return at >= 0 ? at % size : size - 1 + (at + 1) % size;
}

// A row with `left` pixels before it and `right` after it, of `pixel` bytes each; `fill` is a pixel of the constant border.
struct RowFrame {
  Border border = Border::reflect101;
  std::int64_t width = 0, left = 0, right = 0;
  std::size_t pixel = 1;

  std::size_t bytes() const noexcept { return static_cast<std::size_t>(left + width + right) * pixel; }
  void make(const std::byte* row, const std::byte* fill, std::byte* to) const noexcept;
  // A row of the constant border alone.
  void make_constant(const std::byte* fill, std::byte* to) const noexcept;
};

// Where a window of `size` pixels stands about its pixel: the attribute, or the middle where it is -1. Throws Error (model).
std::int64_t anchor_of(std::string_view op, const Attributes& attributes, std::string_view name, std::int64_t size);
// Bytes rounded up to whole cache lines.
constexpr std::size_t lines(std::size_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

// The numbers of an attribute, `fallback` where it is left out. Throws Error (model) for another count.
std::vector<double> numbers_of(std::string_view op, const Attributes& attributes, std::string_view name,
                               std::vector<double> fallback);

}  // namespace walle
