// All float and integer kernels over one set of vector primitives. An instruction set's build.cpp includes this once, inside its
// target region and namespace and after its vec.h, and calls fill_all. Where WALLE_BASELINE_HAS_VECTORS is defined, the plain
// loops of scalar/ are already vectorised, and generic/ adds none.

// clang-format off: in this order
#include "kernels/generic/plain-inl.h"
#include "kernels/generic/axpy-inl.h"
#include "kernels/generic/elementwise-inl.h"
#include "kernels/generic/functions-inl.h"
#include "kernels/generic/composite-inl.h"
#include "kernels/generic/channels-inl.h"
#include "kernels/generic/movement-inl.h"
#include "kernels/generic/lanes-inl.h"
#include "kernels/generic/depthwise-inl.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/generic/gemm-inl.h"
#include "kernels/generic/gemm-doubles-inl.h"
#include "kernels/generic/winograd-inl.h"
#if !defined(WALLE_BASELINE_HAS_VECTORS)
#include "kernels/generic/find-best-inl.h"
#include "kernels/generic/extremes-inl.h"
#endif
#include "kernels/generic/double-bits-inl.h"
#include "kernels/generic/doubles-inl.h"
#include "kernels/generic/transcendental-inl.h"
#include "kernels/generic/peak-inl.h"
#include "kernels/generic/fill-inl.h"
// clang-format on

// Replace the scalar kernels in the table by these.
void fill_all(Table& table) noexcept {
  fill_transcendental(table);
  fill(table);
#if !defined(WALLE_BASELINE_HAS_VECTORS)
  fill_extremes(table);
#endif
}
