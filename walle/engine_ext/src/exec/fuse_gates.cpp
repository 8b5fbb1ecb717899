// Gates: activations that graphs write as x times a function of x. One operator of them is one pass, and can follow the sums of a
// convolution (exec/fuse.cpp).
#include <cmath>

#include "atomic/fused.h"
#include "exec/program.h"

namespace walle {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

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
      if (op.is_raster() || op.op->name != "Mul" || program_.values[at(op.output)].dtype != DType::f32) continue;
      for (std::size_t operand = 0; operand < 2; ++operand) {
        const int x = op.inputs[1 - operand];
        const OpDef* gate = gate_of(op.inputs[operand], x);
        if (gate == nullptr || program_.values[at(op.output)].shape != program_.values[at(x)].shape) continue;
        op.op = gate;
        op.inputs = {x};
        break;
      }
    }
    remove_unread(program_);
  }

 private:
  // The operator that alone gives this value, for one reader; null where there is none.
  const ProgramOp* maker(int value) const {
    if (giver_[at(value)] < 0 || readers_[at(value)] != 1) return nullptr;
    const ProgramOp& op = program_.ops[at(giver_[at(value)])];
    return op.is_raster() ? nullptr : &op;
  }

  // What x times `factor` is.
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
