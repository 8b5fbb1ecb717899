// The step of any atomic operator, or of a composite with its own kernel.
#pragma once
#include <memory>
#include <span>

#include "operators/op.h"

namespace walle {

// `result` is what infer_atomic returned. `axes` are the reduced ones, for operators that reduce.
std::unique_ptr<HostStep> make_step(const OpDef& op, std::span<const Layout> inputs, const TensorType& result,
                                    std::span<const std::size_t> axes, const Attributes& attributes, const Table& table,
                                    const Epilogue& epilogue = {}, ScoreScale score_scale = {});

}  // namespace walle
