#ifdef WALLE_WITH_PNG
#include <csetjmp>
#include <cstring>

#include <png.h>

#include "files/image_file.h"

namespace walle {

namespace {

struct Reader {
  std::span<const std::byte> data;
  std::size_t at = 0;
};

void read(png_structp png, png_bytep to, png_size_t count) {
  auto* reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader->data.size() - reader->at) png_error(png, "the file ends early");
  std::memcpy(to, reader->data.data() + reader->at, count);
  reader->at += count;
}
void write(png_structp png, png_bytep from, png_size_t count) {
  auto* bytes = static_cast<std::vector<std::byte>*>(png_get_io_ptr(png));
  const auto* first = reinterpret_cast<const std::byte*>(from);
  bytes->insert(bytes->end(), first, first + count);
}
void flush(png_structp) {}
void ignore(png_structp, png_const_charp) {}
[[noreturn]] void leave(png_structp png, png_const_charp message) {
  auto* text = static_cast<char*>(png_get_error_ptr(png));
  std::strncpy(text, message, 199);
  png_longjmp(png, 1);
}

struct Picture {
  std::int64_t height = 0, width = 0, channels = 0;
  bool deep = false;
};

// libpng's way out of an error is a jump: no object with a destructor is made between setjmp and the calls that may jump.
bool read_header(png_structp png, png_infop info, Picture& picture) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_user_limits(png, 1 << 20, 1 << 20);
  png_read_info(png, info);
  const int kind = png_get_color_type(png, info), depth = png_get_bit_depth(png, info);
  if (kind == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (kind == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
  const bool clear = png_get_valid(png, info, PNG_INFO_tRNS) != 0;
  if (clear) png_set_tRNS_to_alpha(png);
  if (kind == PNG_COLOR_TYPE_GRAY_ALPHA || (clear && kind == PNG_COLOR_TYPE_GRAY)) png_set_gray_to_rgb(png);
  if (kind != PNG_COLOR_TYPE_GRAY || clear) png_set_bgr(png);
  if (depth == 16) png_set_swap(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  picture = {static_cast<std::int64_t>(png_get_image_height(png, info)),
             static_cast<std::int64_t>(png_get_image_width(png, info)), png_get_channels(png, info),
             png_get_bit_depth(png, info) == 16};
  return true;
}

bool read_rows(png_structp png, png_bytep* rows) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_image(png, rows);
  png_read_end(png, nullptr);
  return true;
}

bool write_rows(png_structp png, png_infop info, const Picture& picture, int level, png_bytep* rows) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  const int kind = picture.channels == 1   ? PNG_COLOR_TYPE_GRAY
                   : picture.channels == 3 ? PNG_COLOR_TYPE_RGB
                                           : PNG_COLOR_TYPE_RGB_ALPHA;
  png_set_compression_level(png, level);
  png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_SUB);
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width), static_cast<png_uint_32>(picture.height),
               picture.deep ? 16 : 8, kind, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  if (picture.channels > 1) png_set_bgr(png);
  if (picture.deep) png_set_swap(png);
  png_write_image(png, rows);
  png_write_end(png, info);
  return true;
}

std::vector<png_bytep> rows_of(const Tensor& image, std::size_t row_bytes) {
  std::vector<png_bytep> rows;
  for (std::int64_t y = 0; y < image.shape()[0]; ++y)
    rows.push_back(image.data<png_byte>() + static_cast<std::size_t>(y) * row_bytes);
  return rows;
}

}  // namespace

Tensor decode_png(std::span<const std::byte> data) {
  char message[200] = "no such image";
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, message, leave, ignore);
  png_infop info = png_create_info_struct(png);
  Reader reader{data};
  png_set_read_fn(png, &reader, read);
  const auto done = [&] { png_destroy_read_struct(&png, &info, nullptr); };
  const auto fail = [&]() -> Error {
    done();
    return {ErrorKind::model, std::string("a PNG file that cannot be read: ") + message};
  };
  Picture picture;
  if (!read_header(png, info, picture)) throw fail();
  if (picture.height * picture.width > kMostPixels) throw fail();
  const Dims shape =
      picture.channels == 1 ? Dims{picture.height, picture.width} : Dims{picture.height, picture.width, picture.channels};
  Tensor image = Tensor::empty(picture.deep ? DType::u16 : DType::u8, shape);
  auto rows = rows_of(image, static_cast<std::size_t>(picture.width * picture.channels) * (picture.deep ? 2 : 1));
  if (!read_rows(png, rows.data())) throw fail();
  done();
  return image;
}

std::vector<std::byte> encode_png(const Tensor& image, int level) {
  char message[200] = "";
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, message, leave, ignore);
  png_infop info = png_create_info_struct(png);
  std::vector<std::byte> bytes;
  png_set_write_fn(png, &bytes, write, flush);
  const Picture picture{image.shape()[0], image.shape()[1], image.ndim() == 3 ? image.shape()[2] : 1,
                        image.dtype() == DType::u16};
  auto rows = rows_of(image, static_cast<std::size_t>(picture.width * picture.channels) * (picture.deep ? 2 : 1));
  const bool done = write_rows(png, info, picture, level < 0 ? 0 : level > 9 ? 9 : level, rows.data());
  png_destroy_write_struct(&png, &info);
  if (!done) throw Error(ErrorKind::model, std::string("an image that cannot be written as PNG: ") + message);
  return bytes;
}

}  // namespace walle
#endif
