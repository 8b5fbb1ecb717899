#include "host/product_epilogues.h"

#include <algorithm>

#include "graph/index.h"
#include "operators/op.h"

namespace walle {

namespace {

class EpilogueJoin {
 public:
  explicit EpilogueJoin(Program& program)
      : program_(program), readers_(program.values.size()), producer_(program.values.size(), -1) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (const int input : program.ops[i].inputs)
        if (input >= 0) readers_[at(input)].push_back(i);
      producer_[at(program.ops[i].output)] = static_cast<int>(i);
    }
    for (const int output : program.outputs) readers_[at(output)].push_back(program.ops.size());
  }

  void run() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      if (!is_product(program_.ops[i])) continue;
      while (join_reader(i)) {
      }
    }
    std::erase_if(program_.ops, [](const ProgramOp& op) { return op.output < 0; });
  }

 private:
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  bool is_product(const ProgramOp& op) const {
    return op.output >= 0 && !op.is_raster() && op.step == nullptr && op.op->name == "MatMul" && op.inputs.size() == 2 &&
           value(op.output).dtype == DType::f32 && value(op.inputs[0]).shape.size() >= 2 &&
           value(op.inputs[1]).shape.size() == 2 && value(op.inputs[1]).shape[1] > 1;
  }

  // Moves the only reader of product `i` into it; false where it is nothing of an epilogue.
  bool join_reader(std::size_t i) {
    ProgramOp& product = program_.ops[i];
    const std::vector<std::size_t>& readers = readers_[at(product.output)];
    if (readers.size() != 1 || readers[0] >= program_.ops.size()) return false;
    ProgramOp& op = program_.ops[readers[0]];
    if (op.is_raster() || op.step != nullptr || product.epilogue.bounded()) return false;
    if (op.op->name == "Add" && !product.epilogue.bias) {
      const int other = op.inputs[op.inputs[0] == product.output ? 1 : 0];
      const ProgramValue& bias = value(other);
      const bool is_ready = producer_[at(other)] < static_cast<int>(i);
      if (!is_ready || bias.dtype != DType::f32 || bias.shape != Dims{value(product.output).shape.back()}) return false;
      product.epilogue.bias = true;
      product.inputs.push_back(other);
      std::replace(readers_[at(other)].begin(), readers_[at(other)].end(), readers[0], i);
    } else if (op.op->name == "Relu") {
      product.epilogue.low = 0;
    } else {
      return false;
    }
    producer_[at(op.output)] = static_cast<int>(i);
    product.output = op.output;
    op.output = -1;
    op.inputs.clear();
    return true;
  }

  Program& program_;
  std::vector<std::vector<std::size_t>> readers_;  // by value: the ops that read it; behind all: an output
  std::vector<int> producer_;                      // by value: the op that computes it; -1: none
};

}  // namespace

void join_epilogues(Program& program, const Table& table) {
  if (table.gemm[0].finishes) EpilogueJoin(program).run();
}

}  // namespace walle
