// The avx2 backend's kernels of images: generic/ built inside one target region and namespace, as in build.cpp.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/image.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace walle::avx2 {
namespace {

// clang-format off: in this order
#include "kernels/x86/bytes.h"
// Registers of eight words hold too few pixels for it.
template <int taps>
inline std::int64_t gather_triples(const std::int32_t*, std::int64_t, const std::uint8_t*, std::uint32_t*, std::int64_t,
                                   std::int64_t) noexcept {
  return 0;
}
#include "kernels/generic/image-inl.h"
// clang-format on

}  // namespace
}  // namespace walle::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace walle {
void fill_avx2_image(ImageTable& table) noexcept { avx2::fill_image(table); }
}  // namespace walle
#endif
