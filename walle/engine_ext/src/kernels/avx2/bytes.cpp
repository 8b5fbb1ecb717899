// The kernels of bytes by AVX2, compiled inside its own target region and namespace, so that
// no inline function built with these instructions can stand in for the baseline's at link time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/bytes.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace walle::avx2 {
namespace {

// clang-format off: in this order
#include "kernels/avx2/vec.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/avx2/bytes-vec.h"
#include "kernels/generic/bytes-inl.h"
// clang-format on

void panel_quads(const PanelArgs& args) noexcept { panel_by<QuadProduct>(args); }

}  // namespace
}  // namespace walle::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace walle {
const Bytes& avx2_bytes() noexcept {
  static constexpr Bytes all{"bytes",          avx2::kLanes,      &avx2::panel_quads, &avx2::depthwise, &avx2::finish_bytes,
                             &avx2::sum_bytes, &avx2::round_bytes};
  return all;
}
}  // namespace walle
#endif
