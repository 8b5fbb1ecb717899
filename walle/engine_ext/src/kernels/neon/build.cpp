// The neon backend: generic/ compiled over neon/vec.h inside a namespace of its own. There is no target region: what vec.h
// uses is in the baseline of every 64-bit ARM CPU.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/table.h"

namespace walle::neon {
namespace {

// clang-format off: in this order
#include "kernels/generic/plain-inl.h"
#include "kernels/neon/vec.h"
#include "kernels/generic/axpy-inl.h"
#include "kernels/generic/elementwise-inl.h"
#include "kernels/generic/functions-inl.h"
#include "kernels/generic/composite-inl.h"
#include "kernels/generic/movement-inl.h"
#include "kernels/generic/lanes-inl.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/generic/gemm-inl.h"
#include "kernels/generic/winograd-inl.h"
#include "kernels/generic/double-bits-inl.h"
#include "kernels/generic/doubles-inl.h"
#include "kernels/generic/transcendental-inl.h"
#include "kernels/generic/peak-inl.h"
#include "kernels/generic/fill-inl.h"
// clang-format on

}  // namespace
}  // namespace walle::neon

namespace walle {
void fill_neon(Table& table) noexcept {
  neon::fill_transcendental(table);
  neon::fill(table);
}
}  // namespace walle
#endif
