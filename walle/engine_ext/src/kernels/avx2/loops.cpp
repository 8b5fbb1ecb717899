// Plain loops of the avx2 instruction set, by element type, which the compiler vectorises.
#if defined(__x86_64__)
#include "kernels/avx2/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX2)
namespace walle::avx2 {
namespace {
// clang-format off: in this order
#include "kernels/generic/loops-inl.h"
#include "kernels/generic/narrow-loops-inl.h"
#include "kernels/generic/wide-loops-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx2
WALLE_TARGET_END

void walle::avx2::fill_loops(Table& table) noexcept {
  fill_narrow_loops(table);
  fill_wide_loops(table);
}
#endif
