// Plain loops of the avx512 instruction set, by element type, which the compiler vectorises. Elements of one and two bytes have
// avx2's: the instruction set's functions do without AVX-512BW.
#if defined(__x86_64__)
#include "kernels/avx2/target.h"
#include "kernels/avx512/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX512)
namespace walle::avx512 {
namespace {
// clang-format off: in this order
#include "kernels/generic/loops-inl.h"
#include "kernels/generic/wide-loops-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx512
WALLE_TARGET_END

void walle::avx512::fill_loops(Table& table) noexcept {
  avx2::fill_loops(table);
  fill_wide_loops(table);
}
#endif
