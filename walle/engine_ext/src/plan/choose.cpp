// Layouts and algorithms over a whole program. A value is kept plain, packed (its channels in blocks of the backend's `pack`), or
// both where both are read; rasters change between the two, and are merged with the rasters around them.
#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "atomic/packed_pooling.h"
#include "atomic/products/integer_products.h"
#include "atomic/products/packed_convolution.h"
#include "atomic/products/packed_linear.h"
#include "kernels/bfloat16.h"
#include "plan/index.h"
#include "plan/packing.h"
#include "plan/program.h"
#include "plan/rates.h"

namespace walle {

namespace {

// Of a list of records with names, the one of a name that is there.
template <class Algorithm>
const Algorithm* named(std::span<const Algorithm* const> all, std::string_view name) {
  return *std::find_if(all.begin(), all.end(), [&](const Algorithm* algorithm) { return algorithm->name == name; });
}

// Few channels are read where they lie: blocks of them would be mostly padding.
bool reads_plain(const PackedConv& conv) { return conv.shape.groups == 1 && conv.shape.in_channels * 2 <= conv.pack(); }

// The packed convolution that an operator can become: of float32 by constant weights and bias, with no algorithm given.
// `plain`: x is there in its plain layout.
std::optional<PackedConv> packed_conv(const Program& program, const ProgramOp& op, const Table& table, bool plain) {
  if (op.is_raster() || op.op->name != "Conv") return std::nullopt;
  const auto value = [&](std::size_t operand) -> const ProgramValue& { return program.values[at(op.inputs[operand])]; };
  if (value(0).dtype != DType::f32 || !value(1).is_constant()) return std::nullopt;
  if (op.inputs.size() > 2 && op.inputs[2] >= 0 && !value(2).is_constant()) return std::nullopt;
  if (!op.attributes.get_string("algorithm", "").empty()) return std::nullopt;
  PackedConv conv{conv_shape(value(0).shape, value(1).shape, DType::f32, op.attributes), &table, plain};
  conv.plain_input = plain && reads_plain(conv);
  return conv;
}

// The candidate that stands for the algorithms of plain layouts.
constexpr std::string_view kPlain = "plain";

// All of them, the cheapest first; none: no packed algorithm takes it. Where the only ones are bought by multiplying zeros
// between groups, the algorithms of plain layouts are one more.
std::vector<Candidate> candidates_of(const PackedConv& conv, const Rates& rates) {
  std::vector<Candidate> candidates;
  for (const PackedAlgorithm* algorithm : packed_algorithms())
    for (const std::int64_t parameter : algorithm->parameters(conv))
      candidates.push_back({algorithm->name, parameter, rates.us(algorithm->work(conv, parameter))});
  if (std::any_of(candidates.begin(), candidates.end(), [](const Candidate& one) { return one.algorithm == kPackedGroups.name; }))
    candidates.push_back({kPlain, 0, rates.us(plain_conv_work(conv.shape))});
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  return candidates;
}

LinearShape linear_shape(const Dims& result, const Dims& w, const Table& table) {
  return {w[1] == 0 ? 0 : element_count(result) / w[1], w[0], w[1], &table};
}
// Those that are taken by name alone come last.
std::vector<Candidate> candidates_of(const LinearShape& shape, const Rates& rates) {
  std::vector<Candidate> candidates, by_name;
  for (const LinearAlgorithm* algorithm : linear_algorithms())
    for (const std::int64_t parameter : algorithm->parameters(shape))
      (algorithm->by_name ? by_name : candidates)
          .push_back({algorithm->name, parameter, rates.us(algorithm->work(shape, parameter))});
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  candidates.insert(candidates.end(), by_name.begin(), by_name.end());
  return candidates;
}
// Algorithms that share packed weights have one name here.
std::string_view linear_order(const LinearAlgorithm& algorithm) {
  return algorithm.pack == kLinearPacked.pack ? kLinearPacked.name : algorithm.name;
}

bool is_integer_product(const OpDef& op) { return op.name == "IntegerConv" || op.name == "IntegerLinear"; }

using Clock = std::chrono::steady_clock;

class Choosing {
 public:
  Choosing(Program& program, const Table& table, PackedWeights& weights, const Forced& forced)
      : program_(program),
        table_(table),
        weights_(weights),
        forced_(forced),
        packing_(table.pack),
        rates_(rates(table)),
        packed_(program.values.size(), -1),
        plain_(program.values.size(), true) {}

