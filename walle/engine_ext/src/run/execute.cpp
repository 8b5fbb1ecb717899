#include "run/execute.h"

#include <algorithm>
#include <cmath>

#include "core/stop.h"

namespace walle {

namespace {

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.raw(), static_cast<std::size_t>(tensor.size()) * item_size(tensor.dtype())};
}

}  // namespace

namespace {

// Gives the workspace's buffers to the plan, inputs written to them, and returns the outputs.
std::vector<Tensor> prepare(const Plan& plan, std::span<const Tensor> inputs, Workspace& workspace) {
  const Device& device = plan.kernels->device();
  std::vector<Tensor> outputs;
  outputs.reserve(plan.outputs.size());
  workspace.reserve(plan);
  std::vector<BufferHandle>& buffers = workspace.buffers;
  buffers.assign(plan.buffers.begin(), plan.buffers.end());
  buffers[MemoryPlan::kArena] = workspace.arena();
  const bool copies = !device.uses_host_memory();
  std::size_t number = MemoryPlan::input_buffer(0);
  for (const Tensor& input : inputs) {
    buffers[number] = copies ? workspace.transfer(number, bytes_of(input).size()).handle : host_handle(input.raw());
    if (copies) device.write(workspace.transfer(number), 0, bytes_of(input));
    ++number;
  }
  for (const TensorType& type : plan.outputs) {
    const std::size_t place = outputs.size();
    if (!plan.replaced.empty() && plan.replaced[place] >= 0) {
      outputs.push_back(inputs[static_cast<std::size_t>(plan.replaced[place])]);
      buffers[number++] = {};
      continue;
    }
    try {
      outputs.push_back(Tensor::empty(type.dtype, type.shape));
      const Tensor& output = outputs.back();
      buffers[number] = copies ? workspace.transfer(number, bytes_of(output).size()).handle : host_handle(output.raw());
    } catch (const std::bad_alloc& error) {
      const auto& commands = plan.commands.commands;
      const auto writes = [&](const Command& one) { return static_cast<std::size_t>(one.output.buffer) == number; };
      const auto command = std::find_if(commands.begin(), commands.end(), writes);
      if (command == commands.end()) throw;
      throw OutOfMemory(plan.ops[static_cast<std::size_t>(command - commands.begin())].title(), error);
    }
    ++number;
  }
  return outputs;
}

// Whether an element is NaN, and whether one is infinite.
struct Odd {
  bool is_nan = false, is_infinite = false;
};

template <class T>
Odd odd_elements(const std::byte* data, std::int64_t count) {
  Odd found;
  for (std::int64_t i = 0; i < count; ++i) {
    const T number = reinterpret_cast<const T*>(data)[i];
    found.is_nan = found.is_nan || std::isnan(number);
    found.is_infinite = found.is_infinite || std::isinf(number);
  }
  return found;
}

Odd odd_elements(const TensorType& type, const std::byte* data) {
  const std::int64_t count = element_count(type.shape);
  if (type.dtype == DType::f32) return odd_elements<float>(data, count);
  if (type.dtype == DType::f64) return odd_elements<double>(data, count);
  return {};
}

}  // namespace

// Runs the updates of a plan whose other commands have run, where its condition holds. They are not stopped: a part of them would
// be worse than none.
void run_updates(const Plan& plan, std::span<const Tensor> inputs, std::span<const Tensor> outputs, Workspace& workspace,
                 double* us) {
  const Device& device = plan.kernels->device();
  const auto first_output = static_cast<std::size_t>(MemoryPlan::input_buffer(static_cast<int>(inputs.size())));
  if (plan.condition >= 0) {
    const auto place = static_cast<std::size_t>(plan.condition);
    if (!device.uses_host_memory()) device.read(workspace.transfer(first_output + place), 0, bytes_of(outputs[place]));
    if (!*outputs[place].data<bool>()) return;
  }
  StopFlag never;
  StopFlag* const before = exchange_stop(&never);
  workspace.queue().run(plan.updates, workspace.buffers, us);
  exchange_stop(before);
}

std::vector<Tensor> run_plan(const Plan& plan, std::span<const Tensor> inputs, Workspace& workspace, double* us) {
  std::vector<Tensor> outputs = prepare(plan, inputs, workspace);
  const auto fault = workspace.queue().run(plan.commands, workspace.buffers, us);
  throw_if_stopped();  // what the kernels gave may not be whole
  if (fault) throw Error(ErrorKind::shape, plan.ops[fault->command].title() + ": " + fault->what);
  if (!plan.updates.commands.empty())
    run_updates(plan, inputs, outputs, workspace, us == nullptr ? nullptr : us + plan.commands.commands.size());
  const Device& device = plan.kernels->device();
  const std::size_t first_output = MemoryPlan::input_buffer(static_cast<int>(inputs.size()));
  if (!device.uses_host_memory())
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const bool is_update = !plan.replaced.empty() && plan.replaced[i] >= 0;
      const std::size_t number = is_update ? MemoryPlan::input_buffer(plan.replaced[i]) : first_output + i;
      device.read(workspace.transfer(number), 0, bytes_of(outputs[i]));
    }
  return outputs;
}

std::string find_nonfinite(const Graph& graph, const Plan& plan, std::span<const Tensor> inputs, Workspace& workspace) {
  const auto what = [](const Odd& odd) { return std::string(odd.is_nan ? "NaN" : "an infinite number"); };
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (const Odd odd = odd_elements({inputs[i].dtype(), inputs[i].shape()}, inputs[i].raw()); odd.is_nan || odd.is_infinite)
      return "'" + graph.values[static_cast<std::size_t>(graph.inputs[i])].name + "' has " + what(odd);
  if (!plan.kernels->device().uses_host_memory()) return {};
  const std::vector<Tensor> outputs = prepare(plan, inputs, workspace);
  std::vector<CommandList> lists;  // kept: a queue may keep what it derives from one
  lists.reserve(plan.ops.size());
  std::string infinite;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    lists.push_back({{plan.commands.commands[i]}, plan.commands.scratch, plan.commands.max_inputs});
    workspace.queue().run(lists.back(), workspace.buffers, nullptr);
    throw_if_stopped();
    const Place& place = lists.back().commands[0].output;
    const auto* data =
        reinterpret_cast<const std::byte*>(workspace.buffers[static_cast<std::size_t>(place.buffer)]) + place.offset;
    const Odd odd = odd_elements(plan.ops[i].result, data);
    if (odd.is_nan) return plan.ops[i].title() + " makes NaN" + (infinite.empty() ? "" : "; before it " + infinite);
    if (odd.is_infinite && infinite.empty()) infinite = plan.ops[i].title() + " makes an infinite number";
  }
  return infinite;
}

}  // namespace walle
