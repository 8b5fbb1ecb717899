// The float and integer kernels of the avx512 instruction set: generic/ over avx512/vec.h.
#if defined(__x86_64__)
#include "kernels/avx512/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX512)
namespace walle::avx512 {
namespace {
// clang-format off: in this order
#include "kernels/avx512/vec.h"
#include "kernels/generic/all-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx512
WALLE_TARGET_END

void walle::avx512::fill_kernels(Table& table) noexcept {
  fill_loops(table);
  fill_reductions(table);
  fill_all(table);
  fill_complex(table);
}
#endif
