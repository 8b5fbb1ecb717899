// Fused composites: kernels that compute a composite operator in one step. The decomposition stays what the operator means; a
// plan takes the step instead where it applies, and tests hold the two together.
#pragma once
#include <span>
#include <string_view>

#include "atomic/atomic.h"

namespace walle {

// A composite that is computed element by element, as its kernel takes it (see MapOp).
struct Map {
  MapOp op;
  double a = 0, b = 0;
};

struct Fused {
  std::string_view name;  // of the composite
  // Whether the step computes this: its one output is then of the first operand's type and shape.
  bool (*applies)(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
  StepFn make;
  // Of one that goes element by element, with one operand, and so is the same in any layout; null for others.
  Map (*map)(const Attributes& attributes) = nullptr;

  bool is_map() const noexcept { return map != nullptr; }
};
// In alphabetical order.
std::span<const Fused> fused_composites() noexcept;

// A backend has kernels for all of them, or for none.
inline bool has_fused_kernels(const Table& table) noexcept { return table.softmax != nullptr; }

bool map_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
bool gelu_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
Map elu_map(const Attributes& attributes);
Map gelu_map(const Attributes& attributes);
Map hard_sigmoid_map(const Attributes& attributes);
Map hard_swish_map(const Attributes& attributes);
Map leaky_relu_map(const Attributes& attributes);
Map mish_map(const Attributes& attributes);
Map swish_map(const Attributes& attributes);
std::unique_ptr<Step> make_map(const StepRequest& request, Map map);
bool prelu_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
std::unique_ptr<Step> make_prelu(const StepRequest& request);

bool softmax_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
// Three operands: scores, one number that they are multiplied by (or divided, where the attribute `divides` is 1), and a mask
// that is added, over the last axis; each of the latter two may be absent. See plan/fuse_softmax.cpp.
std::unique_ptr<Step> make_softmax(const StepRequest& request);
std::unique_ptr<Step> make_log_softmax(const StepRequest& request);
bool norm_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table);
std::unique_ptr<Step> make_layer_norm(const StepRequest& request);
std::unique_ptr<Step> make_rms_norm(const StepRequest& request);

}  // namespace walle
