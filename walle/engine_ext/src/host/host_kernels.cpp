#include "host/host_kernels.h"

#include <algorithm>

#include "atomic/epilogue_kernel.h"
#include "atomic/raster_step.h"
#include "host/host_device.h"
#include "operators/step.h"

namespace walle {

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
}

bool HostKernels::can_run(const Program& program) const {
  return std::all_of(program.ops.begin(), program.ops.end(), [&](const ProgramOp& op) {
    if (op.is_raster()) return true;
    if (find_fused(op.op->name) != nullptr && !has_fused_kernels(table_)) return false;
    return !takes_epilogue(op.op->name) ||
           EpilogueKernel::exists(op.epilogue, table_, program.values[static_cast<std::size_t>(op.output)].dtype);
  });
}

std::shared_ptr<const Step> HostKernels::make_step(const ProgramOp& op, std::span<const Layout> inputs,
                                                   const TensorType& result) const {
  if (op.is_raster()) return make_raster_step(op.regions, inputs, result, table_);
  return walle::make_step(*op.op, inputs, result, op.axes, op.attributes, table_, op.epilogue, op.score_scale);
}

}  // namespace walle
