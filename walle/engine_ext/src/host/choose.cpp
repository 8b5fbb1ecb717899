// Search over a whole program (§4.1): the layout of every value, and the algorithm of every convolution and matrix product.
#include <algorithm>
#include <array>
#include <chrono>
#include <set>

#include "atomic/products/integer_products.h"
#include "graph/index.h"
#include "host/host_kernels.h"
#include "host/packed_values.h"
#include "host/problems.h"

namespace walle {

namespace {

// A raster's result that is read only in a shape of fewer axes (the last step of a channel shuffle) has that shape from the
// start.
void use_last_shapes(Program& program) {
  const auto value = [&](int index) -> const ProgramValue& { return program.values[at(index)]; };
  std::vector<int> readers(program.values.size(), 0), producer(program.values.size(), -1);
  for (const ProgramOp& op : program.ops)
    for (const int input : op.inputs)
      if (input >= 0) ++readers[at(input)];
  for (const int output : program.outputs) ++readers[at(output)];
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    ProgramOp& op = program.ops[i];
    if (op.is_raster()) producer[at(op.output)] = static_cast<int>(i);
    if (rename_offset(program, op) != std::int64_t{0}) continue;
    const int source = op.inputs[at(op.regions[0].source)];
    if (producer[at(source)] < 0 || readers[at(source)] != 1 || value(op.output).shape.size() >= value(source).shape.size() ||
        element_count(value(source).shape) != element_count(value(op.output).shape))
      continue;
    program.ops[at(producer[at(source)])].output = op.output;
    producer[at(op.output)] = producer[at(source)];
    op.output = -1;
  }
  std::erase_if(program.ops, [](const ProgramOp& op) { return op.output < 0; });
}

// The instruction set and what else the order of packed weights depends on, their shape apart. Algorithms with the same `pack`
// share them.
template <class Problem>
std::string weights_key(Algorithms<Problem> algorithms, const Choice<Problem>& choice, const Table& table) {
  const auto* first = *std::find_if(algorithms.begin(), algorithms.end(),
                                    [&](const auto* algorithm) { return algorithm->pack == choice.algorithm->pack; });
  return std::string(table.name) + ' ' + std::string(first->name) + ' ' + std::to_string(choice.parameter);
}

class Search {
 public:
  Search(Program& program, const Table& table, PackedWeights& weights, const Forced& forced)
      : program_(program),
        table_(table),
        weights_(weights),
        forced_(forced),
        rates_(rates(table)),
        values_(program, table.pack) {}

  // Returns the milliseconds of weighing.
  double run() {
    use_last_shapes(program_);
    std::vector<ProgramOp> ops = std::move(program_.ops);
    program_.ops.clear();
    for (ProgramOp& op : ops) {
      const std::string title = op.title();  // taken before the op is moved from
      try {
        add(op);
      } catch (const std::bad_alloc& error) {
        throw OutOfMemory(title, error);
      }
    }
    for (const int output : program_.outputs) values_.need_plain(output);
    check_forced();
    return weighing_ms_;
  }

 private:
  void add(ProgramOp& op) {
    if (values_.defer(op) || choose_conv(op) || follow_packed(values_, op, table_)) return;
    need_plain_inputs(op);
    choose_linear(op);
    prepare_integer_product(op);
    values_.add_op(std::move(op));
  }

  void need_plain_inputs(const ProgramOp& op) {
    for (const int input : op.inputs)
      if (input >= 0) values_.need_plain(input);
  }

  // Weighs, puts a forced algorithm first, and records the costs in the op.
  template <class Weigh>
  auto choose(ProgramOp& op, Weigh&& weigh) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    auto choices = weigh();
    weighing_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    weighed_.insert(op.name);
    if (const auto forced = forced_.find(op.name); forced != forced_.end()) {
      const auto& [algorithm, parameter] = forced->second;
      const auto chosen = std::find_if(choices.begin(), choices.end(), [&](const auto& choice) {
        return choice.algorithm->name == algorithm && choice.parameter == parameter;
      });
      if (chosen == choices.end())
        throw Error(ErrorKind::model, "node '" + op.name + "': " + algorithm + "(" + std::to_string(parameter) +
                                          ") is not a candidate; see the plan for those that are");
      std::rotate(choices.begin(), chosen, chosen + 1);
    }
    for (const auto& choice : choices) op.candidates.push_back({choice.algorithm->name, choice.parameter, choice.us});
    op.predicted_us = choices.front().us;
    return choices.front();
  }

