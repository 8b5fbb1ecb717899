// JPEG files through libjpeg-turbo.
#ifdef WALLE_WITH_JPEG
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <jpeglib.h>

#include "core/stop.h"
#include "files/image_file.h"

namespace walle {

namespace {

// Error handler of libjpeg, which leaves a call by longjmp. No object with a destructor may live between setjmp and the calls
// that may jump.
struct ErrorJump {
  jpeg_error_mgr manager;
  std::jmp_buf target;
  char message[JMSG_LENGTH_MAX];
};

void jump_out_of_jpeg(j_common_ptr info) {
  auto* error = reinterpret_cast<ErrorJump*>(info->err);
  info->err->format_message(info, error->message);
  std::longjmp(error->target, 1);
}
void ignore_message(j_common_ptr, int) {}

// Leaves a call that reads a whole file (a progressive one) once a stop was requested.
void poll_stop(j_common_ptr info) {
  if (StopFlag* stop = current_stop(); stop != nullptr && stop->poll()) jump_out_of_jpeg(info);
}

jpeg_error_mgr* install(ErrorJump& error) {
  jpeg_error_mgr* manager = jpeg_std_error(&error.manager);
  manager->error_exit = jump_out_of_jpeg;
  manager->emit_message = ignore_message;
  error.message[0] = '\0';
  return manager;
}

bool read_jpeg_header(jpeg_decompress_struct& info, ErrorJump& error, jpeg_progress_mgr& progress,
                      std::span<const std::byte> data, bool grey) {
  if (setjmp(error.target) != 0) return false;
  jpeg_create_decompress(&info);
  info.progress = &progress;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(data.data()), static_cast<unsigned long>(data.size()));
  jpeg_read_header(&info, TRUE);
  const bool is_cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = is_cmyk ? JCS_CMYK : grey || info.num_components == 1 ? JCS_GRAYSCALE : JCS_EXT_BGR;
  jpeg_start_decompress(&info);
  return true;
}

// Elements of simple loops that take about as long as a byte of an image, whose transform is slower.
constexpr std::int64_t kByte = 8;

// Both return false after a stop too.
bool read_jpeg_rows(jpeg_decompress_struct& info, ErrorJump& error, unsigned char* rows, std::size_t row_bytes) {
  if (setjmp(error.target) != 0) return false;
  StopPoll poll;
  while (info.output_scanline < info.output_height) {
    if (!poll.proceed(kByte * static_cast<std::int64_t>(row_bytes))) return false;
    JSAMPROW row = rows + info.output_scanline * row_bytes;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

bool write_jpeg_rows(jpeg_compress_struct& info, ErrorJump& error, const Tensor& image, int quality, unsigned char** out,
                     unsigned long* size) {
  if (setjmp(error.target) != 0) return false;
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
  StopPoll poll;
  while (info.next_scanline < info.image_height) {
    if (!poll.proceed(kByte * static_cast<std::int64_t>(row_bytes))) return false;
    JSAMPROW row = const_cast<JSAMPROW>(image.data<const unsigned char>()) + info.next_scanline * row_bytes;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

Tensor decode_jpeg(std::span<const std::byte> data, bool grey, std::int64_t max_pixels) {
  jpeg_decompress_struct info{};
  ErrorJump error;
  info.err = install(error);
  const auto fail = [&]() -> Error {
    jpeg_destroy_decompress(&info);
    throw_if_stopped();
    return {ErrorKind::model, std::string("cannot decode the JPEG file: ") + error.message};
  };
  jpeg_progress_mgr progress{};
  progress.progress_monitor = poll_stop;
  if (!read_jpeg_header(info, error, progress, data, grey)) throw fail();
  const auto height = static_cast<std::int64_t>(info.output_height), width = static_cast<std::int64_t>(info.output_width),
             channels = static_cast<std::int64_t>(info.output_components);
  if (height * width > max_pixels) {
    std::snprintf(error.message, sizeof(error.message), "it has more than %lld pixels", static_cast<long long>(max_pixels));
    throw fail();
  }
  Tensor rows = Tensor::empty(DType::u8, channels == 1 ? Dims{height, width} : Dims{height, width, channels});
  if (!read_jpeg_rows(info, error, rows.data<unsigned char>(), static_cast<std::size_t>(width * channels))) throw fail();
  jpeg_destroy_decompress(&info);
  if (channels != 4) return rows;
  // CMYK, which files store inverted: each colour is its ink times black.
  Tensor result = Tensor::empty(DType::u8, {height, width, 3});
  const auto* ink = rows.data<std::uint8_t>();
  auto* out = result.data<std::uint8_t>();
  run_stoppable(height * width, 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      for (std::int64_t c = 0; c < 3; ++c) out[3 * i + c] = static_cast<std::uint8_t>(ink[4 * i + 2 - c] * ink[4 * i + 3] / 255);
  });
  return result;
}

std::vector<std::byte> encode_jpeg(const Tensor& image, int level) {
  jpeg_compress_struct info{};
  ErrorJump error;
  info.err = install(error);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  const bool written = write_jpeg_rows(info, error, image, level < 0 ? 0 : level > 100 ? 100 : level, &out, &size);
  // Only this call says where the bytes are: the buffer given at first was freed when they grew. It ends a whole file itself.
  if (!written && info.dest != nullptr) info.dest->term_destination(&info);
  jpeg_destroy_compress(&info);
  std::vector<std::byte> bytes;
  if (written) bytes.assign(reinterpret_cast<std::byte*>(out), reinterpret_cast<std::byte*>(out) + size);
  std::free(out);
  throw_if_stopped();
  if (!written) throw Error(ErrorKind::model, std::string("cannot encode the image as JPEG: ") + error.message);
  return bytes;
}

}  // namespace walle
#endif
