// Gates: activations that graphs write as x times a function of x, and the hard ones that they write out. One operator of them is
// one pass, and can follow the sums of a convolution (plan/fuse.cpp).
#include <cmath>

#include "atomic/fused.h"
#include "plan/index.h"
#include "plan/program.h"

namespace walle {

namespace {

class GateFusion {
 public:
  explicit GateFusion(Program& program)
      : program_(program), readers_(program.values.size(), 0), giver_(program.values.size(), -1) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      giver_[at(program.ops[i].output)] = static_cast<int>(i);
      for (const int input : program.ops[i].inputs)
        if (input >= 0) ++readers_[at(input)];
    }
    for (const int output : program.outputs) readers_[at(output)] += 2;  // never inside a gate
  }

  void run() {
    for (ProgramOp& op : program_.ops) {
      if (op.is_raster() || op.inputs.size() != 2 || value(op.output).dtype != DType::f32) continue;
      if (!hard(op) && op.op->name == "Mul") gated(op);
    }
    remove_unread(program_);
  }

 private:
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  // The operator that alone gives this value, for one reader; null where there is none.
  const ProgramOp* maker(int value) const {
    if (giver_[at(value)] < 0 || readers_[at(value)] != 1) return nullptr;
    const ProgramOp& op = program_.ops[at(giver_[at(value)])];
    return op.is_raster() ? nullptr : &op;
  }
  // The operand beside a constant number in an operator of this name; -1 where it is none of these.
  int beside(const ProgramOp* op, std::string_view name, float number) const {
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
  // The x of min(max(x + 3, 0), 6), in either order; -1 where it is none of these.
  int hard_steps(int index) const {
    const ProgramOp* last = maker(index);
    int inner = beside(last, "Minimum", 6);
    const bool capped = inner >= 0;
    if (!capped) inner = beside(last, "Maximum", 0);
    if (inner < 0) return -1;
    inner = capped ? beside(maker(inner), "Maximum", 0) : beside(maker(inner), "Minimum", 6);
    return inner < 0 ? -1 : beside(maker(inner), "Add", 3);
  }

  // Whether the op is HardSigmoid or HardSwish, written out and divided by 6 in the end.
  bool hard(ProgramOp& op) {
    int sixfold = beside(&op, "Div", 6);
    if (sixfold < 0) sixfold = beside(&op, "Mul", 1.0f / 6);
    if (sixfold < 0) return false;
    if (const int x = hard_steps(sixfold); x >= 0) {
      op.op = find_operator("HardSigmoid");
      op.attributes = {{"alpha", 1.0 / 6}, {"beta", 0.5}};
      op.inputs = {x};
      return true;
    }
    const ProgramOp* product = maker(sixfold);
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

  void gated(ProgramOp& op) {
    for (std::size_t operand = 0; operand < 2; ++operand) {
      const int x = op.inputs[1 - operand];
      const OpDef* gate = gate_of(op.inputs[operand], x);
      if (gate == nullptr || value(op.output).shape != value(x).shape) continue;
      op.op = gate;
      op.inputs = {x};
      return;
    }
  }

  // What x times `factor` is; null: nothing else.
  const OpDef* gate_of(int factor, int x) const {
    const ProgramOp* op = maker(factor);
    if (op == nullptr) return nullptr;
    if (op->op->name == "Sigmoid" && op->inputs[0] == x) return find_operator("Swish");
    if (op->op->name == "HardSigmoid" && op->inputs[0] == x) {
      // ONNX writes 1 / 6 as a float32.
      const Map map = op->op->fused->map(op->attributes);
      return std::fabs(map.a - 1.0 / 6) < 1e-7 && map.b == 0.5 ? find_operator("HardSwish") : nullptr;
    }
    if (op->op->name != "Tanh") return nullptr;
    const ProgramOp* inner = maker(op->inputs[0]);
    return inner != nullptr && inner->op->name == "Softplus" && inner->inputs[0] == x ? find_operator("Mish") : nullptr;
  }

  Program& program_;
  std::vector<int> readers_, giver_;
};

}  // namespace

void fuse_gates(Program& program, const Table& table) {
  if (has_fused_kernels(table)) GateFusion(program).run();
}

}  // namespace walle
