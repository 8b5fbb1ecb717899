// PNG files through libpng.
#ifdef WALLE_WITH_PNG
#include <csetjmp>
#include <cstring>

#include <png.h>

#include "core/stop.h"
#include "files/image_file.h"

namespace walle {

namespace {

struct Reader {
  std::span<const std::byte> data;
  std::size_t position = 0;
};

void read(png_structp png, png_bytep target, png_size_t count) {
  auto* reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader->data.size() - reader->position) png_error(png, "the file is truncated");
  std::memcpy(target, reader->data.data() + reader->position, count);
  reader->position += count;
}
void write(png_structp png, png_bytep source, png_size_t count) {
  auto* bytes = static_cast<std::vector<std::byte>*>(png_get_io_ptr(png));
  const auto* first = reinterpret_cast<const std::byte*>(source);
  bytes->insert(bytes->end(), first, first + count);
}
void flush(png_structp) {}
void ignore(png_structp, png_const_charp) {}
[[noreturn]] void jump_out_of_png(png_structp png, png_const_charp message) {
  auto* text = static_cast<char*>(png_get_error_ptr(png));
  std::strncpy(text, message, 199);
  png_longjmp(png, 1);
}

struct PngShape {
  std::int64_t height = 0, width = 0, channels = 0;
  int passes = 1;  // passes of an interlaced file
  bool is_16_bit = false;
};

// libpng leaves a call with an error by longjmp: no object with a destructor may live between setjmp and the calls that may jump.
bool read_png_header(png_structp png, png_infop info, PngShape& shape) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_user_limits(png, 1 << 20, 1 << 20);
  png_read_info(png, info);
  const int kind = png_get_color_type(png, info), depth = png_get_bit_depth(png, info);
  if (kind == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (kind == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
  const bool has_transparency = png_get_valid(png, info, PNG_INFO_tRNS) != 0;
  if (has_transparency) png_set_tRNS_to_alpha(png);
  if (kind == PNG_COLOR_TYPE_GRAY_ALPHA || (has_transparency && kind == PNG_COLOR_TYPE_GRAY)) png_set_gray_to_rgb(png);
  if (kind != PNG_COLOR_TYPE_GRAY || has_transparency) png_set_bgr(png);
  if (depth == 16) png_set_swap(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  shape = {static_cast<std::int64_t>(png_get_image_height(png, info)), static_cast<std::int64_t>(png_get_image_width(png, info)),
           png_get_channels(png, info), passes, png_get_bit_depth(png, info) == 16};
  return true;
}

// Elements of simple loops that take about as long as a byte of an image: libpng's and zlib's loops are slower.
constexpr std::int64_t kReadByte = 4, kWriteByte = 64;

// Both return false after a stop too.
bool read_png_rows(png_structp png, const PngShape& shape, png_bytep* rows, std::int64_t row_bytes) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  StopPoll poll;
  for (int pass = 0; pass < shape.passes; ++pass)
    for (std::int64_t y = 0; y < shape.height; ++y) {
      if (!poll.proceed(kReadByte * row_bytes)) return false;
      png_read_row(png, rows[y], nullptr);
    }
  png_read_end(png, nullptr);
  return true;
}

bool write_png_rows(png_structp png, png_infop info, const PngShape& shape, int level, png_bytep* rows, std::int64_t row_bytes) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  const int kind = shape.channels == 1   ? PNG_COLOR_TYPE_GRAY
                   : shape.channels == 3 ? PNG_COLOR_TYPE_RGB
                                         : PNG_COLOR_TYPE_RGB_ALPHA;
  png_set_compression_level(png, level);
  png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_SUB);
  png_set_IHDR(png, info, static_cast<png_uint_32>(shape.width), static_cast<png_uint_32>(shape.height), shape.is_16_bit ? 16 : 8,
               kind, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  if (shape.channels > 1) png_set_bgr(png);
  if (shape.is_16_bit) png_set_swap(png);
  StopPoll poll;
  for (std::int64_t y = 0; y < shape.height; ++y) {
    if (!poll.proceed(kWriteByte * row_bytes)) return false;
    png_write_row(png, rows[y]);
  }
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

Tensor decode_png(std::span<const std::byte> data, std::int64_t max_pixels) {
  char message[200] = "it has too many pixels";
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, message, jump_out_of_png, ignore);
  png_infop info = png_create_info_struct(png);
  Reader reader{data};
  png_set_read_fn(png, &reader, read);
  const auto destroy = [&] { png_destroy_read_struct(&png, &info, nullptr); };
  const auto fail = [&]() -> Error {
    destroy();
    throw_if_stopped();
    return {ErrorKind::model, std::string("cannot decode the PNG file: ") + message};
  };
  PngShape png_shape;
  if (!read_png_header(png, info, png_shape)) throw fail();
  if (png_shape.height * png_shape.width > max_pixels) throw fail();
  const Dims shape = png_shape.channels == 1 ? Dims{png_shape.height, png_shape.width}
                                             : Dims{png_shape.height, png_shape.width, png_shape.channels};
  Tensor image = Tensor::empty(png_shape.is_16_bit ? DType::u16 : DType::u8, shape);
  const std::int64_t row_bytes = png_shape.width * png_shape.channels * (png_shape.is_16_bit ? 2 : 1);
  auto rows = rows_of(image, static_cast<std::size_t>(row_bytes));
  if (!read_png_rows(png, png_shape, rows.data(), row_bytes)) throw fail();
  destroy();
  return image;
}

std::vector<std::byte> encode_png(const Tensor& image, int level) {
  char message[200] = "";
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, message, jump_out_of_png, ignore);
  png_infop info = png_create_info_struct(png);
  std::vector<std::byte> bytes;
  png_set_write_fn(png, &bytes, write, flush);
  const PngShape png_shape{image.shape()[0], image.shape()[1], image.ndim() == 3 ? image.shape()[2] : 1, 1,
                           image.dtype() == DType::u16};
  const std::int64_t row_bytes = png_shape.width * png_shape.channels * (png_shape.is_16_bit ? 2 : 1);
  auto rows = rows_of(image, static_cast<std::size_t>(row_bytes));
  const bool written = write_png_rows(png, info, png_shape, level < 0 ? 0 : level > 9 ? 9 : level, rows.data(), row_bytes);
  png_destroy_write_struct(&png, &info);
  throw_if_stopped();
  if (!written) throw Error(ErrorKind::model, std::string("cannot encode the image as PNG: ") + message);
  return bytes;
}

}  // namespace walle
#endif
