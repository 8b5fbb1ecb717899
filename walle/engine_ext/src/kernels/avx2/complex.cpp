// The kernels of complex numbers and of Fourier transforms of the avx2 instruction set.
#if defined(__x86_64__)
#include "kernels/avx2/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX2)
namespace walle::avx2 {
namespace {
// clang-format off: in this order
#include "kernels/generic/complex-inl.h"
#include "kernels/generic/fourier-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx2
WALLE_TARGET_END

void walle::avx2::fill_complex(Table& table) noexcept {
  fill_complex_kernels(table);
  table.fourier = &fourier;
}
#endif
