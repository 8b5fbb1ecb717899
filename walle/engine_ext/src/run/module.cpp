#include "run/module.h"
#include "core/work_context.h"
#include "run/execute.h"

#include <algorithm>
#include <set>

#include "graph/index.h"
#include "operators/eager.h"
#include "rewrite/rewrite.h"
#include "run/flow.h"
#include "run/session.h"

namespace walle {

namespace {

// Return, for each value, the node that computes it; -1: none.
std::vector<int> producers_of(const Graph& graph) {
  std::vector<int> producer(graph.values.size(), -1);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const int output : graph.nodes[i].outputs) producer[at(output)] = static_cast<int>(i);
  return producer;
}

// Return the piece of `graph` that consists of `nodes` as a graph.
std::shared_ptr<const Graph> extract(const Graph& graph, std::span<const std::size_t> nodes, std::span<const int> inputs,
                                     std::span<const int> outputs) {
  auto piece = std::make_shared<Graph>();
  piece->name = graph.name;
  piece->packed = graph.packed;
  std::map<int, int> number;
  const auto add = [&](int value, ValueKind kind) {
    const auto [place, fresh] = number.try_emplace(value, static_cast<int>(piece->values.size()));
    if (!fresh) return place->second;
    Value added = graph.values[at(value)];
    if (added.kind != ValueKind::constant) added.kind = kind;
    piece->values.push_back(std::move(added));
    return place->second;
  };
  for (const int input : inputs) piece->inputs.push_back(add(input, ValueKind::input));
  for (const std::size_t index : nodes) {
    Node node = graph.nodes[index];
    for (int& input : node.inputs)
      if (input >= 0) input = add(input, ValueKind::result);
    for (int& output : node.outputs) output = add(output, ValueKind::result);
    piece->nodes.push_back(std::move(node));
  }
  for (const int output : outputs) piece->outputs.push_back({graph.values[at(output)].name, add(output, ValueKind::result)});
  return piece;
}

}  // namespace

Block::Block(std::shared_ptr<const Graph> graph, const Target& target, Team& team, std::int64_t& rounds_left)
    : graph_(std::move(graph)), target_(target), team_(team), rounds_left_(rounds_left) {
  // All plain nodes that are ready form one piece; then one interpreted node runs, which makes others ready.
  const auto producer = producers_of(*graph_);
  std::vector<bool> done(graph_->nodes.size(), false);
  const auto ready = [&](std::size_t node) {
    for (const int value : reads(graph_->nodes[node])) {
      const int from = producer[at(value)];
      if (from >= 0 && !done[at(from)]) return false;
    }
    return true;
  };
  for (std::size_t left = graph_->nodes.size(); left > 0;) {
    Piece plain;
    std::optional<std::size_t> stop;
    for (std::size_t i = 0; i < graph_->nodes.size(); ++i) {  // the nodes are in topological order: one pass finds all
      if (done[i] || !ready(i)) continue;
      if (graph_->nodes[i].op->module_only()) {
        if (!stop) stop = i;
        continue;
      }
      plain.nodes.push_back(i);
      done[i] = true;
      --left;
    }
    if (!plain.nodes.empty()) pieces_.push_back(std::move(plain));
    if (!stop) continue;
    pieces_.push_back(interpret(*stop));
    done[*stop] = true;
    --left;
  }
  finish();
}

Block::Piece Block::interpret(std::size_t node) const {
  Piece piece;
  piece.interpreted = true;
  piece.nodes = {node};
  for (const auto& [key, graph] : graph_->nodes[node].graphs)
    piece.bodies.push_back(std::make_unique<Block>(graph, target_, team_, rounds_left_));
  return piece;
}

void Block::finish() {
  std::vector<std::set<int>> needed(pieces_.size());  // what each piece reads
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    for (const std::size_t node : pieces_[i].nodes)
      for (const int value : reads(graph_->nodes[node])) needed[i].insert(value);
  std::set<int> later;
  for (const Output& output : graph_->outputs) later.insert(output.value);
  for (std::size_t i = pieces_.size(); i-- > 0;) {
    Piece& piece = pieces_[i];
    std::vector<int> outputs, inputs;
    std::set<int> own;
    piece.dead.clear();
    for (const std::size_t node : piece.nodes)
      for (const int output : graph_->nodes[node].outputs) {
        own.insert(output);
        if (later.contains(output))
          outputs.push_back(output);
        else
          piece.dead.push_back(output);
      }
    for (const int value : needed[i]) {
      if (own.contains(value) || graph_->values[at(value)].kind == ValueKind::constant) continue;
      inputs.push_back(value);
      if (!later.contains(value)) piece.dead.push_back(value);
    }
    later.insert(needed[i].begin(), needed[i].end());
    if (!piece.interpreted && (piece.graph == nullptr || piece.inputs != inputs || piece.outputs != outputs)) {
      piece.graph = extract(*graph_, piece.nodes, inputs, outputs);
      piece.plans = {};
    }
    piece.inputs = std::move(inputs);
    piece.outputs = std::move(outputs);
  }
}

