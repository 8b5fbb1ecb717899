// Makes the step of any atomic operator: those of kernels.inc here, the others by their own makers (atomic/).
#pragma once
#include <memory>
#include <span>

#include "operators/op.h"

namespace walle {

// `result` is what infer_atomic gave. `axes` are the reduced ones, for operators that reduce.
std::unique_ptr<Step> make_step(const OpDef& op, std::span<const Layout> inputs, const TensorType& result,
                                std::span<const std::size_t> axes, const Attributes& attributes, const Table& table,
                                const Epilogue& epilogue = {});

}  // namespace walle
