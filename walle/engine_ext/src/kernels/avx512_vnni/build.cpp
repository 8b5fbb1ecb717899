// Kernels of bytes with AVX512_VNNI, which the avx512 instruction set uses where the CPU has it.
#if defined(__x86_64__)
#include "kernels/avx512/target.h"

WALLE_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
namespace walle::avx512_vnni {
namespace {
// clang-format off: in this order
#include "kernels/avx512/vec.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/avx512_vnni/bytes-vec.h"
#include "kernels/generic/bytes-inl.h"
// clang-format on
}  // namespace
}  // namespace walle::avx512_vnni
WALLE_TARGET_END

bool walle::avx512_vnni::available() noexcept { return avx512::available() && __builtin_cpu_supports("avx512vnni"); }

const walle::Bytes& walle::avx512_vnni::bytes() noexcept {
  static constexpr Bytes all = bytes_named("bytes by VNNI");
  return all;
}
#endif
