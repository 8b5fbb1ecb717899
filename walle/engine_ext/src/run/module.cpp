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

Block::Block(std::shared_ptr<const Graph> graph, const Target& target) : graph_(std::move(graph)), target_(target) {
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
  std::vector<Draft> drafts;
  for (std::size_t left = graph_->nodes.size(); left > 0;) {
    throw_if_stopped();
    Draft plain;
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
    if (!plain.nodes.empty()) drafts.push_back(std::move(plain));
    if (!stop) continue;
    drafts.push_back({true, {*stop}, nullptr});
    done[*stop] = true;
    --left;
  }
  pieces_ = finished(drafts);
}

std::shared_ptr<const Block::Pieces> Block::pieces() const {
  const std::lock_guard lock(mutex_);
  return pieces_;
}

// Return the pieces with the members that depend on their order. A draft's own piece is kept where it has these already.
std::shared_ptr<const Block::Pieces> Block::finished(const std::vector<Draft>& drafts) const {
  std::vector<std::set<int>> needed(drafts.size());  // what each piece reads
  for (std::size_t i = 0; i < drafts.size(); ++i)
    for (const std::size_t node : drafts[i].nodes)
      for (const int value : reads(graph_->nodes[node])) needed[i].insert(value);
  std::set<int> later;
  for (const Output& output : graph_->outputs) later.insert(output.value);
  auto pieces = std::make_shared<Pieces>(drafts.size());
  for (std::size_t i = drafts.size(); i-- > 0;) {
    const Draft& draft = drafts[i];
    std::vector<int> outputs, inputs, dead;
    std::set<int> own;
    for (const std::size_t node : draft.nodes)
      for (const int output : graph_->nodes[node].outputs) {
        own.insert(output);
        (later.contains(output) ? outputs : dead).push_back(output);
      }
    for (const int value : needed[i]) {
      if (own.contains(value) || graph_->values[at(value)].kind == ValueKind::constant) continue;
      inputs.push_back(value);
      if (!later.contains(value)) dead.push_back(value);
    }
    later.insert(needed[i].begin(), needed[i].end());
    if (draft.piece != nullptr && draft.piece->inputs == inputs && draft.piece->outputs == outputs && draft.piece->dead == dead) {
      (*pieces)[i] = draft.piece;
      continue;
    }
    auto piece = std::make_shared<Piece>();
    piece->interpreted = draft.interpreted;
    piece->nodes = draft.nodes;
    if (draft.interpreted) {
      if (draft.piece != nullptr)
        piece->bodies = draft.piece->bodies;
      else
        for (const auto& [key, graph] : graph_->nodes[draft.nodes[0]].graphs)
          piece->bodies.push_back(std::make_shared<Block>(graph, target_));
    } else {
      piece->graph = extract(*graph_, draft.nodes, inputs, outputs);
    }
    piece->inputs = std::move(inputs);
    piece->outputs = std::move(outputs);
    piece->dead = std::move(dead);
    (*pieces)[i] = std::move(piece);
  }
  return pieces;
}

