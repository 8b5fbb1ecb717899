// Contiguous copies of strided tensors.
#pragma once
#include "core/tensor.h"

namespace walle::vm {

// Returns a contiguous copy in engine memory. Throws std::bad_alloc.
// Writes a tensor's elements to `target` in row-major order.
void copy_elements(const Tensor& source, std::byte* target);
Tensor contiguous_copy(const Tensor& source);

}  // namespace walle::vm