  void check_forced() const {
    for (const auto& [name, algorithm] : forced_) {
      if (weighed_.contains(name)) continue;
      constexpr std::size_t kMost = 16;
      std::string known;
      std::size_t count = 0;
      for (const std::string& node : weighed_)
        if (count++ < kMost) known += (known.empty() ? "'" : ", '") + node + "'";
      if (count > kMost) known += " and " + std::to_string(count - kMost) + " more";
      throw Error(ErrorKind::model, "algorithm " + algorithm.first + " for node '" + name + "', which has none to choose from; " +
                                        (known.empty() ? std::string("no node of this plan has") : "nodes that have: " + known));
    }
  }

  bool choose_conv(ProgramOp& op) {
    const bool plain_input = !op.inputs.empty() && !values_.is_packed(op.inputs[0]);
    const auto problem = conv_problem(program_, op, table_, plain_input);
    if (!problem) return false;
    const ConvChoice best = choose(op, [&] { return weigh_conv(*problem, rates_, op.attributes.get_string("algorithm", "")); });
    const EpilogueKernel epilogue(op.epilogue, table_, problem->shape.dtype);
    op.step = best.algorithm->make(*problem, best.parameter, epilogue);
    if (best.algorithm->pack == nullptr) {
      need_plain_inputs(op);
      values_.add_op(std::move(op));
    } else {
      add_packed_conv(std::move(op), *problem, best);
    }
    return true;
  }

  void add_packed_conv(ProgramOp op, const ConvProblem& problem, const ConvChoice& best) {
    op.inputs.resize(std::max(kSlope, op.inputs.size()), -1);
    const ProgramValue& given = values_.value(op.inputs[1]);
    const ScaledWeights* scaled = given.constant.storage() == nullptr ? given.scaled.get() : nullptr;
    const Tensor weights = scaled == nullptr ? given.constant : scaled->weights;
    std::string key = weights_key(conv_algorithms(), best, table_) + (problem.plain_input ? " plain " : " ") +
                      std::to_string(problem.shape.groups);
    if (scaled != nullptr) key += " " + scaled->key;
    op.inputs[1] = values_.add_constant(weights_.get(weights, key, [&] {
      const Tensor plain = scaled == nullptr ? weights : multiplied(*scaled, &scaled_);
      return best.algorithm->pack(problem, best.parameter, plain.data<float>());
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

  void choose_linear(ProgramOp& op) {
    const auto problem = linear_problem(program_, op, table_);
    if (!problem) return;
    const LinearChoice best = choose(op, [&] { return weigh(linear_algorithms(), *problem, rates_); });
    op.step = best.algorithm->make(*problem, best.parameter, EpilogueKernel(op.epilogue, table_));
    if (best.algorithm->pack == nullptr) return;
    const Tensor weights = values_.value(op.inputs[1]).constant;
    op.inputs[1] = values_.add_constant(weights_.get(weights, "linear " + weights_key(linear_algorithms(), best, table_), [&] {
      return best.algorithm->pack(*problem, best.parameter, weights.data<float>());
    }));
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
  const Forced& forced_;
  const Rates rates_;
  PackedValues values_;
  std::set<std::string> weighed_;    // nodes
  std::shared_ptr<Storage> scaled_;  // one product of weights and factors after the other, until it is packed
  double weighing_ms_ = 0;
};

}  // namespace

double HostKernels::choose(Program& program, PackedWeights& weights, const Forced& forced) const {
  return Search(program, table_, weights, forced).run();
}

}  // namespace walle
