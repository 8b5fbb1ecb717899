#include "geometry/span_fill.h"

#include <cstring>

#include "core/stop.h"

namespace walle {

void fill_spans(const Tensor& image, const Tensor& spans, const Tensor& colour) {
  if (image.ndim() != 2 && image.ndim() != 3)
    throw Error(ErrorKind::shape,
                "an image must be [height, width] or [height, width, channels], not " + to_string(image.shape()));
  if (!image.storage() || !image.storage()->writable())
    throw Error(ErrorKind::dtype, "cannot draw on a read-only image; copy it first");
  for (std::size_t i = 0; i < image.shape().size(); ++i)
    if (image.shape()[i] > 1 && image.strides()[i] == 0)
      throw Error(ErrorKind::shape, "cannot draw on a broadcast view; copy it first");
  const std::int64_t channels = image.ndim() == 3 ? image.shape()[2] : 1;
  if (colour.dtype() != image.dtype() || colour.size() != channels || !colour.contiguous())
    throw Error(ErrorKind::dtype, "the colour must be one pixel of " + std::to_string(channels) +
                                      " channels of the image's dtype " + std::string(dtype_name(image.dtype())));
  if (spans.dtype() != DType::i32 || spans.ndim() != 2 || spans.shape()[1] != 3 || !spans.contiguous())
    throw Error(ErrorKind::shape, "spans must be contiguous int32 [count, 3], not " + std::string(dtype_name(spans.dtype())) +
                                      " " + to_string(spans.shape()));
  const auto item = static_cast<std::int64_t>(item_size(image.dtype()));
  const std::int64_t row = image.strides()[0] * item, column = image.strides()[1] * item,
                     channel = image.ndim() == 3 ? image.strides()[2] * item : item;
  const auto* at = spans.data<std::int32_t>();
  StopPoll poll;
  for (std::int64_t i = 0; i < spans.shape()[0]; ++i, at += 3) {
    // Row, first column, column after the last: a copy, which no other thread changes.
    const std::int32_t span[] = {at[0], at[1], at[2]};
    if (span[0] < 0 || span[0] >= image.shape()[0] || span[1] < 0 || span[2] < span[1] || span[2] > image.shape()[1])
      throw Error(ErrorKind::shape, "span " + std::to_string(i) + " is outside an image of shape " + to_string(image.shape()));
    if (!poll.proceed(4 + (span[2] - span[1]) * channels)) throw_if_stopped();
    std::byte* pixel = image.raw() + span[0] * row + span[1] * column;
    if (item == 1 && channels == 1 && column == 1) {
      std::memset(pixel, static_cast<int>(*colour.raw()), static_cast<std::size_t>(span[2] - span[1]));
      continue;
    }
    const auto fill = [&](auto size) {
      for (std::int32_t x = span[1]; x < span[2]; ++x, pixel += column)
        for (std::int64_t c = 0; c < channels; ++c)
          std::memcpy(pixel + c * channel, colour.raw() + c * static_cast<std::int64_t>(size()), size());
    };
    if (item == 1)
      fill([] { return std::size_t{1}; });
    else
      fill([&] { return static_cast<std::size_t>(item); });
  }
}

}  // namespace walle
