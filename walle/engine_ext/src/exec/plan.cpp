#include "exec/plan.h"

#include <algorithm>
#include <chrono>

#include "core/raster.h"

namespace walle {

namespace {

// The kernels, one after the other. Addresses of an op's inputs are put together in `addresses`.
void run_ops(const Plan& plan, std::span<std::byte* const> bases, std::byte** addresses) noexcept {
  std::byte* scratch = plan.arena->data() + plan.scratch_offset;
  for (const PlannedOp& op : plan.ops) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      addresses[i] = bases[static_cast<std::size_t>(op.inputs[i].base)] + op.inputs[i].offset;
    std::byte* output = bases[static_cast<std::size_t>(op.output.base)] + op.output.offset;
    if (op.step != nullptr)
      op.step->run(addresses, output, scratch);
    else
      for (const Region& region : op.regions) raster(region, addresses[static_cast<std::size_t>(region.source)], output, op.item);
  }
}

bool same_types(const Plan& plan, std::span<const Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (plan.inputs[i].dtype != inputs[i].dtype() || plan.inputs[i].shape != inputs[i].shape()) return false;
  return true;
}

}  // namespace

std::shared_ptr<Plan> make_plan(const Graph& graph, std::vector<TensorType> types, const Table& table) {
  const auto begin = std::chrono::steady_clock::now();
  Program program = lower(graph, types, table);
  merge(program);
  const auto inputs = static_cast<int>(graph.inputs.size());
  const MemoryPlan memory = plan_memory(program, inputs);

  auto plan = std::make_shared<Plan>();
  plan->inputs = std::move(types);
  plan->rasters_made = program.rasters_made;
  std::size_t scratch = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    const ProgramValue& result = program.values[static_cast<std::size_t>(op.output)];
    if (memory.skipped[i]) continue;
    PlannedOp planned;
    planned.node = op.name;
    planned.output = memory.places[static_cast<std::size_t>(op.output)];
    std::vector<Layout> layouts;
    for (const int input : op.inputs) {
      const ProgramValue& value = program.values[static_cast<std::size_t>(input)];
      planned.inputs.push_back(memory.places[static_cast<std::size_t>(input)]);
      // Constants of a model lie row-major, and so does everything that is computed.
      layouts.push_back({value.dtype, value.shape, contiguous_strides(value.shape)});
    }
    if (op.is_raster()) {
      planned.op = "Raster";
      planned.regions = op.regions;
      planned.item = item_size(result.dtype);
      ++plan->rasters_left;
    } else {
      planned.op = op.op->name;
      planned.step = make_step(*op.op, layouts, {result.dtype, result.shape}, op.axes, table);
      scratch = std::max(scratch, planned.step->scratch_bytes());
    }
    plan->max_inputs = std::max(plan->max_inputs, planned.inputs.size());
    plan->ops.push_back(std::move(planned));
  }
  for (const int output : program.outputs) {
    const ProgramValue& value = program.values[static_cast<std::size_t>(output)];
    plan->outputs.push_back({value.dtype, value.shape});
  }
  plan->scratch_offset = memory.arena_bytes;
  plan->arena = Storage::allocate(memory.arena_bytes + scratch);
  plan->bases.assign(static_cast<std::size_t>(MemoryPlan::input_base(inputs)) + program.outputs.size(), nullptr);
  plan->bases[MemoryPlan::kArena] = plan->arena->data();
  for (const int value : memory.constants) {
    plan->constants.push_back(program.values[static_cast<std::size_t>(value)].constant);
    plan->bases.push_back(plan->constants.back().raw());
  }
  plan->plan_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return plan;
}

std::vector<Tensor> run_plan(Plan& plan, std::span<const Tensor> inputs) {
  std::vector<Tensor> outputs;
  outputs.reserve(plan.outputs.size());
  std::size_t base = MemoryPlan::input_base(0);
  for (const Tensor& input : inputs) plan.bases[base++] = input.raw();
  for (const TensorType& type : plan.outputs) {
    outputs.push_back(Tensor::empty(type.dtype, type.shape));
    plan.bases[base++] = outputs.back().raw();
  }
  std::vector<std::byte*> addresses(plan.max_inputs);
  run_ops(plan, plan.bases, addresses.data());
  return outputs;
}

std::shared_ptr<Plan> Plans::find(std::span<const Tensor> inputs) {
  for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
    if (!same_types(**plan, inputs)) continue;
    plans_.splice(plans_.begin(), plans_, plan);
    return plans_.front();
  }
  return nullptr;
}

void Plans::add(std::shared_ptr<Plan> plan) {
  plans_.push_front(std::move(plan));
  if (plans_.size() > kPlans) plans_.pop_back();
}

}  // namespace walle
