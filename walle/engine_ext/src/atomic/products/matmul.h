// The step of MatMul: a product of matrices with broadcast batches, none of them constant.
#pragma once
#include "atomic/atomic.h"

namespace walle {

std::unique_ptr<HostStep> make_matmul_step(std::span<const Layout> inputs, const TensorType& result, const Table& table);

}  // namespace walle
