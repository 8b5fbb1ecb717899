// Eager evaluation: operators computed at once on tensors, for walle.np and for the constants that a session folds.
#pragma once
#include "operators/step.h"

namespace walle {

// Elements up to which an operand goes to a kernel at once, where it is contiguous.
inline constexpr std::int64_t kFastPathElements = 4096;

// Return the outputs of any operator of the registry; an undefined tensor (no storage) stands for an input that is left out.
// Inputs may be strided views; results are new and contiguous. Throws Error (shape, dtype, unsupported, model),
// and WorkStopped.
std::vector<Tensor> evaluate(const OpDef& op, std::span<const Tensor> inputs, const Attributes& attributes, int outputs,
                             const Table& table);
// The same for an operator with one output, by a name that exists.
Tensor evaluate_one(std::string_view op, std::span<const Tensor> inputs, const Attributes& attributes = {});
// Throw Error (model) where inputs are too few or too many, or a required one is left out.
void check_inputs(const OpDef& op, std::span<const Tensor> inputs);

// Return the tensor itself where it is contiguous, else a contiguous copy.
Tensor contiguous(const Tensor& tensor);
// Copy a tensor's elements into another of the same dtype that it broadcasts to; overlapping storage is copied first.
// Throws Error (shape, dtype) where they do not fit, or where `to` is read-only.
void assign(const Tensor& from, const Tensor& to);
Tensor cast(const Tensor& tensor, DType dtype);

}  // namespace walle
