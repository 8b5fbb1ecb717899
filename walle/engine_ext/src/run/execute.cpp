#include "run/execute.h"

#include <algorithm>

#include "core/stop.h"

namespace walle {

namespace {

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.raw(), static_cast<std::size_t>(tensor.size()) * item_size(tensor.dtype())};
}

// Return the buffer of an input or output: the tensor's own memory where the device uses it in place, else one of the workspace.
BufferHandle buffer_of(const Device& device, const Tensor& tensor, Workspace& workspace, std::size_t number) {
  const auto handle = device.in_place(tensor.raw());
  return handle ? *handle : workspace.transfer(number, bytes_of(tensor).size()).handle;
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
  std::size_t number = MemoryPlan::input_buffer(0);
  for (const Tensor& input : inputs) {
    buffers[number] = buffer_of(device, input, workspace, number);
    if (!device.in_place(input.raw())) device.write(workspace.transfer(number), 0, bytes_of(input));
    ++number;
  }
  const std::size_t first_output = number;
  for (const TensorType& type : plan.outputs) {
    try {
      outputs.push_back(Tensor::empty(type.dtype, type.shape));
      buffers[number] = buffer_of(device, outputs.back(), workspace, number);
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
  number = first_output;
  for (const Tensor& output : outputs) {
    if (!device.in_place(output.raw())) device.read(workspace.transfer(number), 0, bytes_of(output));
    ++number;
  }
  return outputs;
}

}  // namespace walle
