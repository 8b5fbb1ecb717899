#include "plan/plan.h"

#include <algorithm>
#include <chrono>

#include "atomic/epilogue_kernel.h"
#include "atomic/fused.h"
#include "atomic/raster_step.h"
#include "core/stop.h"
#include "kernels/bfloat16.h"

namespace walle {

namespace {

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

using Costs = std::vector<std::pair<std::string_view, double>>;

// Whether the backend has a kernel for every composite that was not decomposed, and for every epilogue: passes before the choice
// of a backend make only what the target's table has.
bool can_run(const Program& program, const Table& table) {
  return std::all_of(program.ops.begin(), program.ops.end(), [&](const ProgramOp& op) {
    if (op.is_raster()) return true;
    if (find_fused(op.op->name) != nullptr && !has_fused_kernels(table)) return false;
    return !takes_epilogue(op.op->name) ||
           EpilogueKernel::exists(op.epilogue, table, program.values[static_cast<std::size_t>(op.output)].dtype);
  });
}

// Return the costs of the backends to choose from, the one with the fewest instructions first.
Costs costs(const Program& program, const Target& target) {
  Costs found;
  if (target.searched)
    for (const Backend& backend : backends())
      if (backend.available && is_exact(backend) && can_run(program, kernels(backend.name)))
        found.emplace_back(backend.name, predict_us(program, kernels(backend.name)));
  if (found.empty()) found.emplace_back(target.table->name, predict_us(program, *target.table));
  return found;
}

double least(const Costs& costs) {
  double us = costs.front().second;
  for (const auto& cost : costs) us = std::min(us, cost.second);
  return us;
}

}  // namespace

std::shared_ptr<const Plan> make_plan(const Graph& graph, std::vector<TensorType> types, std::vector<Tensor> given,
                                      const Target& target, bool merging) {
  const auto begin = std::chrono::steady_clock::now();
  auto plan = std::make_shared<Plan>();
  Program program = lower(graph, types, given, *target.table);
  if (merging) {
    merge(program);
    merge_operators(program);
  } else {
    remove_unread(program);
  }
  fuse_chains(program, *target.table);
  fuse_softmax(program);
  fuse_gates(program, *target.table);
  fuse(program);
  const auto searching = std::chrono::steady_clock::now();
  plan->table = target.table;
  plan->costs = costs(program, target);
  for (const auto& [backend, us] : plan->costs)
    if (us == least(plan->costs)) plan->table = &kernels(backend);
  const Table& table = *plan->table;
  plan->search_ms = since(searching) + choose(program, table, *graph.packed, target.forced);
  if (merging) merge(program);
  for (const ProgramOp& op : program.ops) {
    try {
      for (const int input : op.inputs)
        if (input >= 0) program.values[static_cast<std::size_t>(input)].compute_scaled(*graph.packed);
    } catch (const std::bad_alloc& error) {
      throw OutOfMemory(op.title(), error);
    }
  }
  const auto inputs = static_cast<int>(graph.inputs.size());
  const MemoryPlan memory = plan_memory(program, inputs);

  plan->inputs = std::move(types);
  plan->given = std::move(given);
  plan->rasters_made = program.rasters_made;
  std::size_t scratch = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    const ProgramValue& result = program.values[static_cast<std::size_t>(op.output)];
    if (memory.skipped[i]) continue;
    throw_if_stopped();
    PlannedOp planned;
    planned.node = op.name;
    planned.output = memory.places[static_cast<std::size_t>(op.output)];
    std::vector<Layout> layouts;
    for (const int input : op.inputs) {
      if (input < 0) {
        planned.inputs.push_back({});
        layouts.push_back({DType::f32, {}, {}, nullptr, true});
        continue;
      }
      const ProgramValue& value = program.values[static_cast<std::size_t>(input)];
      planned.inputs.push_back(memory.places[static_cast<std::size_t>(input)]);
      // Constants of a model and all results are row-major.
      layouts.push_back(
          {value.dtype, value.shape, contiguous_strides(value.shape), value.is_constant() ? &value.constant : nullptr, false});
    }
    try {
      if (op.is_raster()) {
        planned.op = "Raster";
        planned.regions = static_cast<int>(op.regions.size());
        planned.step = make_raster_step(op.regions, layouts, {result.dtype, result.shape}, table);
        ++plan->rasters_left;
      } else {
        planned.op = op.op->name;
        planned.step = op.step;
        if (planned.step == nullptr)
          planned.step = make_step(*op.op, layouts, {result.dtype, result.shape}, op.axes, op.attributes, table, op.epilogue,
                                   op.score_scale);
      }
    } catch (const std::bad_alloc& error) {
      throw OutOfMemory(op.title(), error);
    }
    planned.algorithm = planned.step->algorithm();
    const auto members = static_cast<std::size_t>(planned.step->scratch_each() ? target.threads : 1);
    scratch = std::max(scratch, planned.step->scratch_bytes() * members);
    planned.candidates = op.candidates;
    planned.predicted_us = op.predicted_us;
    plan->max_inputs = std::max(plan->max_inputs, planned.inputs.size());
    const std::size_t result_bytes = static_cast<std::size_t>(element_count(result.shape)) * item_size(result.dtype);
    if (planned.output.base == MemoryPlan::kArena && result_bytes > plan->largest_bytes) {
      plan->largest = plan->ops.size();
      plan->largest_bytes = result_bytes;
    }
    plan->ops.push_back(std::move(planned));
  }
  for (const int output : program.outputs) {
    const ProgramValue& value = program.values[static_cast<std::size_t>(output)];
    plan->outputs.push_back({value.dtype, value.shape});
  }
  plan->scratch_offset = memory.arena_bytes;
  plan->arena_bytes = memory.arena_bytes + scratch;
  plan->bases.assign(static_cast<std::size_t>(MemoryPlan::input_base(inputs)) + program.outputs.size(), nullptr);
  for (const int value : memory.constants) {
    plan->constants.push_back(program.values[static_cast<std::size_t>(value)].constant);
    plan->bases.push_back(plan->constants.back().raw());
  }
  plan->plan_ms = since(begin);
  return plan;
}

}  // namespace walle
