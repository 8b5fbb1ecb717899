#include "host/normalised_inputs.h"

#include <algorithm>

#include "atomic/products/lane_depthwise.h"
#include "graph/index.h"
#include "host/problems.h"
#include "operators/op.h"

namespace walle {

namespace {

class NormalJoin {
 public:
  NormalJoin(Program& program, const Table& table) : program_(program), table_(table), readers_(program.values.size()) {
    for (std::size_t i = 0; i < program.ops.size(); ++i)
      for (const int input : program.ops[i].inputs)
        if (input >= 0) readers_[at(input)].push_back(i);
    for (const int output : program.outputs) readers_[at(output)].push_back(program.ops.size());
  }

  void run() {
    for (ProgramOp& op : program_.ops)
      if (!op.is_raster() && op.step == nullptr && op.op->name == "ChannelNormalize") join(op);
    std::erase_if(program_.ops, [](const ProgramOp& op) { return op.output < 0; });
  }

 private:
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  // Return the convolution that an op is or whose weights' gradient it is, if it can normalise this input itself.
  std::optional<ConvShape> shape_of(const ProgramOp& op, int input) const {
    if (op.is_raster() || op.inputs[0] != input || std::count(op.inputs.begin(), op.inputs.end(), input) != 1)
      return std::nullopt;
    std::optional<ConvShape> shape;
    if (op.op->name == "Conv") {
      if (op.step == nullptr || op.step->algorithm() != kLaneDepthwise.name || !EpilogueKernel(op.epilogue, table_).empty())
        return std::nullopt;
      shape = conv_problem(program_, op, table_, false)->shape;
    } else if (op.op->name == "ConvWeightGradient") {
      shape = conv_shape(value(input).shape, value(op.output).shape, value(input).dtype, op.attributes);
    }
    return shape && DepthwiseLanes::applies(*shape) ? shape : std::nullopt;
  }

  void join(ProgramOp& normal) {
    const int x = normal.inputs[0], y = normal.output;
    if (value(x).dtype != DType::f32 || readers_[at(y)].empty() || readers_[at(y)].back() >= program_.ops.size()) return;
    std::vector<ConvShape> shapes;
    for (const std::size_t reader : readers_[at(y)]) {
      const auto shape = shape_of(program_.ops[reader], y);
      if (!shape) return;
      shapes.push_back(*shape);
    }
    InputNormal made{normal.attributes.get_float("epsilon", 1e-5)};
    made.low = normal.attributes.get_float("low", made.low);
    made.high = normal.attributes.get_float("high", made.high);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      ProgramOp& op = program_.ops[readers_[at(y)][i]];
      op.step = op.op->name == "Conv" ? make_normalised_depthwise(shapes[i], table_, made)
                                      : make_normalised_weight_gradient(shapes[i], table_, made);
      op.inputs = {x, op.inputs[1], normal.inputs[1], normal.inputs[2], normal.inputs[3]};
    }
    normal.output = -1;
  }

  Program& program_;
  const Table& table_;
  std::vector<std::vector<std::size_t>> readers_;  // by value: the ops that read it, in order; behind all: an output
};

}  // namespace

void join_normals(Program& program, const Table& table) { NormalJoin(program, table).run(); }

}  // namespace walle
