// Reductions of the avx2 instruction set, by element type.
#if defined(__x86_64__)
#include "kernels/avx2/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX2)
namespace walle::avx2 {
namespace {
// clang-format off: in this order
#include "kernels/generic/find-best-inl.h"
#include "kernels/generic/loops-inl.h"
#include "kernels/generic/reductions-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx2
WALLE_TARGET_END

void walle::avx2::fill_reductions(Table& table) noexcept {
  fill_narrow_reductions(table);
  fill_wide_reductions(table);
}
#endif
