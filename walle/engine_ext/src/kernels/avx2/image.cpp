// The image kernels of the avx2 instruction set.
#if defined(__x86_64__)
#include "kernels/avx2/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX2)
namespace walle::avx2 {
namespace {
// clang-format off: in this order
#include "kernels/x86/bytes.h"
// No vector form of gather_triples: registers of eight words hold too few pixels.
template <int taps>
inline std::int64_t gather_triples(const std::int32_t*, std::int64_t, const std::uint8_t*, std::uint32_t*, std::int64_t,
                                   std::int64_t) noexcept {
  return 0;
}
#include "kernels/generic/image-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx2
WALLE_TARGET_END

void walle::avx2::fill_images(ImageTable& table) noexcept { fill_image(table); }
#endif
