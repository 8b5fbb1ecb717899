// Fusion into Softmax: the scale and the mask of attention scores are applied to a row just before its softmax, while it is in
// the first-level cache.
#include <algorithm>

#include "graph/index.h"
#include "plan/program.h"

namespace walle {

namespace {

class SoftmaxFusion {
 public:
  explicit SoftmaxFusion(Program& program)
      : program_(program), readers_(program.values.size(), 0), producer_(program.values.size(), nullptr) {
    for (ProgramOp& op : program.ops) {
      producer_[at(op.output)] = &op;
      for (const int input : op.inputs)
        if (input >= 0) ++readers_[at(input)];
    }
    for (const int output : program.outputs) readers_[at(output)] += 2;  // never between two operators
  }

  void run() {
    for (ProgramOp& op : program_.ops)
      if (!op.is_raster() && op.op->name == "Softmax" && op.inputs.size() == 1 && along_last_axis(op)) fuse_scores(op);
    remove_unread(program_);
  }

 private:
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  bool along_last_axis(const ProgramOp& op) const {
    const std::size_t rank = value(op.output).shape.size();
    return normal_axis(op.attributes.get_int("axis", -1), rank) + 1 == rank;
  }

  // Return the operator of that name that computes this value, where it has one reader; else null.
  const ProgramOp* producer(int index, std::string_view name) const {
    const ProgramOp* op = producer_[at(index)];
    return op != nullptr && !op->is_raster() && op->op->name == name && readers_[at(index)] == 1 ? op : nullptr;
  }

  void fuse_scores(ProgramOp& op) {
    const Dims& shape = value(op.output).shape;
    std::vector<int> inputs{op.inputs[0], -1, -1};  // scores, scale, mask
    if (const ProgramOp* sum = producer(inputs[0], "Add")) {
      // Where both operands have the whole shape, the scaled one is the scores.
      const bool swap = value(sum->inputs[0]).shape != shape || (value(sum->inputs[1]).shape == shape && scaled(sum->inputs[1]));
      const int scores = sum->inputs[swap ? 1 : 0];
      if (value(scores).shape == shape && sum->inputs[0] != sum->inputs[1]) inputs = {scores, -1, sum->inputs[swap ? 0 : 1]};
    }
    if (const ProgramOp* scale = scaled(inputs[0])) {
      op.score_scale = scale->op->name == "Div" ? ScoreScale::divides : ScoreScale::multiplies;
      const int factor = op.score_scale == ScoreScale::multiplies && is_number(scale->inputs[0]) ? 0 : 1;
      inputs[1] = scale->inputs[at(factor)];
      inputs[0] = scale->inputs[at(1 - factor)];
    }
    if (inputs[1] < 0 && inputs[2] < 0) return;
    op.inputs = std::move(inputs);
  }

  bool is_number(int index) const { return value(index).is_constant() && element_count(value(index).shape) == 1; }

  // Return the product with, or quotient by, one number that computes the value.
  const ProgramOp* scaled(int index) const {
    if (const ProgramOp* quotient = producer(index, "Div"))
      return is_number(quotient->inputs[1]) && value(quotient->inputs[0]).shape == value(index).shape ? quotient : nullptr;
    const ProgramOp* product = producer(index, "Mul");
    if (product == nullptr) return nullptr;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
      if (is_number(product->inputs[i]) && value(product->inputs[1 - i]).shape == value(index).shape) return product;
    return nullptr;
  }

  Program& program_;
  std::vector<int> readers_;
  std::vector<ProgramOp*> producer_;
};

}  // namespace

void fuse_softmax(Program& program) { SoftmaxFusion(program).run(); }

}  // namespace walle
