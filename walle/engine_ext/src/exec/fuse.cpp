// Fusion over a whole program: what follows the sums of a convolution or a matrix product (bias, residual, bounds) becomes part
// of it, where nothing else reads the result between.
#include <algorithm>
#include <cmath>
#include <limits>

#include "exec/program.h"

namespace walle {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kBias = 2, kResidual = 3;  // operands of Conv and Linear

std::size_t at(int index) { return static_cast<std::size_t>(index); }

class Fusion {
 public:
  explicit Fusion(Program& program) : program_(program), readers_(program.values.size(), 0), giver_(program.values.size(), -1) {
    for (const ProgramOp& op : program.ops)
      for (const int input : op.inputs)
        if (input >= 0) ++readers_[at(input)];
    for (const int output : program.outputs) readers_[at(output)] += 2;  // never between two operators
  }

  void run() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      become_linear(program_.ops[i]);
      for (std::size_t operand = 0; operand < program_.ops[i].inputs.size(); ++operand)
        if (take(i, operand)) break;
      giver_[at(program_.ops[i].output)] = static_cast<int>(i);
    }
    std::erase_if(program_.ops, [](const ProgramOp& op) { return op.output < 0; });
  }

 private:
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  // A product by a constant matrix.
  void become_linear(ProgramOp& op) {
    if (op.is_raster() || op.op->name != "MatMul" || op.inputs.size() != 2) return;
    const ProgramValue &x = value(op.inputs[0]), &w = value(op.inputs[1]);
    if (x.dtype != DType::f32 || !w.is_constant() || w.shape.size() != 2 || x.shape.size() < 2) return;
    op.op = find_operator("Linear");
    op.inputs.resize(4, -1);
  }

  // Whether op `i` was taken into the giver of one of its operands. The giver moves to where the op was: all that it reads
  // is there by then.
  bool take(std::size_t i, std::size_t operand) {
    ProgramOp& op = program_.ops[i];
    const int from = op.inputs[operand];
    if (op.is_raster() || from < 0 || giver_[at(from)] < 0 || readers_[at(from)] != 1) return false;
    ProgramOp& giver = program_.ops[at(giver_[at(from)])];
    const bool conv = !giver.is_raster() && giver.op->name == "Conv", linear = !giver.is_raster() && giver.op->name == "Linear";
    if ((!conv && !linear) || value(giver.output).dtype != DType::f32) return false;
    if (value(op.output).shape != value(from).shape || value(op.output).dtype != DType::f32) return false;
    if (giver.attributes.has("activation")) return false;
    giver.inputs.resize(4, -1);
    if (!(op.op->name == "Add" ? take_sum(giver, op.inputs[1 - operand], linear) : take_bounds(giver, op, operand))) return false;
    giver.output = op.output;
    giver.name = op.name;
    op = std::move(giver);
    giver.output = -1;
    giver.inputs.clear();
    return true;
  }

  bool take_sum(ProgramOp& giver, int other, bool linear) {
    if (giver.attributes.has("low") || other < 0 || value(other).dtype != DType::f32) return false;
    const Dims& shape = value(giver.output).shape;
    if (linear && giver.inputs[kBias] < 0 && giver.inputs[kResidual] < 0 && value(other).is_constant() &&
        value(other).shape == Dims{shape.back()}) {
      giver.inputs[kBias] = other;
      return true;
    }
    if (giver.inputs[kResidual] >= 0 || value(other).shape != shape || other == giver.output) return false;
    giver.inputs[kResidual] = other;
    return true;
  }

  static bool take_bounds(ProgramOp& giver, double low, double high) {
    const double old_low = giver.attributes.get_float("low", -kInfinity),
                 old_high = giver.attributes.get_float("high", kInfinity);
    low = std::max(low, old_low);
    high = std::min(high, old_high);
    if (std::isnan(low) || std::isnan(high) || low > high) return false;
    Attributes kept;
    for (const auto& [name, attribute] : giver.attributes.items())
      if (name != "low" && name != "high") kept.set(name, attribute);
    kept.set("low", low);
    kept.set("high", high);
    giver.attributes = std::move(kept);
    return true;
  }

  bool take_bounds(ProgramOp& giver, const ProgramOp& op, std::size_t operand) {
    if (op.op->name == "Relu") return take_bounds(giver, 0, kInfinity);
    if (op.op->name != "Maximum" && op.op->name != "Minimum") return false;
    const ProgramValue& bound = value(op.inputs[1 - operand]);
    if (!bound.is_constant() || element_count(bound.shape) != 1) return false;
    const double number = *bound.constant.data<float>();
    return op.op->name == "Maximum" ? take_bounds(giver, number, kInfinity) : take_bounds(giver, -kInfinity, number);
  }

  Program& program_;
  std::vector<int> readers_, giver_;
};

}  // namespace

void fuse(Program& program) { Fusion(program).run(); }

}  // namespace walle
