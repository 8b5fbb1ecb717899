// The float and integer kernels of the avx2 instruction set: generic/ over avx2/vec.h.
#if defined(__x86_64__)
#include "kernels/avx2/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX2)
namespace walle::avx2 {
namespace {
// clang-format off: in this order
#include "kernels/avx2/vec.h"
#include "kernels/generic/all-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx2
WALLE_TARGET_END

void walle::avx2::fill_kernels(Table& table) noexcept {
  fill_loops(table);
  fill_reductions(table);
  fill_all(table);
  fill_complex(table);
}
#endif
