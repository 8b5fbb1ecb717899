// Fused composites: kernels that compute a composite operator in one step. The decomposition stays what the operator means; a
// plan takes the step instead where it applies, and tests hold the two together.
#pragma once
#include <span>
#include <string_view>

#include "atomic/atomic.h"

namespace walle {

struct Fused {
  std::string_view name;  // of the composite
  // Whether the step computes this: its one output is then of the first operand's type and shape.
  bool (*applies)(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
  StepFn make;

  // Element by element, with one operand: the same in any layout.
  bool is_map() const noexcept;
};
// In alphabetical order.
std::span<const Fused> fused_composites() noexcept;

// A backend has kernels for all of them, or for none.
inline bool has_fused_kernels(const Table& table) noexcept { return table.softmax != nullptr; }

bool map_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
bool gelu_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
std::unique_ptr<Step> make_gelu(const StepRequest& request);
std::unique_ptr<Step> make_hard_sigmoid(const StepRequest& request);
std::unique_ptr<Step> make_hard_swish(const StepRequest& request);
std::unique_ptr<Step> make_leaky_relu(const StepRequest& request);
std::unique_ptr<Step> make_swish(const StepRequest& request);
bool prelu_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
std::unique_ptr<Step> make_prelu(const StepRequest& request);

bool softmax_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
// Three operands: scores, one number that they are multiplied by (or divided, where the attribute `divides` is 1), and a mask
// that is added, over the last axis; each of the latter two may be absent. See exec/fuse_softmax.cpp.
std::unique_ptr<Step> make_softmax(const StepRequest& request);
std::unique_ptr<Step> make_log_softmax(const StepRequest& request);
bool norm_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
std::unique_ptr<Step> make_layer_norm(const StepRequest& request);
std::unique_ptr<Step> make_rms_norm(const StepRequest& request);

}  // namespace walle
