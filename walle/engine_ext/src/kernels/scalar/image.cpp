// The scalar backend's kernels of images: generic/ built for the baseline, which is their meaning.
#include "kernels/image.h"

#include <cstddef>
#include <type_traits>

namespace walle {

namespace scalar {
namespace {

inline std::int64_t split3_bytes(const std::uint8_t*, std::uint8_t*, std::uint8_t*, std::uint8_t*, std::int64_t) noexcept {
  return 0;
}
inline std::int64_t merge3_bytes(const std::uint8_t*, const std::uint8_t*, const std::uint8_t*, std::uint8_t*,
                                 std::int64_t) noexcept {
  return 0;
}
inline std::int64_t permute_groups(const std::uint8_t*, std::int64_t, std::uint8_t*, std::int64_t, const std::int8_t*,
                                   std::int64_t) noexcept {
  return 0;
}
inline std::int64_t running_sums(const std::uint8_t*, const std::int32_t*, std::int32_t*, std::int64_t, std::int32_t*) noexcept {
  return 0;
}

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

}  // namespace
}  // namespace scalar

void fill_scalar_image(ImageTable& table) noexcept { scalar::fill_image(table); }

}  // namespace walle
