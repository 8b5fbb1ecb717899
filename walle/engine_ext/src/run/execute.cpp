#include "run/execute.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/fault.h"
#include "core/stop.h"

namespace walle {

namespace {

struct Fault {
  const PlannedOp* op;
  const char* what;
};

// The kernels, one after the other, up to the first that finds fault with a value or is stopped. The workspace has the addresses
// of the plan's bases.
std::optional<Fault> run_ops(const Plan& plan, Workspace& workspace, StopFlag* stop, double* us) noexcept {
  using Clock = std::chrono::steady_clock;
  std::byte* scratch = workspace.arena() + plan.scratch_offset;
  std::byte* const* bases = workspace.bases.data();
  std::byte** addresses = workspace.addresses.data();
  const FaultScope faults;
  Clock::time_point begin = us != nullptr ? Clock::now() : Clock::time_point();
  for (const PlannedOp& op : plan.ops) {
    if (stop != nullptr && stop->poll()) return std::nullopt;
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      addresses[i] = op.inputs[i].base < 0 ? nullptr : bases[static_cast<std::size_t>(op.inputs[i].base)] + op.inputs[i].offset;
    std::byte* output = bases[static_cast<std::size_t>(op.output.base)] + op.output.offset;
    op.step->run_by(workspace.team, addresses, output, scratch);
    if (const char* what = faults.what()) return Fault{&op, what};
    if (us == nullptr) continue;
    const Clock::time_point end = Clock::now();
    *us++ = std::chrono::duration<double, std::micro>(end - begin).count();
    begin = end;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Tensor> run_plan(const Plan& plan, std::span<const Tensor> inputs, Workspace& workspace, double* us) {
  std::vector<Tensor> outputs;
  outputs.reserve(plan.outputs.size());
  workspace.reserve(plan);
  workspace.bases.assign(plan.bases.begin(), plan.bases.end());
  workspace.addresses.resize(std::max(workspace.addresses.size(), plan.max_inputs));
  workspace.bases[MemoryPlan::kArena] = workspace.arena();
  std::size_t base = MemoryPlan::input_base(0);
  for (const Tensor& input : inputs) workspace.bases[base++] = input.raw();
  for (const TensorType& type : plan.outputs) {
    try {
      outputs.push_back(Tensor::empty(type.dtype, type.shape));
    } catch (const std::bad_alloc& error) {
      const auto writes = [&](const PlannedOp& op) { return static_cast<std::size_t>(op.output.base) == base; };
      const auto op = std::find_if(plan.ops.begin(), plan.ops.end(), writes);
      if (op == plan.ops.end()) throw;
      throw OutOfMemory(op->title(), error);
    }
    workspace.bases[base++] = outputs.back().raw();
  }
  const auto fault = run_ops(plan, workspace, current_stop(), us);
  throw_if_stopped();  // what the kernels gave may not be whole
  if (fault) throw Error(ErrorKind::shape, fault->op->title() + ": " + fault->what);
  return outputs;
}

}  // namespace walle
