// The operator registry: every operator of the engine in one of the paper's four categories (§4.1). It joins the lists of
// kernels/kernels.inc, atomic/atomic.cpp, operators/data/data.cpp, geometry/transform/transform.cpp and
// geometry/composite/composite.cpp, and adds shape inference of atomic operators.
#pragma once
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "atomic/atomic.h"
#include "atomic/fused.h"
#include "geometry/composite/composite.h"
#include "geometry/transform/transform.h"
#include "kernels/table.h"

namespace walle {

// The paper's four, and sequence operators, whose values (sequences and optionals) are not tensors and exist in a module only.
enum class Category : std::uint8_t { atomic, transform, composite, control_flow, sequence };
std::string_view category_name(Category category) noexcept;

// What the engine runs an operator by: one struct for each kind.

// Atomic, with kernels in the list of kernels.inc; `code` is the operator's number in its family (UnaryOp, BinaryOp, ...).
enum class Family : std::uint8_t { unary, test, part, binary, compare, select, reduce, mean, arg, matmul };
// Whether 16-bit floats are computed in float32 as a whole, not kernel by kernel.
constexpr bool widens(Family family) noexcept {
  return family == Family::reduce || family == Family::mean || family == Family::matmul;
}
struct ListedKernel {
  Family family;
  std::uint8_t code = 0;

  bool reduces() const noexcept { return family == Family::reduce || family == Family::mean || family == Family::arg; }
};

// Atomic, with its own inference and step (atomic/atomic.cpp).
struct OwnKernel {
  InferFn infer;
  StepFn make_step;
};

// Atomic, with output shapes that depend on data: computes them at once from values. Inputs are contiguous; an undefined tensor
// is an absent one.
using DataFn = std::vector<Tensor> (*)(std::span<const Tensor> inputs, const Attributes& attributes, int outputs);
struct DataDependent {
  DataFn compute;
};

// A transform: regions; where they depend on values that are known only at run time, operators (null: it has no such form).
struct TransformRule {
  TransformFn make;
  RunTimeFn at_run_time;
};

// A composite: its decomposition, the operators that it decomposes to, and the kernel that plans take where it applies (or null).
struct CompositeRule {
  CompositeFn decompose;
  std::span<const std::string_view> parts;
  const Fused* fused;
};

// Run by a module (run/flow.cpp, run/sequence.cpp).
struct ControlFlow {};
struct SequenceRule {};

// The gradients of a value by others, of all operators between them (plan/differentiate.h). A session's graph alone has it.
struct Differentiation {};

using OpKind = std::variant<ListedKernel, OwnKernel, DataDependent, TransformRule, CompositeRule, ControlFlow, SequenceRule,
                            Differentiation>;

// The visitor of an OpKind that is made of one lambda for each kind.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

struct OpDef {
  std::string_view name;  // ONNX's where ONNX has the operator
  int min_inputs, max_inputs;
  OpKind kind;
  std::vector<std::string_view> attributes{};  // those that it knows (operators/known_attributes.cpp)

  template <class Kind>
  const Kind* as() const noexcept {
    return std::get_if<Kind>(&kind);
  }
  Category category() const noexcept;
  bool is(Family family) const noexcept {
    const auto* listed = as<ListedKernel>();
    return listed != nullptr && listed->family == family;
  }
  bool reduces() const noexcept {
    const auto* listed = as<ListedKernel>();
    return listed != nullptr && listed->reduces();
  }
  // The kernel that computes a composite in one step, or null.
  const Fused* fused() const noexcept {
    const auto* composite = as<CompositeRule>();
    return composite == nullptr ? nullptr : composite->fused;
  }
  // Runs in a module only: its outputs, or their shapes, are not known before it has run.
  bool module_only() const noexcept {
    return as<DataDependent>() != nullptr || as<ControlFlow>() != nullptr || as<SequenceRule>() != nullptr;
  }
};

struct DataOp {
  std::string_view name;
  int min_inputs, max_inputs;
  DataFn compute;
};
// The operators whose output shapes depend on data, in alphabetical order (operators/data/data.cpp).
std::span<const DataOp> data_operators() noexcept;

// All operators, in alphabetical order.
std::span<const OpDef> operators();
// Return the operator of that name; null where it is unknown.
const OpDef* find_operator(std::string_view name);

// Throw Error (unsupported) where a node gives the operator an attribute that it does not know; `node` may be empty.
void check_known(const OpDef& op, std::string_view attribute, std::string_view node = {});

// Throw Error (dtype) where an operand is complex and the operator, one with its own kernel or a composite, takes real
// numbers only.
void refuse_complex(const OpDef& op, std::span<const Operand> operands);
// Return the output of an atomic operator. Throws Error (shape, dtype, model, unsupported) for operands that do not fit.
TensorType infer_atomic(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes);
// Return the axes that a reducing operator reduces, ascending and distinct; empty where nothing is reduced.
std::vector<std::size_t> reduced_axes(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes);
// Return whether an atomic operator of kernels.inc takes operands of this dtype.
bool computes(const OpDef& op, DType dtype) noexcept;

}  // namespace walle
