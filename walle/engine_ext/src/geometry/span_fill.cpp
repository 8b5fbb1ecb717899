#include "geometry/span_fill.h"

#include <cstring>

namespace walle {

void fill_spans(const Tensor& image, const Tensor& spans, const Tensor& colour) {
  if (image.ndim() != 2 && image.ndim() != 3)
    throw Error(ErrorKind::shape, "an image is [height, width] or [height, width, channels], not " + to_string(image.shape()));
  if (!image.storage() || !image.storage()->writable()) throw Error(ErrorKind::dtype, "the image is read-only; copy it first");
  for (std::size_t i = 0; i < image.shape().size(); ++i)
    if (image.shape()[i] > 1 && image.strides()[i] == 0)
      throw Error(ErrorKind::shape, "a broadcast view cannot be written; copy it first");
  const std::int64_t channels = image.ndim() == 3 ? image.shape()[2] : 1;
  if (colour.dtype() != image.dtype() || colour.size() != channels || !colour.contiguous())
    throw Error(ErrorKind::dtype, "a colour is one pixel of the image's dtype");
  if (spans.dtype() != DType::i32 || spans.ndim() != 2 || spans.shape()[1] != 3 || !spans.contiguous())
    throw Error(ErrorKind::shape, "spans are int32 [count, 3], not " + to_string(spans.shape()));
  const auto item = static_cast<std::int64_t>(item_size(image.dtype()));
  const std::int64_t row = image.strides()[0] * item, column = image.strides()[1] * item,
                     channel = image.ndim() == 3 ? image.strides()[2] * item : item;
  const auto* at = spans.data<std::int32_t>();
  for (std::int64_t i = 0; i < spans.shape()[0]; ++i, at += 3) {
    if (at[0] < 0 || at[0] >= image.shape()[0] || at[1] < 0 || at[2] < at[1] || at[2] > image.shape()[1])
      throw Error(ErrorKind::shape, "a span outside the image");
    std::byte* to = image.raw() + at[0] * row + at[1] * column;
    if (item == 1 && channels == 1 && column == 1) {
      std::memset(to, static_cast<int>(*colour.raw()), static_cast<std::size_t>(at[2] - at[1]));
      continue;
    }
    const auto fill = [&](auto size) {
      for (std::int32_t x = at[1]; x < at[2]; ++x, to += column)
        for (std::int64_t c = 0; c < channels; ++c)
          std::memcpy(to + c * channel, colour.raw() + c * static_cast<std::int64_t>(size()), size());
    };
    if (item == 1)
      fill([] { return std::size_t{1}; });
    else
      fill([&] { return static_cast<std::size_t>(item); });
  }
}

}  // namespace walle
