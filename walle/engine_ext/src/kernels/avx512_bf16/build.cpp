// The avx512_bf16 backend: what AVX512_BF16 adds to avx512's table, compiled inside its own target region and namespace, so that
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

#include "kernels/bfloat16.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bf16,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bf16,avx2,fma")
#endif

namespace walle::avx512_bf16 {
namespace {

// clang-format off: in this order
#include "kernels/avx512/vec.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/avx512_bf16/vec.h"
#include "kernels/generic/pairs-inl.h"
// clang-format on

void panel_pairs(const PanelArgs& args) noexcept { panel_by<PairProduct>(args); }

}  // namespace
}  // namespace walle::avx512_bf16

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace walle {
const Bfloat16& avx512_bfloat16() noexcept {
  static constexpr Bfloat16 all{&avx512_bf16::panel_pairs, &avx512_bf16::narrow, &avx512_bf16::pair};
  return all;
}
}  // namespace walle
#endif
