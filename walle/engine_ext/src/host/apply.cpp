// A selection applied to its program: packed weights, changes of layout, the steps of convolutions and products.
#include <algorithm>
#include <array>

#include "atomic/products/integer_products.h"
#include "graph/index.h"
#include "host/host_kernels.h"
#include "host/host_selection.h"
#include "host/packed_followers.h"
#include "host/problems.h"

namespace walle {

namespace {

// The instruction set and what else the order of packed weights depends on, their shape apart. Algorithms with the same `pack`
// share them.
template <class Problem>
std::string weights_key(Algorithms<Problem> algorithms, const Algorithm<Problem>& chosen, std::int64_t parameter,
                        const Table& table) {
  const auto* first =
      *std::find_if(algorithms.begin(), algorithms.end(), [&](const auto* algorithm) { return algorithm->pack == chosen.pack; });
  return std::string(table.name) + ' ' + std::string(first->name) + ' ' + std::to_string(parameter);
}

class Application {
 public:
  Application(Program& program, const Table& table, PackedWeights& weights, const HostSelection& selection)
      : program_(program), table_(table), weights_(weights), selection_(selection), values_(program, table.pack) {}

  void run() {
    std::vector<ProgramOp> ops = std::move(program_.ops);
    program_.ops.clear();
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const std::string title = ops[i].title();  // taken before the op is moved from
      try {
        add(ops[i], selection_.choices[i]);
      } catch (const std::bad_alloc& error) {
        throw OutOfMemory(title, error);
      }
    }
    for (const int output : program_.outputs) values_.need_plain(output);
  }

 private:
  void add(ProgramOp& op, const HostSelection::Choice& choice) {
    const Alternative& way = choice.way;
    if (values_.defer(op)) return;
    op.candidates = choice.candidates;
    op.predicted_us = way.us;
    if (way.follows) return follow_packed(values_, std::move(op), choice.sources, table_);
    if (way.conv != nullptr) return add_conv(std::move(op), way);
    need_plain_inputs(op);
    if (way.linear != nullptr) prepare_linear(op, way);
    prepare_integer_product(op);
    values_.add_op(std::move(op));
  }

  void need_plain_inputs(const ProgramOp& op) {
    for (const int input : op.inputs)
      if (input >= 0) values_.need_plain(input);
  }

  void add_conv(ProgramOp op, const Alternative& way) {
    const ConvProblem problem = *conv_problem(program_, op, table_, way.conv->pack != nullptr && way.first == Form::plain);
    const EpilogueKernel epilogue(op.epilogue, table_, problem.shape.dtype);
    op.step = way.conv->make(problem, way.parameter, epilogue);
    if (way.conv->pack != nullptr) return add_packed_conv(std::move(op), problem, way);
    need_plain_inputs(op);
    values_.add_op(std::move(op));
  }

  void add_packed_conv(ProgramOp op, const ConvProblem& problem, const Alternative& way) {
    op.inputs.resize(std::max(kSlope, op.inputs.size()), -1);
    const ProgramValue& given = values_.value(op.inputs[1]);
    const ScaledWeights* scaled = given.constant.storage() == nullptr ? given.scaled.get() : nullptr;
    const Tensor weights = scaled == nullptr ? given.constant : scaled->weights;
    std::string key = weights_key(conv_algorithms(), *way.conv, way.parameter, table_) + (problem.plain_input ? " plain " : " ") +
                      std::to_string(problem.shape.groups);
    if (scaled != nullptr) key += " " + scaled->key;
    op.inputs[1] = values_.add_constant(weights_.get(weights, key, [&] {
      const Tensor plain = scaled == nullptr ? weights : multiplied(*scaled, &scaled_);
      return way.conv->pack(problem, way.parameter, plain.data<float>());
    }));
    if (problem.plain_input)
      values_.need_plain(op.inputs[0]);
    else
      op.inputs[0] = values_.need_packed(op.inputs[0]);
    op.inputs[kBias] = values_.pad_to_blocks(op.inputs[kBias]);
    if (op.inputs[kResidual] >= 0) op.inputs[kResidual] = values_.need_packed(op.inputs[kResidual]);
    if (op.inputs.size() > kSlope) op.inputs[kSlope] = values_.pad_to_blocks(op.inputs[kSlope]);
    op.output = values_.add_packed_result(op.output);
    values_.add_op(std::move(op));
  }

  void prepare_linear(ProgramOp& op, const Alternative& way) {
    const LinearProblem problem = *linear_problem(program_, op, table_);
    op.step = way.linear->make(problem, way.parameter, EpilogueKernel(op.epilogue, table_));
    if (way.linear->pack == nullptr) return;
    const Tensor weights = values_.value(op.inputs[1]).constant;
    const std::string key = "linear " + weights_key(linear_algorithms(), *way.linear, way.parameter, table_);
    op.inputs[1] = values_.add_constant(
        weights_.get(weights, key, [&] { return way.linear->pack(problem, way.parameter, weights.data<float>()); }));
  }

  // Products of bytes have one algorithm on each instruction set; plans share its packed weights.
  void prepare_integer_product(ProgramOp& op) {
    if (!is_integer_product(op)) return;
    const bool linear = op.op->name == "IntegerLinear";
    const Tensor w = values_.value(op.inputs[1]).constant;
    const IntegerShape shape(std::array{values_.value(op.inputs[0]).shape, w.shape()}, op.attributes, linear, bytes(table_));
    const Tensor packed = weights_.get(w, shape.key(), [&] { return shape.pack(w); });
    std::vector<Layout> inputs;
    for (const int input : op.inputs)
      inputs.push_back(input < 0 ? Layout{DType::f32, {}, {}, nullptr, true}
                                 : Layout{values_.value(input).dtype, values_.value(input).shape,
                                          contiguous_strides(values_.value(input).shape), nullptr, false});
    const ProgramValue& result = values_.value(op.output);
    op.step = make_integer_product({inputs, {result.dtype, result.shape}, op.attributes, table_}, linear, packed);
    op.inputs[1] = values_.add_constant(packed);
  }

  Program& program_;
  const Table& table_;
  PackedWeights& weights_;
  const HostSelection& selection_;
  PackedValues values_;
  std::shared_ptr<Storage> scaled_;  // one product of weights and factors after the other, until it is packed
};

}  // namespace

void HostKernels::apply(Program& program, const PrimitiveSelection& selection, PackedWeights& weights) const {
  Application(program, table_, weights, static_cast<const HostSelection&>(selection)).run();
}

}  // namespace walle