  // Returns the milliseconds of the search.
  double run() {
    give_last_shapes();
    std::vector<ProgramOp> ops = std::move(program_.ops);
    program_.ops.clear();
    for (ProgramOp& op : ops) {
      if (defer(op) || choose_conv(op) || follow(op)) continue;
      for (const int input : op.inputs)
        if (input >= 0) need_plain(input);
      choose_linear(op);
      share_integer_weights(op);
      program_.ops.push_back(std::move(op));
    }
    for (const int output : program_.outputs) need_plain(output);
    check_forced();
    return searched_ms_;
  }

 private:
  // Copied where values are added meanwhile: references into the list would dangle.
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }
  std::int64_t pack() const { return table_.pack; }

  int add_value(Dims shape) {
    program_.values.push_back({DType::f32, std::move(shape), {}, -1});
    packed_.push_back(-1);
    plain_.push_back(true);
    return static_cast<int>(program_.values.size() - 1);
  }
  int add_constant(Tensor tensor) {
    const int index = add_value(tensor.shape());
    program_.values[at(index)].constant = std::move(tensor);
    return index;
  }

  // Declares that `plain` will be given in its packed form alone.
  int packed_result(int plain) {
    const int index = add_value(packing_.shape(value(plain).shape));
    packed_[at(plain)] = index;
    plain_[at(plain)] = false;
    return index;
  }
  bool only_packed(int index) const { return index >= 0 && packed_[at(index)] >= 0 && !plain_[at(index)]; }

  void add_raster(int from, int to, std::vector<Region> regions, std::string name) {
    ProgramOp raster;
    raster.name = std::move(name);
    raster.inputs = {from};
    raster.output = to;
    raster.regions = std::move(regions);
    program_.ops.push_back(std::move(raster));
    ++program_.rasters_made;
  }

  // A raster's result that is read in a shape of fewer axes alone (the last step of a channel shuffle) has that shape from the
  // start.
  void give_last_shapes() {
    std::vector<int> readers(program_.values.size(), 0), giver(program_.values.size(), -1);
    for (const ProgramOp& op : program_.ops)
      for (const int input : op.inputs)
        if (input >= 0) ++readers[at(input)];
    for (const int output : program_.outputs) ++readers[at(output)];
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      ProgramOp& op = program_.ops[i];
      if (op.is_raster()) giver[at(op.output)] = static_cast<int>(i);
      if (rename_offset(program_, op) != std::int64_t{0}) continue;
      const int source = op.inputs[at(op.regions[0].source)];
      if (giver[at(source)] < 0 || readers[at(source)] != 1 || value(op.output).shape.size() >= value(source).shape.size() ||
          element_count(value(source).shape) != element_count(value(op.output).shape))
        continue;
      ProgramOp& made = program_.ops[at(giver[at(source)])];
      made.output = op.output;
      giver[at(op.output)] = giver[at(source)];
      op.output = -1;
    }
    std::erase_if(program_.ops, [](const ProgramOp& op) { return op.output < 0; });
  }

  // A value that is the elements of another one in another shape, and nothing else: made no sooner than somebody reads it plain.
  bool defer(ProgramOp& op) {
    if (!op.is_raster() || rename_offset(program_, op) != std::int64_t{0}) return false;
    const int source = root(op.inputs[at(op.regions[0].source)]);
    if (!only_packed(source) || element_count(value(source).shape) != element_count(value(op.output).shape)) return false;
    op.inputs = {source};
    op.regions[0].source = 0;
    plain_[at(op.output)] = false;
    deferred_.emplace(op.output, std::move(op));
    return true;
  }
  int root(int index) const {
    const auto found = deferred_.find(index);
    return found == deferred_.end() ? index : found->second.inputs[0];
  }

  void need_plain(int index) {
    if (plain_[at(index)]) return;
    if (const auto found = deferred_.find(index); found != deferred_.end()) {
      need_plain(found->second.inputs[0]);
      program_.ops.push_back(std::move(found->second));
      deferred_.erase(found);
      plain_[at(index)] = true;
      return;
    }
    add_raster(packed_[at(index)], index, packing_.to_plain(value(index).shape), "unpack");
    plain_[at(index)] = true;
  }
  int need_packed(int index) {
    if (packed_[at(index)] < 0) {
      need_plain(index);
      const Dims shape = value(index).shape;
      const int result = add_value(packing_.shape(shape));
      packed_[at(index)] = result;
      add_raster(index, result, packing_.to_packed(shape), "pack");
    }
    return packed_[at(index)];
  }