// Splits a plain piece at a node, which is interpreted from now on: nodes that do not depend on it come before, the others after.
void Block::split(std::size_t index, std::size_t node) {
  const auto producer = producers_of(*graph_);
  const std::vector<std::size_t> nodes = pieces_[index].nodes;
  std::set<int> behind{static_cast<int>(node)};
  Piece first, last;
  for (const std::size_t one : nodes) {
    if (one == node) continue;
    bool depends = false;
    for (const int value : reads(graph_->nodes[one])) depends = depends || behind.contains(producer[at(value)]);
    if (depends) behind.insert(static_cast<int>(one));
    (depends ? last : first).nodes.push_back(one);
  }
  std::vector<Piece> pieces;
  if (!first.nodes.empty()) pieces.push_back(std::move(first));
  pieces.push_back(interpret(node));
  if (!last.nodes.empty()) pieces.push_back(std::move(last));
  pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(index));
  pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(index), std::make_move_iterator(pieces.begin()),
                 std::make_move_iterator(pieces.end()));
  finish();
}

// Return the first node of a plain piece that reads a value that is not a tensor.
std::optional<std::size_t> Block::unfit(const Piece& piece, std::span<const Var> env) const {
  for (const std::size_t node : piece.nodes)
    for (const int input : graph_->nodes[node].inputs)
      if (input >= 0 && std::find(piece.inputs.begin(), piece.inputs.end(), input) != piece.inputs.end() &&
          !std::holds_alternative<Tensor>(env[at(input)]))
        return node;
  return std::nullopt;
}

// Null where the piece had to be split.
std::shared_ptr<Plan> Block::plan_for(std::size_t index, std::span<const Tensor> inputs) {
  Piece& piece = pieces_[index];
  if (auto plan = piece.plans.find(inputs)) return plan;
  std::optional<Loading> loading;
  if (piece.plans.last() == nullptr) loading.emplace();  // the first plan is part of opening the model
  std::vector<TensorType> types;
  for (const Tensor& input : inputs) types.push_back({input.dtype(), input.shape()});
  try {
    piece.plans.add(make_plan(*piece.graph, std::move(types), {}, target_));
  } catch (const InputsNeeded& error) {
    split(index, piece.nodes[error.node()]);
    return nullptr;
  }
  return piece.plans.last();
}

// False where the piece had to be split.
bool Block::run_plain(std::size_t index, std::vector<Var>& env) {
  Piece& piece = pieces_[index];
  if (const auto node = unfit(piece, env)) {
    split(index, *node);
    return false;
  }
  std::vector<Tensor> inputs;
  inputs.reserve(piece.inputs.size());
  for (const int input : piece.inputs) inputs.push_back(contiguous(std::get<Tensor>(env[at(input)])));
  const auto plan = plan_for(index, inputs);
  if (plan == nullptr) return false;
  auto outputs = run_plan(*plan, inputs, team_);
  for (std::size_t i = 0; i < outputs.size(); ++i) env[at(piece.outputs[i])] = std::move(outputs[i]);
  return true;
}

