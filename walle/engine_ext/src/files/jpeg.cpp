#ifdef WALLE_WITH_JPEG
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <jpeglib.h>

#include "files/image_file.h"

namespace walle {

namespace {

// libjpeg's way out of an error is a jump. No object with a destructor lives between setjmp and the calls that may jump.
struct Escape {
  jpeg_error_mgr manager;
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

void leave(j_common_ptr info) {
  auto* escape = reinterpret_cast<Escape*>(info->err);
  info->err->format_message(info, escape->message);
  std::longjmp(escape->back, 1);
}
void say_nothing(j_common_ptr, int) {}

jpeg_error_mgr* silent(Escape& escape) {
  jpeg_error_mgr* manager = jpeg_std_error(&escape.manager);
  manager->error_exit = leave;
  manager->emit_message = say_nothing;
  escape.message[0] = '\0';
  return manager;
}

bool read_header(jpeg_decompress_struct& info, Escape& escape, std::span<const std::byte> data, bool grey) {
  if (setjmp(escape.back) != 0) return false;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(data.data()), static_cast<unsigned long>(data.size()));
  jpeg_read_header(&info, TRUE);
  const bool four = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = four ? JCS_CMYK : grey || info.num_components == 1 ? JCS_GRAYSCALE : JCS_EXT_BGR;
  jpeg_start_decompress(&info);
  return true;
}

bool read_rows(jpeg_decompress_struct& info, Escape& escape, unsigned char* rows, std::size_t row_bytes) {
  if (setjmp(escape.back) != 0) return false;
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = rows + info.output_scanline * row_bytes;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

bool write_rows(jpeg_compress_struct& info, Escape& escape, const Tensor& image, int quality, unsigned char** out,
                unsigned long* size) {
  if (setjmp(escape.back) != 0) return false;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, out, size);
  info.image_height = static_cast<JDIMENSION>(image.shape()[0]);
  info.image_width = static_cast<JDIMENSION>(image.shape()[1]);
  info.input_components = image.ndim() == 3 ? static_cast<int>(image.shape()[2]) : 1;
  info.in_color_space = info.input_components == 1 ? JCS_GRAYSCALE : info.input_components == 3 ? JCS_EXT_BGR : JCS_EXT_BGRX;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  const std::size_t row_bytes = static_cast<std::size_t>(info.image_width) * static_cast<std::size_t>(info.input_components);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(image.data<const unsigned char>()) + info.next_scanline * row_bytes;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

Tensor decode_jpeg(std::span<const std::byte> data, bool grey) {
  jpeg_decompress_struct info{};
  Escape escape;
  info.err = silent(escape);
  const auto fail = [&]() -> Error {
    jpeg_destroy_decompress(&info);
    return {ErrorKind::model, std::string("a JPEG file that cannot be read: ") + escape.message};
  };
  if (!read_header(info, escape, data, grey)) throw fail();
  const auto height = static_cast<std::int64_t>(info.output_height), width = static_cast<std::int64_t>(info.output_width),
             channels = static_cast<std::int64_t>(info.output_components);
  if (height * width > kMostPixels) {
    std::snprintf(escape.message, sizeof(escape.message), "more pixels than %lld", static_cast<long long>(kMostPixels));
    throw fail();
  }
  Tensor rows = Tensor::empty(DType::u8, channels == 1 ? Dims{height, width} : Dims{height, width, channels});
  if (!read_rows(info, escape, rows.data<unsigned char>(), static_cast<std::size_t>(width * channels))) throw fail();
  jpeg_destroy_decompress(&info);
  if (channels != 4) return rows;
  // Inks of print, kept inverted in files: each colour is what its ink and black leave.
  Tensor result = Tensor::empty(DType::u8, {height, width, 3});
  const auto* ink = rows.data<std::uint8_t>();
  auto* out = result.data<std::uint8_t>();
  for (std::int64_t i = 0; i < height * width; ++i)
    for (std::int64_t c = 0; c < 3; ++c) out[3 * i + c] = static_cast<std::uint8_t>(ink[4 * i + 2 - c] * ink[4 * i + 3] / 255);
  return result;
}

std::vector<std::byte> encode_jpeg(const Tensor& image, int level) {
  jpeg_compress_struct info{};
  Escape escape;
  info.err = silent(escape);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  const bool done = write_rows(info, escape, image, level < 0 ? 0 : level > 100 ? 100 : level, &out, &size);
  jpeg_destroy_compress(&info);
  std::vector<std::byte> bytes;
  if (done) bytes.assign(reinterpret_cast<std::byte*>(out), reinterpret_cast<std::byte*>(out) + size);
  std::free(out);
  if (!done) throw Error(ErrorKind::model, std::string("an image that cannot be written as JPEG: ") + escape.message);
  return bytes;
}

}  // namespace walle
#endif
