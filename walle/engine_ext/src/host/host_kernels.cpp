#include "host/host_kernels.h"

#include <algorithm>

#include "atomic/epilogue_kernel.h"
#include "atomic/raster_step.h"
#include "graph/index.h"
#include "host/elementwise_groups.h"
#include "host/gated_channels.h"
#include "host/host_device.h"
#include "host/normalised_inputs.h"
#include "host/product_epilogues.h"
#include "host/strided_products.h"
#include "host/work.h"
#include "operators/step.h"

namespace walle {

namespace {

// A raster's result that is read only in a shape of fewer axes (the last step of a channel shuffle) has that shape from the
// start.
void use_last_shapes(Program& program) {
  const auto value = [&](int index) -> const ProgramValue& { return program.values[at(index)]; };
  std::vector<int> readers(program.values.size(), 0), producer(program.values.size(), -1);
  for (const ProgramOp& op : program.ops)
    for (const int input : op.inputs)
      if (input >= 0) ++readers[at(input)];
  for (const int output : program.outputs) ++readers[at(output)];
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    ProgramOp& op = program.ops[i];
    if (op.is_raster()) producer[at(op.output)] = static_cast<int>(i);
    if (rename_offset(program, op) != std::int64_t{0}) continue;
    const int source = op.inputs[at(op.regions[0].source)];
    if (producer[at(source)] < 0 || readers[at(source)] != 1 || value(op.output).shape.size() >= value(source).shape.size() ||
        element_count(value(source).shape) != element_count(value(op.output).shape))
      continue;
    program.ops[at(producer[at(source)])].output = op.output;
    producer[at(op.output)] = producer[at(source)];
    op.output = -1;
  }
  std::erase_if(program.ops, [](const ProgramOp& op) { return op.output < 0; });
}

}  // namespace

const Device& HostKernels::device() const noexcept { return host_device(); }

bool HostKernels::has_composite(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes,
                                int outputs) const {
  const Fused* fused = op.fused();
  return fused != nullptr && fused->applies({op.name, operands, attributes, outputs, table_});
}

void HostKernels::fuse(Program& program) const {
  const bool fuses = has_fused_kernels(table_);
  if (fuses) fuse_chains(program, *this);
  fuse_softmax(program);
  if (fuses) fuse_gates(program);
  walle::fuse(program);
  use_last_shapes(program);
}

bool HostKernels::can_run(const Program& program) const {
  return std::all_of(program.ops.begin(), program.ops.end(), [&](const ProgramOp& op) {
    if (op.is_raster()) return true;
    const Fused* fused = find_fused(op.op->name);
    if (fused != nullptr && !fused->for_gradients && !has_fused_kernels(table_)) return false;
    return !takes_epilogue(op.op->name) ||
           EpilogueKernel::exists(op.epilogue, table_, program.values[static_cast<std::size_t>(op.output)].dtype);
  });
}

void HostKernels::join(Program& program) const {
  join_gates(program, table_);
  join_normals(program, table_);
  join_epilogues(program, table_);
  join_transposes(program, table_);
  join_elementwise(program, table_);
}

std::vector<double> HostKernels::predict_rasters(const Program& program) const {
  const Rates rates = program_rates(program, table_);
  std::vector<double> us;
  for (const ProgramOp& op : program.ops) us.push_back(op.is_raster() ? quantised(rates.us(work_of(program, op, table_))) : 0);
  return us;
}

std::shared_ptr<const Step> HostKernels::make_step(const ProgramOp& op, std::span<const Layout> inputs,
                                                   const TensorType& result) const {
  if (op.is_raster()) return make_raster_step(op.regions, inputs, result, table_);
  return walle::make_step(*op.op, inputs, result, op.axes, op.attributes, table_, op.epilogue, op.score_scale);
}

}  // namespace walle
