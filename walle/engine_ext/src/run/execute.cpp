#include "run/execute.h"

#include <chrono>
#include <optional>

#include "core/work_context.h"

namespace walle {

namespace {

struct Fault {
  const PlannedOp* op;
  const char* what;
};

// The kernels, one after the other, up to the first that finds fault with a value. Addresses of an op's inputs are put together
// in `addresses`.
std::optional<Fault> run_ops(const Plan& plan, std::span<std::byte* const> bases, std::byte** addresses, Team& team,
                             double* us) noexcept {
  using Clock = std::chrono::steady_clock;
  std::byte* scratch = plan.arena->data() + plan.scratch_offset;
  const WorkContext* context = current_work_context().get();
  Clock::time_point begin = us != nullptr ? Clock::now() : Clock::time_point();
  for (const PlannedOp& op : plan.ops) {
    if (context != nullptr && context->stopping.load(std::memory_order_relaxed)) return Fault{&op, nullptr};
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      addresses[i] = op.inputs[i].base < 0 ? nullptr : bases[static_cast<std::size_t>(op.inputs[i].base)] + op.inputs[i].offset;
    std::byte* output = bases[static_cast<std::size_t>(op.output.base)] + op.output.offset;
    op.step->run_by(team, addresses, output, scratch);
    if (const char* what = op.step->take_fault()) return Fault{&op, what};
    if (us == nullptr) continue;
    const Clock::time_point end = Clock::now();
    *us++ = std::chrono::duration<double, std::micro>(end - begin).count();
    begin = end;
  }
  if (context != nullptr && !plan.ops.empty() && context->stopping.load(std::memory_order_relaxed))
    return Fault{&plan.ops.back(), nullptr};  // what it gave may not be whole
  return std::nullopt;
}

}  // namespace

std::vector<Tensor> run_plan(Plan& plan, std::span<const Tensor> inputs, Team& team, double* us) {
  std::vector<Tensor> outputs;
  outputs.reserve(plan.outputs.size());
  std::size_t base = MemoryPlan::input_base(0);
  for (const Tensor& input : inputs) plan.bases[base++] = input.raw();
  for (const TensorType& type : plan.outputs) {
    outputs.push_back(Tensor::empty(type.dtype, type.shape));
    plan.bases[base++] = outputs.back().raw();
  }
  std::vector<std::byte*> addresses(plan.max_inputs);
  const auto fault = run_ops(plan, plan.bases, addresses.data(), team, us);
  if (fault && fault->what == nullptr) throw WorkStopped();
  if (fault) throw Error(ErrorKind::shape, "node '" + fault->op->node + "' (" + std::string(fault->op->op) + "): " + fault->what);
  return outputs;
}

}  // namespace walle