  // A bias or slope in whole blocks, so that kernels read whole vectors.
  int padded_by_channel(int index, std::int64_t groups) {
    if (index < 0) return -1;
    const Tensor given = value(index).constant;
    const std::int64_t channels = given.size() / groups, width = packing_.blocks_of(channels) * pack();
    if (given.size() % pack() == 0 && channels * groups == width * groups) return index;
    Tensor padded = Tensor::empty(DType::f32, {groups * width});
    std::fill_n(padded.data<float>(), groups * width, 0.0f);
    for (std::int64_t g = 0; g < groups; ++g)
      std::copy_n(given.data<float>() + g * channels, channels, padded.data<float>() + g * width);
    return add_constant(std::move(padded));
  }

  bool choose_conv(ProgramOp& op) {
    const std::optional<PackedConv> packable =
        op.is_raster() || op.inputs.empty() ? std::nullopt : packed_conv(program_, op, table_, packed_[at(op.inputs[0])] < 0);
    if (!packable) return false;
    PackedConv conv = *packable;
    op.inputs.resize(std::max<std::size_t>(4, op.inputs.size()), -1);
    const int x = op.inputs[0], w = op.inputs[1], bias = op.inputs[2], residual = op.inputs[3];
    const auto searching = Clock::now();
    std::vector<Candidate> candidates = candidates_of(conv, rates_);
    searched_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - searching).count();
    if (candidates.empty()) return false;
    put_forced_first(op.name, candidates);
    if (candidates.front().algorithm == kPlain) {
      op.predicted_us = candidates.front().us;
      op.candidates = std::move(candidates);
      return false;
    }
    const PackedAlgorithm* best = named(packed_algorithms(), candidates.front().algorithm);
    const std::int64_t parameter = candidates.front().parameter;

    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const auto low = static_cast<float>(op.attributes.get_float("low", -kInfinity));
    const auto high = static_cast<float>(op.attributes.get_float("high", kInfinity));
    conv.activation = Activation(op.attributes, table_);
    const Tensor& weights = value(w).constant;
    const Tensor packed =
        weights_.get(weights, key(*best, parameter, conv), [&] { return best->pack(conv, parameter, weights.data<float>()); });

    ProgramOp made;
    made.name = op.name;
    made.op = op.op;
    const std::int64_t groups = best == &kPackedDepthwise || best == &kPackedGroups ? 1 : conv.shape.groups;
    made.inputs = {conv.plain_input ? x : need_packed(x), add_constant(packed), padded_by_channel(bias, groups),
                   residual < 0 ? -1 : need_packed(residual)};
    if (conv.activation.has_slope()) made.inputs.push_back(padded_by_channel(op.inputs[kSlope], groups));
    if (conv.plain_input) need_plain(x);
    made.step = best->make(conv, parameter, low, high);
    made.predicted_us = candidates.front().us;
    made.candidates = candidates;
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  // A node that was not weighed cannot be forced.
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

