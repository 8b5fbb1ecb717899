// Kernel set of one instruction set of the host's CPU.
#pragma once
#include "kernels/table.h"
#include "plan/kernel_set.h"

namespace walle {

class HostKernels final : public KernelSet {
 public:
  explicit HostKernels(const Table& table) : table_(table) {}

  std::string_view name() const noexcept override { return table_.name; }
  const Device& device() const noexcept override;
  const Table& host_table() const noexcept override { return table_; }
  bool has_composite(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes,
                     int outputs) const override;
  void fuse(Program& program) const override;
  bool can_run(const Program& program) const override;
  std::unique_ptr<const PrimitiveSelection> select(const Program& program, const Forced& forced) const override;  // select.cpp
  // Convolutions of float32 by constant weights may use packed channel layouts, and the operators after them do where they can;
  // rasters change layouts. apply.cpp
  void apply(Program& program, const PrimitiveSelection& selection, PackedWeights& weights) const override;
  void join(Program& program) const override;
  std::vector<double> predict_rasters(const Program& program) const override;
  std::shared_ptr<const Step> make_step(const ProgramOp& op, std::span<const Layout> inputs,
                                        const TensorType& result) const override;

 private:
  const Table& table_;
};

}  // namespace walle
