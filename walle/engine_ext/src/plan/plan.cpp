#include "plan/plan.h"

#include "core/work_context.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "atomic/raster_step.h"
#include "kernels/bfloat16.h"

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
  const Tenant* tenant = tenant_here().get();
  Clock::time_point begin = us != nullptr ? Clock::now() : Clock::time_point();
  for (const PlannedOp& op : plan.ops) {
    if (tenant != nullptr && tenant->stopping.load(std::memory_order_relaxed)) return Fault{&op, nullptr};
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
  if (tenant != nullptr && !plan.ops.empty() && tenant->stopping.load(std::memory_order_relaxed))
    return Fault{&plan.ops.back(), nullptr};  // what it gave may not be whole
  return std::nullopt;
}

bool fits(const Plan& plan, std::span<const Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (plan.inputs[i].dtype != inputs[i].dtype() || plan.inputs[i].shape != inputs[i].shape()) return false;
    if (plan.given.empty() || plan.given[i].storage() == nullptr) continue;
    const auto bytes = static_cast<std::size_t>(inputs[i].size()) * item_size(inputs[i].dtype());
    if (bytes > 0 && std::memcmp(plan.given[i].raw(), inputs[i].raw(), bytes) != 0) return false;
  }
  return true;
}

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

using Costs = std::vector<std::pair<std::string_view, double>>;

// Of the backends that the target leaves open, the plainest first.
Costs costs(const Program& program, const Target& target) {
  if (!target.searched) return {{target.table->name, predict_us(program, *target.table)}};
  // A program that has composites whole was made for backends with kernels for them.
  const bool fused = std::any_of(program.ops.begin(), program.ops.end(),
                                 [](const ProgramOp& op) { return !op.is_raster() && op.op->fused() != nullptr; });
  Costs found;
  for (const Backend& backend : backends())
    if (backend.available && is_exact(backend) && (!fused || has_fused_kernels(kernels(backend.name))))
      found.emplace_back(backend.name, predict_us(program, kernels(backend.name)));
  return found;
}

double least(const Costs& costs) {
  double us = costs.front().second;
  for (const auto& cost : costs) us = std::min(us, cost.second);
  return us;
}

}  // namespace

std::shared_ptr<Plan> make_plan(const Graph& graph, std::vector<TensorType> types, std::vector<Tensor> given,
                                const Target& target, bool merging) {
  const auto begin = std::chrono::steady_clock::now();
  auto plan = std::make_shared<Plan>();
  Program program = lower(graph, types, given, *target.table);
  if (merging)
    merge(program);
  else
    remove_unread(program);
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
      // Constants of a model lie row-major, and so does everything that is computed.
      layouts.push_back(
          {value.dtype, value.shape, contiguous_strides(value.shape), value.is_constant() ? &value.constant : nullptr, false});
    }
    if (op.is_raster()) {
      planned.op = "Raster";
      planned.regions = static_cast<int>(op.regions.size());
      planned.step = make_raster_step(op.regions, layouts, {result.dtype, result.shape}, table);
      ++plan->rasters_left;
    } else {
      planned.op = op.op->name;
      planned.step = op.step;
      if (planned.step == nullptr)
        planned.step = make_step(*op.op, layouts, {result.dtype, result.shape}, op.axes, op.attributes, table);
    }
    planned.algorithm = planned.step->algorithm();
    const auto members = static_cast<std::size_t>(planned.step->scratch_each() ? target.threads : 1);
    scratch = std::max(scratch, planned.step->scratch_bytes() * members);
    planned.candidates = op.candidates;
    planned.predicted_us = op.predicted_us;
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
  plan->plan_ms = since(begin);
  return plan;
}

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

std::shared_ptr<Plan> Plans::find(std::span<const Tensor> inputs) {
  for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
    if (!fits(**plan, inputs)) continue;
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
