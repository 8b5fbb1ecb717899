// Fusion of gates: activations that graphs write as x times a function of x, and hard ones that they write out step by step. As
// one operator they are one pass over memory, and can become part of a convolution (plan/fuse.cpp).
#include <cmath>

#include "atomic/fused.h"
#include "graph/index.h"
#include "plan/program.h"

namespace walle {

namespace {

class GateFusion {
 public:
  explicit GateFusion(Program& program)
      : program_(program), readers_(program.values.size(), 0), producer_(program.values.size(), -1) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      producer_[at(program.ops[i].output)] = static_cast<int>(i);
      for (const int input : program.ops[i].inputs)
        if (input >= 0) ++readers_[at(input)];
    }
    for (const int output : program.outputs) readers_[at(output)] += 2;  // never inside a gate
  }

  void run() {
    for (ProgramOp& op : program_.ops) {
      if (op.is_raster() || op.inputs.size() != 2 || value(op.output).dtype != DType::f32) continue;
      if (!replace_hard(op) && op.op->name == "Mul") replace_gate(op);
    }
    remove_unread(program_);
  }

 private:
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  // Return the operator that computes this value, where it has one reader; else null.
  const ProgramOp* producer(int value) const {
    if (producer_[at(value)] < 0 || readers_[at(value)] != 1) return nullptr;
    const ProgramOp& op = program_.ops[at(producer_[at(value)])];
    return op.is_raster() ? nullptr : &op;
  }
  // Return the operand beside this constant number in an operator of this name; -1 where the op is different.
  int other_operand(const ProgramOp* op, std::string_view name, float number) const {
    if (op == nullptr || op->op->name != name || value(op->output).dtype != DType::f32) return -1;
    for (std::size_t operand = name == "Div" ? 1 : 0; operand < 2; ++operand) {
      const ProgramValue& given = value(op->inputs[operand]);
      const int other = op->inputs[1 - operand];
      if (given.is_constant() && element_count(given.shape) == 1 && *given.constant.data<float>() == number &&
          value(other).shape == value(op->output).shape)
        return other;
    }
    return -1;
  }
  // Return the x of min(max(x + 3, 0), 6), in either order; -1 where the value is computed differently.
  int hard_steps(int index) const {
    const ProgramOp* last = producer(index);
    int inner = other_operand(last, "Minimum", 6);
    const bool capped = inner >= 0;
    if (!capped) inner = other_operand(last, "Maximum", 0);
    if (inner < 0) return -1;
    inner = capped ? other_operand(producer(inner), "Maximum", 0) : other_operand(producer(inner), "Minimum", 6);
    return inner < 0 ? -1 : other_operand(producer(inner), "Add", 3);
  }

  // Replaces an op that ends a written-out HardSigmoid or HardSwish, divided by 6 at the end; false where it does not.
  bool replace_hard(ProgramOp& op) {
    int sixfold = other_operand(&op, "Div", 6);
    if (sixfold < 0) sixfold = other_operand(&op, "Mul", 1.0f / 6);
    if (sixfold < 0) return false;
    if (const int x = hard_steps(sixfold); x >= 0) {
      op.op = find_operator("HardSigmoid");
      op.attributes = {{"alpha", 1.0 / 6}, {"beta", 0.5}};
      op.inputs = {x};
      return true;
    }
    const ProgramOp* product = producer(sixfold);
    if (product == nullptr || product->op->name != "Mul") return false;
    for (std::size_t operand = 0; operand < 2; ++operand) {
      const int x = product->inputs[operand];
      if (hard_steps(product->inputs[1 - operand]) != x) continue;
      op.op = find_operator("HardSwish");
      op.inputs = {x};
      return true;
    }
    return false;
  }

  void replace_gate(ProgramOp& op) {
    for (std::size_t operand = 0; operand < 2; ++operand) {
      const int x = op.inputs[1 - operand];
      const OpDef* gate = gate_of(op.inputs[operand], x);
      if (gate == nullptr || value(op.output).shape != value(x).shape) continue;
      op.op = gate;
      op.inputs = {x};
      return;
    }
  }

  // Return the operator that x times `factor` is; null where it is only a product.
  const OpDef* gate_of(int factor, int x) const {
    const ProgramOp* op = producer(factor);
    if (op == nullptr) return nullptr;
    if (op->op->name == "Sigmoid" && op->inputs[0] == x) return find_operator("Swish");
    if (op->op->name == "HardSigmoid" && op->inputs[0] == x) {
      // ONNX writes 1 / 6 as a float32.
      const auto map = find_map("HardSigmoid", op->attributes);
      return std::fabs(map->a - 1.0 / 6) < 1e-7 && map->b == 0.5 ? find_operator("HardSwish") : nullptr;
    }
    if (op->op->name != "Tanh") return nullptr;
    const ProgramOp* inner = producer(op->inputs[0]);
    return inner != nullptr && inner->op->name == "Softplus" && inner->inputs[0] == x ? find_operator("Mish") : nullptr;
  }

  Program& program_;
  std::vector<int> readers_, producer_;
};

}  // namespace

void fuse_gates(Program& program) { GateFusion(program).run(); }

}  // namespace walle
