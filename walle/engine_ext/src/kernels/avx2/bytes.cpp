// The kernels of bytes of the avx2 instruction set.
#if defined(__x86_64__)
#include "kernels/avx2/target.h"

WALLE_TARGET_BEGIN(WALLE_AVX2)
namespace walle::avx2 {
namespace {
// clang-format off: in this order
#include "kernels/avx2/vec.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/avx2/bytes-vec.h"
#include "kernels/generic/bytes-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx2
WALLE_TARGET_END

const walle::Bytes& walle::avx2::bytes() noexcept {
  static constexpr Bytes all = bytes_named("bytes");
  return all;
}
#endif
