// Kernel set: the kernels of a device that one plan uses, and the search over their algorithms. Search chooses between the kernel
// sets of a device (eq. 2); the host has one for each instruction set.
#pragma once
#include "core/device.h"
#include "plan/program.h"

namespace walle {

struct Table;  // kernels/table.h

// For a node, the algorithm and its parameter to take instead of the cheapest: to measure how well search chooses.
using Forced = std::map<std::string, std::pair<std::string, std::int64_t>, std::less<>>;

// Selection of search for a program: the primitive of every operator, which is an algorithm with its parameter and layouts.
class PrimitiveSelection {
 public:
  virtual ~PrimitiveSelection() = default;
  double us = 0;            // sum of the predicted costs (eq. 1), those of changes of layout included
  double rates_us = 0;      // about the same by rates, to compare with a set without a performance model
  bool is_learned = false;  // some costs are a performance model's
  std::string source;       // where costs come from, such as "calibrated" or "formula"
};

class KernelSet {
 public:
  virtual ~KernelSet() = default;
  // The name of the backend in the public API.
  virtual std::string_view name() const noexcept = 0;
  virtual const Device& device() const noexcept = 0;
  // The host's kernels for what no plan runs: constants that are folded, and nodes that a module interprets.
  virtual const Table& host_table() const noexcept = 0;

  // Whether one kernel computes the composite with these operands, so that it need not be decomposed.
  virtual bool has_composite(const OpDef& op, std::span<const Operand> operands, const Attributes& attributes,
                             int outputs) const = 0;
  // Rewrites operators into those that the set computes at once: fused composites, epilogues of products.
  virtual void fuse(Program& program) const = 0;
  // Whether the set has a kernel for every op of a program that another set of the device has fused.
  virtual bool can_run(const Program& program) const = 0;
  // Weighs every algorithm and layout and chooses those of the whole program together (semi-auto search, §4.1). A forced
  // algorithm is taken at any cost. Throws Error (model) where a forced algorithm does not apply, or its node has none to choose
  // from.
  virtual std::unique_ptr<const PrimitiveSelection> select(const Program& program, const Forced& forced) const = 0;
  // Rewrites the program as a selection of this set says: packs weights, adds changes of layout, makes the chosen steps.
  virtual void apply(Program& program, const PrimitiveSelection& selection, PackedWeights& weights) const = 0;
  // Joins ops of an applied program that one step computes. The program is that of a training step.
  virtual void join(Program& program) const {}
  // Return the predicted cost of each op to which search gave none, in microseconds: rasters, after merging. 0 for others.
  virtual std::vector<double> predict_rasters(const Program& program) const = 0;
  // Return the step of an op that apply() gave none. Constants and results are row-major. Throws Error (unsupported) where the
  // set has no kernel for it.
  virtual std::shared_ptr<const Step> make_step(const ProgramOp& op, std::span<const Layout> inputs,
                                                const TensorType& result) const = 0;
};

}  // namespace walle
