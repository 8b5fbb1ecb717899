// The kernels of bytes by AVX512_VNNI, compiled inside its own target region and namespace, so that
// no inline function built with these instructions can stand in for the baseline's at link time.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // in GCC's own header (its bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/bytes.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
#endif

namespace walle::avx512_vnni {
namespace {

// clang-format off: in this order
#include "kernels/avx512/vec.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/avx512_vnni/bytes-vec.h"
#include "kernels/generic/bytes-inl.h"
// clang-format on

void panel_quads(const PanelArgs& args) noexcept { panel_by<QuadProduct>(args); }

}  // namespace
}  // namespace walle::avx512_vnni

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace walle {
const Bytes& vnni_bytes() noexcept {
  static constexpr Bytes all{"bytes by VNNI",          avx512_vnni::kLanes,        &avx512_vnni::panel_quads,
                             &avx512_vnni::depthwise,  &avx512_vnni::finish_bytes, &avx512_vnni::sum_bytes,
                             &avx512_vnni::round_bytes};
  return all;
}
}  // namespace walle
#endif
