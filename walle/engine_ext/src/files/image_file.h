// Decoding and encoding of image files, with the system's libjpeg-turbo and libpng where the build found them (WALLE_WITH_JPEG,
// WALLE_WITH_PNG). Channels are in OpenCV's order: grey, BGR, BGRA.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace walle {

// Returns those of "jpeg" and "png" that this build supports.
std::span<const std::string_view> image_formats() noexcept;

// Larger images are refused before memory is allocated for them.
inline constexpr std::int64_t kMaxPixels = std::int64_t{1} << 28;

// Returns uint8 or (PNG) uint16 [height, width] or [height, width, channels]. `grey` decodes only the luma of a JPEG. Throws
// Error (model) for data that cannot be decoded, Error (unsupported) for a format that the build does not support.
Tensor decode_image(std::string_view format, std::span<const std::byte> data, bool grey, std::int64_t max_pixels = kMaxPixels);

// Encodes an image. `level` is JPEG's quality, 0 to 100, or PNG's compression, 0 to 9. Throws Error (shape, dtype, unsupported).
std::vector<std::byte> encode_image(std::string_view format, const Tensor& image, int level);

Tensor decode_jpeg(std::span<const std::byte> data, bool grey, std::int64_t max_pixels);
Tensor decode_png(std::span<const std::byte> data, std::int64_t max_pixels);
std::vector<std::byte> encode_jpeg(const Tensor& image, int level);
std::vector<std::byte> encode_png(const Tensor& image, int level);

}  // namespace walle
