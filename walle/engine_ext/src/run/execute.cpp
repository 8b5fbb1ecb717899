#include "run/execute.h"

#include <algorithm>

#include "core/stop.h"

namespace walle {

namespace {

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.raw(), static_cast<std::size_t>(tensor.size()) * item_size(tensor.dtype())};
}

}  // namespace

std::vector<Tensor> run_plan(const Plan& plan, std::span<const Tensor> inputs, Workspace& workspace, double* us) {
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
  const std::size_t first_output = number;
  for (const TensorType& type : plan.outputs) {
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
  const auto fault = workspace.queue().run(plan.commands, buffers, us);
  throw_if_stopped();  // what the kernels gave may not be whole
  if (fault) throw Error(ErrorKind::shape, plan.ops[fault->command].title() + ": " + fault->what);
  if (copies)
    for (std::size_t i = 0; i < outputs.size(); ++i) device.read(workspace.transfer(first_output + i), 0, bytes_of(outputs[i]));
  return outputs;
}

}  // namespace walle