// Return the pieces with a plain one split at a node, which is interpreted from now on: nodes that do not depend on it come
// before, the others after. Later runs have these pieces too, unless another thread has split one meanwhile.
std::shared_ptr<const Block::Pieces> Block::split(const std::shared_ptr<const Pieces>& from, std::size_t index,
                                                  std::size_t node) {
  const auto producer = producers_of(*graph_);
  std::set<int> behind{static_cast<int>(node)};
  Draft first, last;
  for (const std::size_t one : (*from)[index]->nodes) {
    if (one == node) continue;
    bool depends = false;
    for (const int value : reads(graph_->nodes[one])) depends = depends || behind.contains(producer[at(value)]);
    if (depends) behind.insert(static_cast<int>(one));
    (depends ? last : first).nodes.push_back(one);
  }
  std::vector<Draft> drafts;
  for (std::size_t i = 0; i < from->size(); ++i) {
    const auto& piece = (*from)[i];
    if (i != index) {
      drafts.push_back({piece->interpreted, piece->nodes, piece});
      continue;
    }
    if (!first.nodes.empty()) drafts.push_back(first);
    drafts.push_back({true, {node}, nullptr});
    if (!last.nodes.empty()) drafts.push_back(last);
  }
  auto pieces = finished(drafts);
  const std::lock_guard lock(mutex_);
  if (pieces_ == from) pieces_ = pieces;
  return pieces;
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

// Null where the piece had to be split: `pieces` are others then.
std::shared_ptr<const Plan> Block::plan_for(std::shared_ptr<const Pieces>& pieces, std::size_t index,
                                            std::span<const Tensor> inputs) {
  const Piece& piece = *(*pieces)[index];
  if (auto plan = piece.plans.find(inputs)) return plan;
  std::optional<Loading> loading;
  if (piece.plans.last() == nullptr) loading.emplace();  // the first plan is part of opening the model
  std::vector<TensorType> types;
  for (const Tensor& input : inputs) types.push_back({input.dtype(), input.shape()});
  try {
    return piece.plans.add(make_plan(*piece.graph, std::move(types), {}, target_));
  } catch (const InputsNeeded& error) {
    pieces = split(pieces, index, piece.nodes[error.node()]);
    return nullptr;
  }
}

// False where the piece had to be split: `pieces` are others then.
bool Block::run_plain(std::shared_ptr<const Pieces>& pieces, std::size_t index, std::vector<Var>& env, ModuleRun& run) {
  const Piece& piece = *(*pieces)[index];
  if (const auto node = unfit(piece, env)) {
    pieces = split(pieces, index, *node);
    return false;
  }
  std::vector<Tensor> inputs;
  inputs.reserve(piece.inputs.size());
  for (const int input : piece.inputs) inputs.push_back(contiguous(std::get<Tensor>(env[at(input)])));
  const auto plan = plan_for(pieces, index, inputs);
  if (plan == nullptr) return false;
  auto outputs = run_plan(*plan, inputs, run.workspace);
  for (std::size_t i = 0; i < outputs.size(); ++i) env[at(piece.outputs[i])] = std::move(outputs[i]);
  return true;
}

void Block::run_interpreted(const Piece& piece, std::vector<Var>& env, ModuleRun& run) const {
  const Node& node = graph_->nodes[piece.nodes[0]];
  try {
    std::vector<Var> inputs, results;
    bool tensors = true;
    for (const int input : node.inputs) {
      inputs.push_back(input < 0 ? Var() : env[at(input)]);
      tensors = tensors && inputs.back().index() <= 1;
    }
    if (const FlowFn flow = flow_function(node.op->name)) {
      results = flow({node, std::move(inputs), piece.bodies, env, target_.kernels->host_table(), run});
    } else if (node.op->name == "Identity") {
      results = std::move(inputs);
    } else if (tensors) {
      std::vector<Tensor> values;
      for (const Var& input : inputs)
        values.push_back(std::holds_alternative<Tensor>(input) ? std::get<Tensor>(input) : Tensor());
      for (Tensor& result :
           evaluate(*node.op, values, node.attributes, static_cast<int>(node.outputs.size()), target_.kernels->host_table()))
        results.push_back(result.storage() ? Var(std::move(result)) : Var());
    } else {
      throw Error(ErrorKind::model, "it takes tensors, and one input is a sequence or an optional");
    }
    if (results.size() < node.outputs.size())
      throw Error(ErrorKind::model,
                  "it has " + std::to_string(results.size()) + " outputs, not " + std::to_string(node.outputs.size()));
    for (std::size_t i = 0; i < node.outputs.size(); ++i) env[at(node.outputs[i])] = std::move(results[i]);
  } catch (const Error& error) {
    throw Error(error.kind(), node.title() + ": " + error.what());
  } catch (const std::bad_alloc& error) {
    throw OutOfMemory(node.title(), error);
  }
}

std::vector<Var> Block::run(std::span<const Var> inputs, std::span<const Var> around, ModuleRun& run) {
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
  auto pieces = this->pieces();
  for (std::size_t i = 0; i < pieces->size();) {
    throw_if_stopped();
    if ((*pieces)[i]->interpreted)
      run_interpreted(*(*pieces)[i], env, run);
    else if (!run_plain(pieces, i, env, run))
      continue;  // the same place again: it holds another piece now
    for (const int value : (*pieces)[i]->dead) env[at(value)] = Absent{};
    ++i;
  }
  std::vector<Var> outputs;
  for (const Output& output : graph_->outputs) outputs.push_back(env[at(output.value)]);
  return outputs;
}

std::shared_ptr<const Plan> Block::prepare() {
  std::map<int, TensorType> types;
  for (const int input : graph_->inputs)
    if (known(graph_->values[at(input)])) types[input] = {graph_->values[at(input)].dtype, graph_->values[at(input)].shape};
  std::shared_ptr<const Plan> largest;
  auto pieces = this->pieces();
  for (std::size_t i = 0; i < pieces->size();) {
    const Piece& piece = *(*pieces)[i];
    if (piece.interpreted ||
        !std::all_of(piece.inputs.begin(), piece.inputs.end(), [&](int input) { return types.contains(input); })) {
      ++i;
      continue;
    }
    std::vector<Tensor> inputs;  // tensors of these types, with no memory behind them
    for (const int input : piece.inputs) {
      const TensorType& type = types[input];
      const auto nowhere =
          Storage::borrow(nullptr, static_cast<std::size_t>(element_count(type.shape)) * item_size(type.dtype), false, [] {});
      inputs.emplace_back(nowhere, type.dtype, type.shape, contiguous_strides(type.shape), 0);
    }
    const auto plan = plan_for(pieces, i, inputs);
    if (plan == nullptr) continue;
    if (largest == nullptr || plan->arena_bytes > largest->arena_bytes) largest = plan;
    for (std::size_t output = 0; output < plan->outputs.size(); ++output) types[piece.outputs[output]] = plan->outputs[output];
    ++i;
  }
  return largest;
}

Module::Module(std::shared_ptr<const Graph> graph, const Target& target, std::int64_t max_rounds)
    : target_(target),
      max_rounds_(max_rounds),
      graph_(std::move(graph)),
      block_(rewritten(graph_), target_),
      workspaces_(target_.device(), target_.threads) {
  const WorkspacePool::Run first(workspaces_, {});  // makes threads and memory while the model is opened
  if (const auto largest = block_.prepare()) first.workspace().reserve(*largest);
}

std::vector<Var> Module::run(std::span<const Var> inputs, const StopLimits& limits) {
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
  const WorkspacePool::Run active(workspaces_, limits);
  ModuleRun run{active.workspace(), max_rounds_};
  return block_.run(inputs, {}, run);
}

}  // namespace walle
