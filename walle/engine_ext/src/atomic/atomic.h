// Atomic operators outside the list of kernels.inc (convolution, pooling, indexed movements, ...): each infers the type and shape
// of its result and makes the step that computes it. Each is defined in the file of its family.
#pragma once
#include <memory>
#include <span>

#include "atomic/epilogue.h"
#include "core/fault.h"
#include "core/step.h"
#include "core/team.h"
#include "geometry/operand.h"
#include "kernels/table.h"

namespace walle {

struct TensorType {
  DType dtype = DType::f32;
  Dims shape;
};

struct Layout {
  DType dtype = DType::f32;
  Dims shape, strides;               // in elements
  const Tensor* constant = nullptr;  // value that is the same in every run, or null; valid while the step is made
  bool absent = false;               // an optional input that was left out; its address is null
};

// A step of the host: one atomic operator prepared for operands of known types, shapes and strides, on one instruction set.
// walle.np makes one and runs it.
class HostStep : public Step {
 public:
  // `inputs` are the addresses of the operands' first elements, `output` is contiguous, `scratch` aligned to 64.
  virtual void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept = 0;
  // The same by a team of threads; a step that cannot be split runs on the caller's.
  virtual void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept {
    run(inputs, output, scratch);
  }
  std::size_t scratch_bytes(int threads = 1) const noexcept final {
    return scratch_bytes_ * static_cast<std::size_t>(scratch_each() ? threads : 1);
  }
  // Whether each thread of a team needs its own scratch_bytes(), one after the other, or all of them share them.
  virtual bool scratch_each() const noexcept { return false; }

 protected:
  // Reports to the run's FaultScope a value of an operand that shape inference cannot check.
  static void fail(const char* what) noexcept { FaultScope::report(what); }

  std::size_t scratch_bytes_ = 0;
};

// A step that a team can share.
class SharedStep : public HostStep {
 public:
  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept final {
    Team alone;
    run_by(alone, inputs, output, scratch);
  }
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override = 0;
};

// Operands are contiguous, in sessions and in walle.np.
struct StepRequest {
  std::span<const Layout> inputs;
  const TensorType& result;
  const Attributes& attributes;
  const Table& table;
  Epilogue epilogue = {};  // used by Conv and Linear
};

// Throws Error (shape, dtype, model, unsupported) for operands and attributes that do not fit.
using InferFn = TensorType (*)(std::span<const Operand> operands, const Attributes& attributes);
// `result` of the request is what the InferFn returned.
using StepFn = std::unique_ptr<HostStep> (*)(const StepRequest& request);

struct Atomic {
  std::string_view name;
  int min_inputs, max_inputs;
  InferFn infer;
  StepFn make;
};
// All atomic operators with their own kernels, in alphabetical order.
std::span<const Atomic> atomics() noexcept;

}  // namespace walle
