// Painting: one colour moved to runs of an image's pixels, in place. These are the regions of a raster whose source is one pixel,
// thousands of them.
#pragma once
#include "core/tensor.h"

namespace walle {

// `image` is [height, width] or [height, width, channels], a view or not; `spans` int32 [count, 3] as LineSpans gives them;
// `colour` one pixel of the image's dtype. Throws Error (shape, dtype) where they do not fit or the image cannot be written.
void paint(const Tensor& image, const Tensor& spans, const Tensor& colour);

}  // namespace walle
