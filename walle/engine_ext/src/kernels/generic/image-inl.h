// All image kernels. An instruction set's image.cpp includes this inside its target region and namespace, after the functions
// that they require: split3_bytes, merge3_bytes, permute_groups, gather_triples, gray_floats, weighted_bytes and running_sums.

// clang-format off: in this order
#include "kernels/generic/image-pixels-inl.h"
#include "kernels/generic/image-color-inl.h"
#include "kernels/generic/image-yuv-inl.h"
#include "kernels/generic/image-resize-inl.h"
#include "kernels/generic/image-sample-inl.h"
#include "kernels/generic/image-filter-inl.h"
#include "kernels/generic/image-order-inl.h"
#include "kernels/generic/image-pointwise-inl.h"
#include "kernels/generic/image-fill-inl.h"
// clang-format on