void Block::run_interpreted(const Piece& piece, std::vector<Var>& env) {
  const Node& node = graph_->nodes[piece.nodes[0]];
  try {
    std::vector<Var> inputs, results;
    bool tensors = true;
    for (const int input : node.inputs) {
      inputs.push_back(input < 0 ? Var() : env[at(input)]);
      tensors = tensors && inputs.back().index() <= 1;
    }
    if (const FlowFn flow = flow_function(node.op->name)) {
      results = flow({node, std::move(inputs), piece.bodies, env, *target_.table, rounds_left_});
    } else if (node.op->name == "Identity") {
      results = std::move(inputs);
    } else if (tensors) {
      std::vector<Tensor> values;
      for (const Var& input : inputs)
        values.push_back(std::holds_alternative<Tensor>(input) ? std::get<Tensor>(input) : Tensor());
      for (Tensor& result : evaluate(*node.op, values, node.attributes, static_cast<int>(node.outputs.size()), *target_.table))
        results.push_back(result.storage() ? Var(std::move(result)) : Var());
    } else {
      throw Error(ErrorKind::model, "it takes tensors, and one input is a sequence or an optional");
    }
    if (results.size() < node.outputs.size())
      throw Error(ErrorKind::model,
                  "it has " + std::to_string(results.size()) + " outputs, not " + std::to_string(node.outputs.size()));
    for (std::size_t i = 0; i < node.outputs.size(); ++i) env[at(node.outputs[i])] = std::move(results[i]);
  } catch (const Error& error) {
    throw Error(error.kind(), "node '" + node.name + "' (" + std::string(node.op->name) + "): " + error.what());
  }
}

std::vector<Var> Block::run(std::span<const Var> inputs, std::span<const Var> around) {
  if (inputs.size() != graph_->inputs.size())
    throw Error(ErrorKind::model, "graph '" + graph_->name + "' takes " + std::to_string(graph_->inputs.size()) +
                                      " inputs and is given " + std::to_string(inputs.size()));
  std::vector<Var> env(graph_->values.size());
  for (std::size_t i = 0; i < env.size(); ++i) {
    const Value& value = graph_->values[i];
    if (value.kind == ValueKind::constant && value.scaled == nullptr) env[i] = value.constant;  // else only a plan reads it
    if (value.kind == ValueKind::outer) env[i] = around[at(value.outer)];
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) env[at(graph_->inputs[i])] = inputs[i];
  for (std::size_t i = 0; i < pieces_.size();) {
    throw_if_stopped();
    if (pieces_[i].interpreted)
      run_interpreted(pieces_[i], env);
    else if (!run_plain(i, env))
      continue;  // the same place again: it holds another piece now
    for (const int value : pieces_[i].dead) env[at(value)] = Absent{};
    ++i;
  }
  std::vector<Var> outputs;
  for (const Output& output : graph_->outputs) outputs.push_back(env[at(output.value)]);
  return outputs;
}

void Block::prepare() {
  std::map<int, TensorType> types;
  for (const int input : graph_->inputs)
    if (known(graph_->values[at(input)])) types[input] = {graph_->values[at(input)].dtype, graph_->values[at(input)].shape};
  for (std::size_t i = 0; i < pieces_.size();) {
    if (pieces_[i].interpreted ||
        !std::all_of(pieces_[i].inputs.begin(), pieces_[i].inputs.end(), [&](int input) { return types.contains(input); })) {
      ++i;
      continue;
    }
    std::vector<Tensor> inputs;  // of these types, with no memory behind them
    for (const int input : pieces_[i].inputs) {
      const TensorType& type = types[input];
      const auto nowhere =
          Storage::borrow(nullptr, static_cast<std::size_t>(element_count(type.shape)) * item_size(type.dtype), false, [] {});
      inputs.emplace_back(nowhere, type.dtype, type.shape, contiguous_strides(type.shape), 0);
    }
    const auto plan = plan_for(i, inputs);
    if (plan == nullptr) continue;
    for (std::size_t output = 0; output < plan->outputs.size(); ++output)
      types[pieces_[i].outputs[output]] = plan->outputs[output];
    ++i;
  }
}

Module::Module(std::shared_ptr<const Graph> graph, const Target& target, std::int64_t max_rounds)
    : target_(target),
      team_(target.threads),
      max_rounds_(max_rounds),
      graph_(std::move(graph)),
      block_(rewritten(graph_), target_, team_, rounds_left_) {
  block_.prepare();
}

std::vector<Var> Module::run(std::span<const Var> inputs) {
  const Graph& graph = block_.graph();
  if (inputs.size() != graph.inputs.size())
    throw Error(ErrorKind::model,
                "the model takes " + std::to_string(graph.inputs.size()) + " inputs, not " + std::to_string(inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph.values[at(graph.inputs[i])];
    if (value.kind == ValueKind::object) continue;
    if (!std::holds_alternative<Tensor>(inputs[i]))
      throw Error(ErrorKind::model, "input '" + value.name + "' is " + kind_of(inputs[i]) + ", the model takes a tensor");
    check_input(value, std::get<Tensor>(inputs[i]));
  }
  const std::lock_guard lock(mutex_);
  rounds_left_ = max_rounds_;
  return block_.run(inputs, {});
}

}  // namespace walle
