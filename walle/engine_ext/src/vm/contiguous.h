// Contiguous copies of strided tensors.
#pragma once
#include "core/tensor.h"

namespace walle::vm {

// Returns a contiguous copy in engine memory. Throws std::bad_alloc.
Tensor contiguous_copy(const Tensor& source);

}  // namespace walle::vm
