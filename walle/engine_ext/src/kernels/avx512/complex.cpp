// The kernels of complex numbers and of Fourier transforms of the avx512 instruction set.
#if defined(__x86_64__)
#include "kernels/avx512/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX512)
namespace walle::avx512 {
namespace {
// clang-format off: in this order
#include "kernels/generic/complex-inl.h"
#include "kernels/generic/fourier-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx512
WALLE_TARGET_END

void walle::avx512::fill_complex(Table& table) noexcept {
  fill_complex_kernels(table);
  table.fourier = &fourier;
}
#endif
