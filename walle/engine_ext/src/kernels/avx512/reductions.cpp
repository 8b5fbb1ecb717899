// Reductions of the avx512 instruction set, by element type. Elements of one and two bytes have avx2's, as in loops.cpp.
#if defined(__x86_64__)
#include "kernels/avx2/target.h"
#include "kernels/avx512/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX512)
namespace walle::avx512 {
namespace {
// clang-format off: in this order
#include "kernels/generic/find-best-inl.h"
#include "kernels/generic/loops-inl.h"
#include "kernels/generic/reductions-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx512
WALLE_TARGET_END

void walle::avx512::fill_reductions(Table& table) noexcept {
  avx2::fill_reductions(table);
  fill_wide_reductions(table);
}
#endif
