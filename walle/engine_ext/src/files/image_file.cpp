#include "files/image_file.h"

#include <array>
#include <string>

namespace walle {

std::span<const std::string_view> image_formats() noexcept {
  static constexpr std::array formats{
#ifdef WALLE_WITH_JPEG
      std::string_view("jpeg"),
#endif
#ifdef WALLE_WITH_PNG
      std::string_view("png"),
#endif
      std::string_view()};
  return std::span(formats).first(formats.size() - 1);
}

Tensor decode_image(std::string_view format, std::span<const std::byte> data, bool grey, std::int64_t max_pixels) {
#ifdef WALLE_WITH_JPEG
  if (format == "jpeg") return decode_jpeg(data, grey, max_pixels);
#endif
#ifdef WALLE_WITH_PNG
  if (format == "png") return decode_png(data, max_pixels);
#endif
  throw Error(ErrorKind::unsupported, "this build of the engine does not support image format '" + std::string(format) + "'");
}

std::vector<std::byte> encode_image(std::string_view format, const Tensor& image, int level) {
  const Dims& shape = image.shape();
  const std::int64_t channels = shape.size() == 3 ? shape[2] : 1;
  if (shape.size() < 2 || shape.size() > 3 || (channels != 1 && channels != 3 && channels != 4) || image.size() == 0)
    throw Error(
        ErrorKind::shape,
        "encode_image: an image must have one, three or four channels and at least one pixel, not shape " + to_string(shape));
  if (image.dtype() != DType::u8 && !(image.dtype() == DType::u16 && format == "png"))
    throw Error(ErrorKind::dtype,
                "encode_image: an image must be uint8 (PNG also uint16), not " + std::string(dtype_name(image.dtype())));
#ifdef WALLE_WITH_JPEG
  if (format == "jpeg") return encode_jpeg(image, level);
#endif
#ifdef WALLE_WITH_PNG
  if (format == "png") return encode_png(image, level);
#endif
  throw Error(ErrorKind::unsupported, "this build of the engine does not support image format '" + std::string(format) + "'");
}

}  // namespace walle
