#include "host/gated_channels.h"

#include <algorithm>

#include "atomic/channel_gate.h"
#include "graph/index.h"
#include "operators/op.h"

namespace walle {

namespace {

class GateJoin {
 public:
  GateJoin(Program& program, const Table& table)
      : program_(program), table_(table), readers_(program.values.size()), producer_(program.values.size(), -1) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (const int input : program.ops[i].inputs)
        if (input >= 0) readers_[at(input)].push_back(i);
      producer_[at(program.ops[i].output)] = static_cast<int>(i);
    }
    for (const int output : program.outputs) readers_[at(output)].push_back(program.ops.size());
  }

  void run() {
    for (ProgramOp& op : program_.ops)
      if (is(op, "Gate")) join(op);
    std::erase_if(program_.ops, [](const ProgramOp& op) { return op.output < 0; });
  }

 private:
  static bool is(const ProgramOp& op, std::string_view name) {
    return op.output >= 0 && !op.is_raster() && op.step == nullptr && op.op->name == name;
  }

  // Return the normalisation whose bounds the gate has; null where its operand is something else.
  const ProgramOp* normal_of(const ProgramOp& gate) const {
    if (producer_[at(gate.inputs[1])] < 0) return nullptr;
    const ProgramOp& normal = program_.ops[at(producer_[at(gate.inputs[1])])];
    if (!is(normal, "ChannelNormalize") || !gate.attributes.has("low") || gate.attributes.get_int("includes_bounds", 0) != 0)
      return nullptr;
    for (const char* bound : {"low", "high"})
      if (gate.attributes.has(bound) != normal.attributes.has(bound) ||
          gate.attributes.get_float(bound, 0) != normal.attributes.get_float(bound, 0))
        return nullptr;
    return &normal;
  }

  // Makes the readers of a gate read the gradient before it, if they are the sums and the gradient of the normalisation.
  void join(ProgramOp& gate) {
    const ProgramOp* normal = normal_of(gate);
    if (normal == nullptr) return;
    const int x = normal->inputs[0];
    const Dims& shape = program_.values[at(x)].shape;
    if (element_count(shape) == shape[0] * shape[1]) return;  // rows of single elements are rounded otherwise, and faster apart
    const std::vector<std::size_t>& readers = readers_[at(gate.output)];
    const auto takes = [&](std::size_t reader) {
      if (reader >= program_.ops.size()) return false;
      const std::vector<int>& inputs = program_.ops[reader].inputs;
      if (is(program_.ops[reader], "ChannelSums"))
        return inputs.size() == 3 && inputs[0] == gate.output && inputs[1] == x && inputs[2] != gate.output;
      return is(program_.ops[reader], "ChannelAffine") && inputs.size() == 5 && inputs[0] == x && inputs[2] >= 0 &&
             inputs[3] == gate.output;
    };
    if (!std::all_of(readers.begin(), readers.end(), takes)) return;
    NormalGate made{normal->attributes.get_float("epsilon", 1e-5), gate.attributes.get_float("low", 0), {}};
    if (gate.attributes.has("high")) made.high = gate.attributes.get_float("high", 0);
    const TensorType type{program_.values[at(x)].dtype, program_.values[at(x)].shape};
    for (const std::size_t reader : readers) {
      ProgramOp& op = program_.ops[reader];
      const bool sums = op.op->name == "ChannelSums";
      op.inputs[sums ? 0 : 3] = gate.inputs[0];
      op.inputs.insert(op.inputs.end(), normal->inputs.begin() + 1, normal->inputs.begin() + 4);
      op.step = sums ? make_gated_sums(type, made, table_) : make_gated_affine(type, made, table_);
    }
    gate.output = -1;
  }

  Program& program_;
  const Table& table_;
  std::vector<std::vector<std::size_t>> readers_;  // by value: the ops that read it; behind all: an output
  std::vector<int> producer_;                      // by value: the op that computes it; -1: none
};

}  // namespace

void join_gates(Program& program, const Table& table) { GateJoin(program, table).run(); }

}  // namespace walle