  void put_forced_first(const std::string& name, std::vector<Candidate>& candidates) {
    weighed_.insert(name);
    const auto forced = forced_.find(name);
    if (forced == forced_.end()) return;
    const auto& [algorithm, parameter] = forced->second;
    const auto wanted = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& one) {
      return one.algorithm == algorithm && one.parameter == parameter;
    });
    if (wanted == candidates.end())
      throw Error(ErrorKind::model, "node '" + name + "': " + algorithm + "(" + std::to_string(parameter) +
                                        ") is no candidate; see the plan for those that are");
    std::rotate(candidates.begin(), wanted, wanted + 1);
  }

  // What the order of packed weights hangs on, beside their shape.
  std::string key(const PackedAlgorithm& algorithm, std::int64_t parameter, const PackedConv& conv) const {
    return std::string(table_.name) + ' ' + std::string(algorithm.name) + ' ' + std::to_string(parameter) +
           (conv.plain_input ? " plain " : " ") + std::to_string(conv.shape.groups);
  }

  void choose_linear(ProgramOp& op) {
    if (op.is_raster() || op.op->name != "Linear" || !value(op.inputs[1]).is_constant()) return;
    const Tensor& w = value(op.inputs[1]).constant;
    const LinearShape shape = linear_shape(value(op.output).shape, w.shape(), table_);
    const auto searching = Clock::now();
    op.candidates = candidates_of(shape, rates_);
    searched_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - searching).count();
    put_forced_first(op.name, op.candidates);
    const Candidate best = op.candidates.front();
    const LinearAlgorithm& algorithm = *named(linear_algorithms(), best.algorithm);
    op.predicted_us = best.us;
    const Tensor packed = weights_.get(
        w, std::string(table_.name) + " linear " + std::string(linear_order(algorithm)) + std::to_string(best.parameter),
        [&] { return algorithm.pack(shape, best.parameter, w.data<float>()); });
    std::vector<Layout> inputs;
    for (const int input : op.inputs)
      inputs.push_back(input < 0
                           ? Layout{DType::f32, {}, {}, nullptr, true}
                           : Layout{DType::f32, value(input).shape, contiguous_strides(value(input).shape), nullptr, false});
    op.step = algorithm.make({inputs, {DType::f32, value(op.output).shape}, op.attributes, table_}, best.parameter);
    op.inputs[1] = add_constant(packed);
  }

  // Products of bytes have one algorithm on each backend.
  void share_integer_weights(ProgramOp& op) {
    if (op.is_raster() || !is_integer_product(*op.op)) return;
    const bool linear = op.op->name == "IntegerLinear";
    const Tensor w = value(op.inputs[1]).constant;
    const IntegerShape shape(std::array{value(op.inputs[0]).shape, w.shape()}, op.attributes, linear, bytes(table_));
    const Tensor packed = weights_.get(w, shape.key(), [&] { return shape.pack(w); });
    std::vector<Layout> inputs;
    for (const int input : op.inputs)
      inputs.push_back(
          input < 0 ? Layout{DType::f32, {}, {}, nullptr, true}
                    : Layout{value(input).dtype, value(input).shape, contiguous_strides(value(input).shape), nullptr, false});
    const ProgramValue& result = value(op.output);
    op.step = make_integer_product({inputs, {result.dtype, result.shape}, op.attributes, table_}, linear, packed);
    op.inputs[1] = add_constant(packed);
  }

  // Whether the op was made to read and write packed values, because what it reads is there in that form alone.
  bool follow(ProgramOp& op) {
    if (op.is_raster())
      for (int& input : op.inputs) input = root(input);
    const bool any = std::any_of(op.inputs.begin(), op.inputs.end(), [&](int input) { return only_packed(input); });
    if (!any || value(op.output).dtype != DType::f32) return false;
    if (op.is_raster()) return follow_raster(op);
    if (op.op->name == "PoolMax" || op.op->name == "PoolMean" || op.op->name == "PoolSum") return follow_pool(op);
    if (op.op->fused != nullptr && op.op->fused->is_map()) return follow_elementwise(op);
    switch (op.op->family) {
      case Family::unary: return follow_elementwise(op);
      case Family::binary: return follow_elementwise(op);
      case Family::reduce:
      case Family::mean: return follow_reduction(op);
      default: return false;
    }
  }

  bool follow_pool(ProgramOp& op) {
    ProgramOp made = op;
    made.step = make_packed_pool(op.op->name, value(op.inputs[0]).shape, op.attributes, table_);
    made.inputs = {packed_[at(op.inputs[0])]};
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  bool follow_elementwise(ProgramOp& op) {
    const Dims shape = value(op.output).shape;
    std::vector<int> inputs;
    if (shape.size() < 2) return false;
    for (const int input : op.inputs)
      if (!can_follow(input, shape)) return false;
    for (const int input : op.inputs) inputs.push_back(follower(input, shape));
    ProgramOp made = op;
    made.inputs = std::move(inputs);
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  // A constant that has one number for each channel, or one in all.
  static bool by_channel(const ProgramValue& constant, const Dims& shape) {
    if (element_count(constant.shape) == 1) return true;
    const std::size_t rank = constant.shape.size();
    for (std::size_t i = 0; i < rank; ++i)
      if (constant.shape[i] != (i + shape.size() - rank == 1 ? shape[1] : 1)) return false;
    return rank + 1 >= shape.size();
  }
  bool can_follow(int input, const Dims& shape) const {
    const ProgramValue& given = value(input);
    if (given.is_constant()) return by_channel(given, shape);
    return given.shape.size() == shape.size() && given.shape[1] == shape[1];
  }
  int follower(int input, const Dims& shape) {
    const ProgramValue given = value(input);
    if (!given.is_constant()) return need_packed(input);
    if (element_count(given.shape) == 1) {
      Tensor one = Tensor::empty(DType::f32, {});
      *one.data<float>() = *given.constant.data<float>();
      return add_constant(std::move(one));
    }
    Dims dims = packing_.shape(shape);
    for (std::size_t i = 0; i + 1 < dims.size(); ++i)
      if (i != 1) dims[i] = 1;
    Tensor spread = Tensor::empty(DType::f32, dims);
    std::fill_n(spread.data<float>(), element_count(dims), 1.0f);
    std::copy_n(given.constant.data<float>(), shape[1], spread.data<float>());
    return add_constant(std::move(spread));
  }

  // Over all spatial axes, which stay with size 1.
  bool follow_reduction(ProgramOp& op) {
    const Dims from = value(op.inputs[0]).shape, to = value(op.output).shape;
    if (from.size() < 3 || op.axes.size() != from.size() - 2 || op.axes.front() != 2 || to.size() != from.size()) return false;
    ProgramOp made = op;
    made.inputs = {packed_[at(op.inputs[0])]};
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  // A raster that moves whole planes of channels, or the same way within every plane.
  bool follow_raster(ProgramOp& op) {
    std::vector<Dims> sources;
    for (const int input : op.inputs) sources.push_back(value(input).shape);
    auto regions = packing_.follow(sources, value(op.output).shape, op.regions);
    if (!regions) return false;
    ProgramOp made = op;
    for (int& input : made.inputs)
      if (element_count(value(input).shape) != 1 || only_packed(input)) input = need_packed(input);
    made.regions = std::move(*regions);
    made.output = packed_result(op.output);
    program_.ops.push_back(std::move(made));
    return true;
  }

  Program& program_;
  const Table& table_;
  PackedWeights& weights_;
  const Forced& forced_;
  std::set<std::string> weighed_;  // nodes
  Packing packing_;
  const Rates rates_;
  std::vector<int> packed_;            // by value: its packed form, -1 for none
  std::map<int, ProgramOp> deferred_;  // by output
  double searched_ms_ = 0;
  std::vector<bool> plain_;  // by value: whether its plain form is there
};

}  // namespace

double choose(Program& program, const Table& table, PackedWeights& weights, const Forced& forced) {
  return Choosing(program, table, weights, forced).run();
}

double predict_us(const Program& program, const Table& table) {
  constexpr double kBytesOfElement = 4;  // products of bytes in one operation of the tile kernel
  const Rates rate = rates(table);
  const auto shape = [&](int value) -> const Dims& { return program.values[at(value)].shape; };
  const auto bytes = [&](int value) {
    return value < 0 ? 0.0
                     : static_cast<double>(element_count(shape(value)) *
                                           static_cast<std::int64_t>(item_size(program.values[at(value)].dtype)));
  };
  double us = 0;
  for (const ProgramOp& op : program.ops) {
    if (const auto conv = packed_conv(program, op, table, false)) {
      const auto candidates = candidates_of(*conv, rate);
      if (!candidates.empty()) {
        us += candidates.front().us;
        continue;
      }
    }
    if (!op.is_raster() && op.op->name == "Conv" && program.values[at(op.output)].dtype == DType::f32) {
      us += rate.us(plain_conv_work(conv_shape(shape(op.inputs[0]), shape(op.inputs[1]), DType::f32, op.attributes)));
      continue;
    }
    if (!op.is_raster() && op.op->name == "Linear" && program.values[at(op.inputs[1])].is_constant()) {
      us += candidates_of(linear_shape(shape(op.output), shape(op.inputs[1]), table), rate).front().us;
      continue;
    }
    Work work;
    for (const int input : op.inputs) work.moved += bytes(input);
    work.moved += bytes(op.output);
    const bool product = !op.is_raster() && (op.op->name == "Linear" || op.op->name == "MatMul");
    if (product) work.panel = 2.0 * static_cast<double>(element_count(shape(op.output)) * shape(op.inputs[0]).back());
    if (!op.is_raster() && is_integer_product(*op.op)) {
      const Dims &w = shape(op.inputs[1]), &out = shape(op.output);
      const double columns = std::max<double>(1, static_cast<double>(out.back()));
      work.panel =
          2.0 * static_cast<double>(element_count(out)) * static_cast<double>(element_count(w)) / columns / kBytesOfElement;
    }
    us += rate.us(work);
  }
  return us;
}

}  // namespace walle
