// Image files as arrays of bytes and back, by the system's libjpeg-turbo and libpng where the build found them
// (WALLE_WITH_JPEG, WALLE_WITH_PNG). Channels are in OpenCV's order: grey, BGR, BGRA.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace walle {

// Of "jpeg" and "png" those that this build has.
std::span<const std::string_view> image_formats() noexcept;

// uint8 or (PNG) uint16 [height, width] or [height, width, channels]. Throws Error (model) for bytes that are no such image,
// Error (unsupported) for a format that the build does not have. `grey`: JPEG's luma alone.
Tensor decode_image(std::string_view format, std::span<const std::byte> data, bool grey);

// `level` is JPEG's quality, 0 to 100, or PNG's compression, 0 to 9. Throws Error (shape, dtype, unsupported).
std::vector<std::byte> encode_image(std::string_view format, const Tensor& image, int level);

Tensor decode_jpeg(std::span<const std::byte> data, bool grey);
Tensor decode_png(std::span<const std::byte> data);
std::vector<std::byte> encode_jpeg(const Tensor& image, int level);
std::vector<std::byte> encode_png(const Tensor& image, int level);

// Images of more pixels are refused before memory is taken for them.
inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

}  // namespace walle
