// The scalar instruction set's image kernels: generic/ compiled for the baseline, which is the reference.
#include <cstddef>
#include <type_traits>

#include "kernels/scalar/set.h"

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
template <int taps>
inline std::int64_t gather_triples(const std::int32_t*, std::int64_t, const std::uint8_t*, std::uint32_t*, std::int64_t,
                                   std::int64_t) noexcept {
  return 0;
}
inline std::int64_t weighted_bytes(const std::uint8_t*, const std::uint8_t*, float, float, float, std::uint8_t*,
                                   std::int64_t) noexcept {
  return 0;
}
inline std::int64_t gray_floats(const float*, float, float, float, float*, std::int64_t) noexcept { return 0; }
inline std::int64_t running_sums(const std::uint8_t*, const std::int32_t*, std::int32_t*, std::int64_t, std::int32_t*) noexcept {
  return 0;
}

#include "kernels/generic/image-inl.h"

}  // namespace

void fill_images(ImageTable& table) noexcept { fill_image(table); }

}  // namespace scalar

}  // namespace walle
