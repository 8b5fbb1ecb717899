// The avx2 backend: generic/ compiled over avx2/vec.h inside one target region and namespace, so that no inline function
// built with these instructions can stand in for the baseline's at link time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace walle::avx2 {
namespace {

// clang-format off: in this order
#include "kernels/generic/plain-inl.h"
#include "kernels/avx2/vec.h"
#include "kernels/generic/axpy-inl.h"
#include "kernels/generic/elementwise-inl.h"
#include "kernels/generic/functions-inl.h"
#include "kernels/generic/composite-inl.h"
#include "kernels/generic/movement-inl.h"
#include "kernels/generic/lanes-inl.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/generic/gemm-inl.h"
#include "kernels/generic/winograd-inl.h"
#include "kernels/generic/loops-inl.h"
#include "kernels/generic/double-bits-inl.h"
#include "kernels/generic/doubles-inl.h"
#include "kernels/generic/transcendental-inl.h"
#include "kernels/generic/peak-inl.h"
#include "kernels/generic/fill-inl.h"
// clang-format on

}  // namespace
}  // namespace walle::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace walle {
void fill_avx2(Table& table) noexcept {
  avx2::fill_loops(table);
  avx2::fill_transcendental(table);
  avx2::fill(table);
  avx2::fill_float_loops(table);
}
}  // namespace walle
#endif
