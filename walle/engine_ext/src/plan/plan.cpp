#include "plan/plan.h"

#include <algorithm>
#include <chrono>

#include "core/stop.h"

namespace walle {

namespace {

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// A kernel set, and what search chose on it.
struct Weighed {
  const KernelSet* kernels;
  std::unique_ptr<const PrimitiveSelection> selection;
};

// Return the kernel sets to choose from. Those that lack a kernel for what the target's set has fused are left out.
std::vector<Weighed> weigh_sets(const Program& program, const Target& target) {
  std::vector<Weighed> found;
  if (target.searched)
    for (const KernelSet* kernels : target.device().kernel_sets())
      if (kernels->can_run(program)) found.push_back({kernels, kernels->select(program, {})});
  if (found.empty()) found.push_back({target.kernels, target.kernels->select(program, target.forced)});
  return found;
}

// Return the set that costs least (eq. 2). Of sets that cost about the same the last, which has the widest vectors: a slightly
// different calibration then gives the same plan. Costs of a performance model are compared with one another only.
Weighed& cheapest(std::vector<Weighed>& sets) {
  constexpr double kSame = 1.03;
  const bool learned = std::all_of(sets.begin(), sets.end(), [](const Weighed& set) { return set.selection->is_learned; });
  const auto cost = [&](const Weighed& set) { return learned ? set.selection->us : set.selection->rates_us; };
  double least = cost(sets.front());
  for (const Weighed& set : sets) least = std::min(least, cost(set));
  return *std::find_if(sets.rbegin(), sets.rend(), [&](const Weighed& set) { return cost(set) <= least * kSame; });
}

std::size_t size_bytes(const TensorType& type) {
  return static_cast<std::size_t>(element_count(type.shape)) * item_size(type.dtype);
}

// Return a constant's memory on the device: its own where steps use it in place, else a copy.
Buffer load(const Device& device, const Tensor& constant) {
  const std::size_t bytes = size_bytes({constant.dtype(), constant.shape()});
  if (device.uses_host_memory()) return {constant.storage(), host_handle(constant.raw()), bytes};
  Buffer copy = device.allocate(bytes);
  device.write(copy, 0, {constant.raw(), bytes});
  return copy;
}

}  // namespace

std::shared_ptr<const Plan> make_plan(const Graph& graph, std::vector<TensorType> types, std::vector<Tensor> given,
                                      const Target& target, bool merging) {
  const auto begin = std::chrono::steady_clock::now();
  auto plan = std::make_shared<Plan>();
  Program program = lower(graph, types, given, *target.kernels);
  if (merging) {
    merge(program);
    merge_operators(program);
  } else {
    remove_unread(program);
  }
  target.kernels->fuse(program);
  const auto searching = std::chrono::steady_clock::now();
  std::vector<Weighed> sets = weigh_sets(program, target);
  Weighed& chosen = cheapest(sets);
  const KernelSet& kernels = *chosen.kernels;
  if (target.searched && !target.forced.empty()) chosen.selection = kernels.select(program, target.forced);
  for (const Weighed& set : sets) plan->costs.emplace_back(set.kernels->name(), set.selection->us);
  plan->kernels = &kernels;
  plan->source = chosen.selection->source;
  plan->search_ms = since(searching);
  kernels.apply(program, *chosen.selection, *graph.packed);
  if (merging) merge(program);
  if (merging && program.differentiated) {
    std::vector<bool> last;
    for (const int input : target.updates.replaced) last.push_back(input >= 0);
    advance(program, last);  // operators come near those that they may be joined with
    kernels.join(program);
    advance(program, last);
    recompute(program);
  }
  const bool has_updates = !target.updates.empty();
  const std::size_t first_update = has_updates ? separate_updates(program, target.updates, types) : program.ops.size();
  for (const ProgramOp& op : program.ops) {
    try {
      for (const int input : op.inputs)
        if (input >= 0) program.values[static_cast<std::size_t>(input)].compute_scaled(*graph.packed);
    } catch (const std::bad_alloc& error) {
      throw OutOfMemory(op.title(), error);
    }
  }
  const auto inputs = static_cast<int>(graph.inputs.size());
  const MemoryPlan memory = plan_memory(program, inputs, kernels.device().alignment(), target.updates);

  plan->inputs = std::move(types);
  plan->given = std::move(given);
  plan->rasters_made = program.rasters_made;
  const std::vector<double> raster_us = kernels.predict_rasters(program);
  std::size_t scratch = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    const ProgramValue& result = program.values[static_cast<std::size_t>(op.output)];
    if (memory.skipped[i]) continue;
    throw_if_stopped();
    PlannedOp planned;
    planned.node = op.name;
    planned.result = {result.dtype, result.shape};
    Command command;
    command.output = memory.places[static_cast<std::size_t>(op.output)];
    std::vector<Layout> layouts;
    for (const int input : op.inputs) {
      if (input < 0) {
        command.inputs.push_back({});
        layouts.push_back({DType::f32, {}, {}, nullptr, true});
        continue;
      }
      const ProgramValue& value = program.values[static_cast<std::size_t>(input)];
      command.inputs.push_back(memory.places[static_cast<std::size_t>(input)]);
      // Constants of a model and all results are row-major.
      layouts.push_back(
          {value.dtype, value.shape, contiguous_strides(value.shape), value.is_constant() ? &value.constant : nullptr, false});
    }
    try {
      command.step = op.step != nullptr ? op.step : kernels.make_step(op, layouts, {result.dtype, result.shape});
    } catch (const std::bad_alloc& error) {
      throw OutOfMemory(op.title(), error);
    }
    planned.op = op.is_raster() ? "Raster" : op.op->name;
    planned.regions = static_cast<int>(op.regions.size());
    if (op.is_raster()) ++plan->rasters_left;
    planned.algorithm = command.step->algorithm();
    scratch = std::max(scratch, command.step->scratch_bytes(target.threads));
    planned.candidates = op.candidates;
    planned.predicted_us = op.is_raster() ? raster_us[i] : op.predicted_us;
    CommandList& list = i < first_update ? plan->commands : plan->updates;
    list.max_inputs = std::max(list.max_inputs, command.inputs.size());
    const std::size_t result_bytes = size_bytes({result.dtype, result.shape});
    if (command.output.buffer == MemoryPlan::kArena && result_bytes > plan->largest_bytes) {
      plan->largest = plan->ops.size();
      plan->largest_bytes = result_bytes;
    }
    list.commands.push_back(std::move(command));
    plan->ops.push_back(std::move(planned));
  }
  for (const int output : program.outputs) {
    const ProgramValue& value = program.values[static_cast<std::size_t>(output)];
    plan->outputs.push_back({value.dtype, value.shape});
  }
  plan->commands.scratch = plan->updates.scratch = {MemoryPlan::kArena, static_cast<std::int64_t>(memory.arena_bytes)};
  plan->replaced = target.updates.replaced;
  plan->condition = target.updates.condition;
  plan->arena_bytes = memory.arena_bytes + scratch;
  plan->buffers.assign(static_cast<std::size_t>(MemoryPlan::input_buffer(inputs)) + program.outputs.size(), BufferHandle{});
  for (const int value : memory.constants) {
    plan->constants.push_back(load(kernels.device(), program.values[static_cast<std::size_t>(value)].constant));
    plan->buffers.push_back(plan->constants.back().handle);
  }
  plan->plan_ms = since(begin);
  return plan;
}

}  // namespace walle
