// The operator registry: every operator of the engine in one of the paper's four categories (§4.1). The lists are those of
// kernels/kernels.inc, atomic/atomic.cpp, geometry/transform/transform.cpp and geometry/composite/composite.cpp; this puts them
// together and adds shape inference.
#pragma once
#include <span>
#include <string_view>

#include "atomic/atomic.h"
#include "atomic/fused.h"
#include "geometry/composite/composite.h"
#include "geometry/transform/transform.h"
#include "kernels/table.h"

namespace walle {

// Beside the four: sequence operators, whose values (sequences and optionals) are no tensors and live in a module only.
enum class Category : std::uint8_t { atomic, transform, composite, control_flow, sequence };
std::string_view category_name(Category category) noexcept;

// Which kind of kernel an atomic operator has; `code` of the definition is the operator's number within it.
enum class Family : std::uint8_t { none, unary, test, binary, compare, select, reduce, mean, arg, matmul };

// Computes at once from values, for atomic operators whose output shapes depend on data. Inputs are
// contiguous; an undefined tensor is an absent one.
using DataFn = std::vector<Tensor> (*)(std::span<const Tensor> inputs, const Attributes& attributes, int outputs);

struct OpDef {
  std::string_view name;  // ONNX's where ONNX has the operator
  Category category = Category::atomic;
  int min_inputs = 1, max_inputs = 1;
  Family family = Family::none;
  std::uint8_t code = 0;
  TransformFn transform = nullptr;
  CompositeFn decompose = nullptr;  // of a transform: what it is where its regions hang on values known only at run time
  DataFn data = nullptr;
  std::span<const std::string_view> decomposes_to{};
  InferFn infer = nullptr;  // of an atomic operator with a kernel of its own shape
  StepFn make_step = nullptr;
  const Fused* fused = nullptr;  // of a composite: the kernel that plans take for it where it applies

  // Runs in a module only: its outputs, or their shapes, are known no sooner than it has run.
  bool module_only() const noexcept {
    return data != nullptr || category == Category::control_flow || category == Category::sequence;
  }
  bool reduces() const noexcept { return family == Family::reduce || family == Family::mean || family == Family::arg; }
};

struct DataOp {
  std::string_view name;
  int min_inputs, max_inputs;
  DataFn compute;
};
// The operators whose output shapes depend on data, in alphabetical order (operators/data/data.cpp).
std::span<const DataOp> data_operators() noexcept;

// In alphabetical order.
std::span<const OpDef> operators();
// Null where there is none of that name.
const OpDef* find_operator(std::string_view name);

// The output of an atomic operator. Throws Error (shape, dtype, model, unsupported) for operands that do not fit.
TensorType infer_atomic(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes);
// The axes a reducing operator goes over, ascending and distinct. Empty where nothing is reduced.
std::vector<std::size_t> reduced_axes(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes);
// Whether an atomic operator of kernels.inc takes operands of this dtype.
bool computes(const OpDef& op, DType dtype) noexcept;

}  // namespace walle
