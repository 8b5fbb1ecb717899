// The avx512 backend's kernels of images: generic/ built inside one target region and namespace, as in build.cpp.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // in GCC's own header (its bug 105593)
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/image.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#endif

namespace walle::avx512 {
namespace {

// clang-format off: in this order
#include "kernels/x86/bytes.h"
#include "kernels/avx512/gather.h"
#include "kernels/generic/image-inl.h"
// clang-format on

}  // namespace
}  // namespace walle::avx512

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace walle {
void fill_avx512_image(ImageTable& table) noexcept { avx512::fill_image(table); }
}  // namespace walle
#endif
