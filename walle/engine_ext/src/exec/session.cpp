#include "exec/session.h"

#include <algorithm>
#include <chrono>

#include "core/raster.h"

namespace walle {

namespace {

std::shared_ptr<Plan> make_plan(const Graph& graph, std::vector<Dims> shapes, const Table& table) {
  const auto begin = std::chrono::steady_clock::now();
  Program program = lower(graph, shapes, table);
  merge(program);
  const auto inputs = static_cast<int>(graph.inputs.size());
  const MemoryPlan memory = plan_memory(program, inputs);

  auto plan = std::make_shared<Plan>();
  plan->input_shapes = std::move(shapes);
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

bool same_shapes(const Plan& plan, std::span<const Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (plan.input_shapes[i] != inputs[i].shape()) return false;
  return true;
}

}  // namespace

Session::Session(std::shared_ptr<const Graph> graph, const Table& table) : graph_(std::move(graph)), table_(table) {
  std::vector<Dims> shapes;
  for (const int input : graph_->inputs) shapes.push_back(graph_->values[static_cast<std::size_t>(input)].shape);
  const bool known = std::all_of(shapes.begin(), shapes.end(),
                                 [](const Dims& shape) { return std::find(shape.begin(), shape.end(), -1) == shape.end(); });
  if (known) plans_.push_front(make_plan(*graph_, std::move(shapes), table_));
}

std::shared_ptr<Plan> Session::plan_for(std::span<const Tensor> inputs) {
  for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
    if (!same_shapes(**plan, inputs)) continue;
    plans_.splice(plans_.begin(), plans_, plan);
    return plans_.front();
  }
  std::vector<Dims> shapes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph_->values[static_cast<std::size_t>(graph_->inputs[i])];
    const Dims& shape = inputs[i].shape();
    bool fits = shape.size() == value.shape.size();
    for (std::size_t axis = 0; fits && axis < shape.size(); ++axis)
      fits = value.shape[axis] == -1 || value.shape[axis] == shape[axis];
    if (!fits)
      throw Error(ErrorKind::shape,
                  "input '" + value.name + "' has shape " + to_string(shape) + ", the model takes " + to_string(value.shape) +
                      (std::find(value.shape.begin(), value.shape.end(), -1) != value.shape.end() ? " (-1: any)" : ""));
    shapes.push_back(shape);
  }
  plans_.push_front(make_plan(*graph_, std::move(shapes), table_));
  if (plans_.size() > kPlans) plans_.pop_back();
  return plans_.front();
}

std::vector<Tensor> Session::run(std::span<const Tensor> inputs) {
  if (inputs.size() != graph_->inputs.size())
    throw Error(ErrorKind::model,
                "the model takes " + std::to_string(graph_->inputs.size()) + " inputs, not " + std::to_string(inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph_->values[static_cast<std::size_t>(graph_->inputs[i])];
    if (inputs[i].dtype() != value.dtype)
      throw Error(ErrorKind::dtype, "input '" + value.name + "' is " + std::string(dtype_name(inputs[i].dtype())) +
                                        ", the model takes " + std::string(dtype_name(value.dtype)) + "; convert it with astype");
    if (!inputs[i].contiguous()) throw Error(ErrorKind::shape, "input '" + value.name + "' is not contiguous");
  }
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Plan> plan = plan_for(inputs);
  std::vector<Tensor> outputs;
  outputs.reserve(plan->outputs.size());
  std::size_t base = MemoryPlan::input_base(0);
  for (const Tensor& input : inputs) plan->bases[base++] = input.raw();
  for (const TensorType& type : plan->outputs) {
    outputs.push_back(Tensor::empty(type.dtype, type.shape));
    plan->bases[base++] = outputs.back().raw();
  }
  std::vector<std::byte*> addresses(plan->max_inputs);
  run_ops(*plan, plan->bases, addresses.data());
  return outputs;
}

std::shared_ptr<const Plan> Session::plan() const {
  const std::lock_guard lock(mutex_);
  return plans_.empty() ? nullptr : plans_.front();
}

}  // namespace walle
