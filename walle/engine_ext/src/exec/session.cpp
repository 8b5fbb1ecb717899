#include "exec/session.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/raster.h"

namespace walle {

namespace {

std::shared_ptr<Plan> make_plan(const Graph& graph, std::vector<Dims> shapes, std::vector<Tensor> given, const Table& table) {
  const auto begin = std::chrono::steady_clock::now();
  Program program = lower(graph, shapes, given, table);
  merge(program);
  const auto inputs = static_cast<int>(graph.inputs.size());
  const MemoryPlan memory = plan_memory(program, inputs);

  auto plan = std::make_shared<Plan>();
  plan->input_shapes = std::move(shapes);
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
      layouts.push_back({value.dtype, value.shape, contiguous_strides(value.shape), value.is_constant() ? &value.constant : nullptr, false});
    }
    if (op.is_raster()) {
      planned.op = "Raster";
      planned.regions = op.regions;
      planned.item = item_size(result.dtype);
      ++plan->rasters_left;
    } else {
      planned.op = op.op->name;
      planned.step = make_step(*op.op, layouts, {result.dtype, result.shape}, op.axes, op.attributes, table);
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

struct Fault {
  const PlannedOp* op;
  const char* what;
};

// The kernels, one after the other, up to the first that finds fault with a value. Addresses of an op's inputs are put together in
// `addresses`.
std::optional<Fault> run_ops(const Plan& plan, std::span<std::byte* const> bases, std::byte** addresses) noexcept {
  std::byte* scratch = plan.arena->data() + plan.scratch_offset;
  for (const PlannedOp& op : plan.ops) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      addresses[i] = op.inputs[i].base < 0 ? nullptr : bases[static_cast<std::size_t>(op.inputs[i].base)] + op.inputs[i].offset;
    std::byte* output = bases[static_cast<std::size_t>(op.output.base)] + op.output.offset;
    if (op.step != nullptr) {
      op.step->run(addresses, output, scratch);
      if (const char* what = op.step->take_fault()) return Fault{&op, what};
    } else {
      for (const Region& region : op.regions) raster(region, addresses[static_cast<std::size_t>(region.source)], output, op.item);
    }
  }
  return std::nullopt;
}

bool fits(const Plan& plan, std::span<const Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (plan.input_shapes[i] != inputs[i].shape()) return false;
    if (plan.given.empty() || plan.given[i].storage() == nullptr) continue;
    const auto bytes = static_cast<std::size_t>(inputs[i].size()) * item_size(inputs[i].dtype());
    if (bytes > 0 && std::memcmp(plan.given[i].raw(), inputs[i].raw(), bytes) != 0) return false;
  }
  return true;
}

Tensor copy_of(const Tensor& tensor) {
  Tensor copy = Tensor::empty(tensor.dtype(), tensor.shape());
  if (tensor.size() > 0) std::memcpy(copy.raw(), tensor.raw(), static_cast<std::size_t>(tensor.size()) * item_size(tensor.dtype()));
  return copy;
}

}  // namespace

Session::Session(std::shared_ptr<const Graph> graph, const Table& table) : graph_(std::move(graph)), table_(table) {
  std::vector<Dims> shapes;
  for (const int input : graph_->inputs) shapes.push_back(graph_->values[static_cast<std::size_t>(input)].shape);
  const bool known = std::all_of(shapes.begin(), shapes.end(), [](const Dims& shape) { return std::find(shape.begin(), shape.end(), -1) == shape.end(); });
  needed_.resize(graph_->inputs.size(), false);
  if (!known) return;
  try {
    plans_.push_front(make_plan(*graph_, std::move(shapes), {}, table_));
  } catch (const InputsNeeded& needed) {
    for (const int input : needed.inputs()) needed_[static_cast<std::size_t>(input)] = true;
  }
}

std::shared_ptr<Plan> Session::plan_for(std::span<const Tensor> inputs) {
  for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
    if (!fits(**plan, inputs)) continue;
    plans_.splice(plans_.begin(), plans_, plan);
    return plans_.front();
  }
  std::vector<Dims> shapes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph_->values[static_cast<std::size_t>(graph_->inputs[i])];
    const Dims& shape = inputs[i].shape();
    bool fits = shape.size() == value.shape.size();
    for (std::size_t axis = 0; fits && axis < shape.size(); ++axis) fits = value.shape[axis] == -1 || value.shape[axis] == shape[axis];
    if (!fits)
      throw Error(ErrorKind::shape, "input '" + value.name + "' has shape " + to_string(shape) + ", the model takes " + to_string(value.shape) + (std::find(value.shape.begin(), value.shape.end(), -1) != value.shape.end() ? " (-1: any)" : ""));
    shapes.push_back(shape);
  }
  for (;;) {  // each turn needs at least one input more
    std::vector<Tensor> given;
    if (std::find(needed_.begin(), needed_.end(), true) != needed_.end()) {
      given.resize(inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (needed_[i]) given[i] = copy_of(inputs[i]);
    }
    try {
      plans_.push_front(make_plan(*graph_, shapes, std::move(given), table_));
      break;
    } catch (const InputsNeeded& needed) {
      for (const int input : needed.inputs()) needed_[static_cast<std::size_t>(input)] = true;
    }
  }
  if (plans_.size() > kPlans) plans_.pop_back();
  return plans_.front();
}

std::vector<Tensor> Session::run(std::span<const Tensor> inputs) {
  if (inputs.size() != graph_->inputs.size())
    throw Error(ErrorKind::model, "the model takes " + std::to_string(graph_->inputs.size()) + " inputs, not " + std::to_string(inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph_->values[static_cast<std::size_t>(graph_->inputs[i])];
    if (inputs[i].dtype() != value.dtype)
      throw Error(ErrorKind::dtype, "input '" + value.name + "' is " + std::string(dtype_name(inputs[i].dtype())) + ", the model takes " + std::string(dtype_name(value.dtype)) + "; convert it with astype");
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
  if (const auto fault = run_ops(*plan, plan->bases, addresses.data()))
    throw Error(ErrorKind::shape, "node '" + fault->op->node + "' (" + std::string(fault->op->op) + "): " + fault->what);
  return outputs;
}

std::shared_ptr<const Plan> Session::plan() const {
  const std::lock_guard lock(mutex_);
  return plans_.empty() ? nullptr : plans_.front();
}

}  // namespace walle
