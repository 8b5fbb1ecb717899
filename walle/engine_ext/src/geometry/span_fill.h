// In-place filling of pixel runs (spans) with one colour: a raster of thousands of regions whose source is one pixel.
#pragma once
#include "core/tensor.h"

namespace walle {

// Fill `spans` (int32 [count, 3], as LineSpans returns them) of `image` ([height, width] or [height, width, channels], possibly a
// view) with `colour`, one pixel of the image's dtype. Throw Error (shape, dtype) if they do not match or the image is read-only.
void fill_spans(const Tensor& image, const Tensor& spans, const Tensor& colour);

}  // namespace walle
