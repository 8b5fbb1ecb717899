// The image kernels of the avx512 instruction set for bytes and floats, where they are faster than avx2's. Those for pixels of 16
// bits are avx2's.
#if defined(__x86_64__)
#include "kernels/avx512/target.h"

#define WALLE_STARTS_FROM_AVX2
WALLE_TARGET_BEGIN(WALLE_AVX512_WORDS)
namespace walle::avx512 {
namespace {
// clang-format off: in this order
#include "kernels/x86/bytes.h"
#include "kernels/avx512/gather.h"
#include "kernels/generic/image-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx512
WALLE_TARGET_END

void walle::avx512::fill_images(ImageTable& table) noexcept { fill_image(table); }
#endif
