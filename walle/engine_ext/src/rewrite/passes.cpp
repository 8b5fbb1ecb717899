// The table of passes, and their run over a graph.
#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "graph/index.h"
#include "operators/eager.h"
#include "rewrite/match.h"

namespace walle {

namespace {

constexpr std::string_view kWindow = "auto_pad dilations group kernel_shape pads strides";

constexpr std::size_t kAnyOperands = std::numeric_limits<std::size_t>::max();

constexpr Crossing kNorm[] = {
    {"BatchNormalization", "epsilon momentum", 5, true},
    {"Conv", kWindow, 3},
    {"ConvTranspose", "auto_pad dilations group kernel_shape output_padding output_shape pads strides", 3},
    {"Gemm", "transA transB", 3},
};

// Of what moves or chooses elements, any attribute only states which.
constexpr Crossing kQuantised[] = {
    {"QuantizeLinear", "axis saturate", 3, true},
    {"DequantizeLinear", "axis", 3, true},
    {"Relu", "", 1},
    {"Conv", kWindow, 3},
    {"Gemm", "transA transB", 3},
    {"MatMul", "", 2},
    {"Add", "", 2},
    {"GlobalAveragePool", "", 1},
    {"Concat", "axis", kAnyOperands},
    {"Flatten", "axis", 1},
    {"MaxPool", "auto_pad ceil_mode dilations kernel_shape pads storage_order strides", 1},
    {"Reshape", "allowzero shape", 2},
    {"Slice", "axes ends starts steps", 5},
    {"Squeeze", "axes", 2},
    {"Transpose", "perm", 1},
    {"Unsqueeze", "axes", 2},
};

constexpr std::string_view kQuantisedPass = "quantised";

constexpr Pass kPasses[] = {
    {kQuantisedPass,
     "a QuantizeLinear, the float operator before it with at most a Relu between, whose results only they read, and the "
     "DequantizeLinear before that become one operator on bytes",
     kQuantised, &fuse_quantised},
    {"batch_normalization",
     "a BatchNormalization by constants goes into the constant weights and bias of the product before it, whose result only it "
     "reads and behind whose sums nothing is attached",
     kNorm, &fold_batch_normalization},
};

// Constants of this size at most are computed here: scales and statistics that passes read. Plans compute larger ones.
constexpr std::size_t kMaxSmallBytes = std::size_t{1} << 16;
constexpr std::int64_t kMaxSmallElements = std::int64_t{1} << 14;

// Whether a pass begins at the node, or a session runs it only where what decides about it is constant.
bool is_worth_a_look(const Node& node) {
  return node.op->module_only() ||
         std::any_of(passes().begin(), passes().end(), [&](const Pass& pass) { return pass.crossings[0].op == node.op->name; });
}

// Removes nodes whose results nothing reads.
void remove_unread_nodes(Graph& graph) {
  std::vector<bool> read(graph.values.size(), false);
  for (const Output& output : graph.outputs) read[at(output.value)] = true;
  std::vector<Node> kept;
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    Node& node = graph.nodes[i];
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](int output) { return output >= 0 && read[at(output)]; }))
      continue;
    for (const int value : reads(node)) read[at(value)] = true;
    kept.push_back(std::move(node));
  }
  std::reverse(kept.begin(), kept.end());
  graph.nodes = std::move(kept);
}

// Readers of an Identity's result read its source instead; subgraphs and outputs still read the result.
void skip_identities(Graph& graph) {
  std::vector<int> source(graph.values.size());
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<int>(i);
  for (Node& node : graph.nodes) {  // topological order: a node's inputs are done before it
    for (int& input : node.inputs)
      if (input >= 0) input = source[at(input)];
    const bool plain = node.op->name == "Identity" && node.inputs.size() == 1 && node.outputs.size() == 1;
    if (plain && node.inputs[0] >= 0) source[at(node.outputs[0])] = node.inputs[0];
  }
}

// Operators whose results have no more elements than their operands, where those that are more than a number have one shape.
constexpr std::string_view kBounded[] = {"Abs", "Add",        "And",     "Cast",    "Concat",    "DequantizeLinear",
                                         "Div", "Equal",      "Exp",     "Greater", "Identity",  "Less",
                                         "Max", "Min",        "Mul",     "Neg",     "Not",       "Or",
                                         "Pow", "Reciprocal", "Reshape", "Round",   "Slice",     "Sqrt",
                                         "Sub", "Size",       "Squeeze", "Shape",   "Transpose", "Unsqueeze"};

// Whether the result of a node that reads constants alone is small, before it is computed: a broadcast or an Expand of a few
// bytes can be gigabytes.
bool is_small(const Graph& graph, const Node& node) {
  const auto constant = [&](std::size_t i) -> const Tensor& { return graph.values[at(node.inputs[i])].constant; };
  if (node.op->name == "Expand") {
    if (node.inputs.size() != 2 || node.inputs[0] < 0 || node.inputs[1] < 0) return false;
    const Tensor& target = constant(1);
    if (constant(0).size() != 1 || target.dtype() != DType::i64) return false;
    std::int64_t count = 1;
    for (std::int64_t i = 0; i < target.size(); ++i) {
      const std::int64_t dim = target.data<std::int64_t>()[i];
      if (dim < 0 || dim > kMaxSmallElements || (count *= dim) > kMaxSmallElements) return false;
    }
    return true;
  }
  if (std::find(std::begin(kBounded), std::end(kBounded), node.op->name) == std::end(kBounded)) return false;
  constexpr std::string_view kMovements[] = {"Concat", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"};
  if (std::find(std::begin(kMovements), std::end(kMovements), node.op->name) != std::end(kMovements)) return true;
  const Dims* shape = nullptr;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] < 0 || constant(i).size() == 1) continue;
    if (shape != nullptr && *shape != constant(i).shape() && node.op->name != "DequantizeLinear") return false;
    shape = &constant(i).shape();
  }
  return true;
}

// Makes the small results of nodes that read constants alone constants of the graph; bytes stay bytes where `keeps_bytes`.
void fold_small(Graph& graph, bool keeps_bytes) {
  const Table& table = kernels("scalar");
  const auto foldable = [&](const Node& node) {
    if (node.inputs.empty() || node.op->module_only() || !node.graphs.empty()) return false;
    if (keeps_bytes && node.op->name == "DequantizeLinear") return false;
    std::size_t bytes = 0;
    for (const int input : node.inputs) {
      if (input < 0) continue;
      const Value& value = graph.values[at(input)];
      if (value.kind != ValueKind::constant) return false;
      bytes += static_cast<std::size_t>(value.constant.size()) * item_size(value.dtype);
    }
    return bytes <= kMaxSmallBytes && is_small(graph, node);
  };
  std::erase_if(graph.nodes, [&](const Node& node) {
    if (!foldable(node)) return false;
    std::vector<Tensor> given;
    for (const int input : node.inputs) given.push_back(input < 0 ? Tensor() : graph.values[at(input)].constant);
    std::vector<Tensor> made;
    try {
      made = evaluate(*node.op, given, node.attributes, static_cast<int>(node.outputs.size()), table);
    } catch (const Error&) {
      return false;  // a plan refuses the node, by its name
    }
    if (made.size() < node.outputs.size()) return false;
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (made[i].storage() == nullptr || static_cast<std::size_t>(made[i].size()) * item_size(made[i].dtype()) > kMaxSmallBytes)
        return false;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      Value& value = graph.values[at(node.outputs[i])];
      value.kind = ValueKind::constant;
      value.dtype = made[i].dtype();
      value.shape = made[i].shape();
      value.constant = std::move(made[i]);
    }
    return true;
  });
}

// Runs a pass at every node.
void run(const Pass& pass, Graph& graph) {
  const Graph before = graph;
  const Values values(before);
  std::map<const Node*, std::vector<Node>> instead;
  for (const Node& node : before.nodes) {
    if (node.op->name != pass.crossings[0].op || node.outputs.empty() || node.outputs[0] < 0) continue;
    if (!Match::permits(pass.crossings[0], node, values.readers(node.outputs[0]))) continue;
    Match match(values, pass, node, graph);
    try {
      pass.apply(match);
    } catch (const Error&) {
      continue;  // a plan refuses the node, by its name
    }
    if (match.replacement().empty()) continue;
    instead[&node];
    instead[&match.place()] = std::move(match.replacement());
  }
  std::vector<Node> nodes;
  for (const Node& node : before.nodes) {
    const auto found = instead.find(&node);
    if (found == instead.end())
      nodes.push_back(node);
    else
      for (Node& made : found->second) nodes.push_back(std::move(made));
  }
  graph.nodes = std::move(nodes);
}

// Return the graph after all passes; null where nothing applies.
std::shared_ptr<const Graph> changed_by_passes(const Graph& graph) {
  auto result = std::make_shared<Graph>(graph);
  bool changed = false;
  for (Node& node : result->nodes)
    for (auto& [key, inner] : node.graphs)
      if (auto better = changed_by_passes(*inner)) {
        inner = std::move(better);
        changed = true;
      }
  if (std::any_of(result->nodes.begin(), result->nodes.end(), is_worth_a_look)) {
    skip_identities(*result);
    remove_unread_nodes(*result);
    for (const Pass& pass : passes()) {
      fold_small(*result, pass.name == kQuantisedPass);
      run(pass, *result);
      remove_unread_nodes(*result);
    }
    arrange(*result);  // the order of a file without the removed nodes
    changed = true;
  }
  return changed ? result : nullptr;
}

}  // namespace

std::span<const Pass> passes() noexcept { return kPasses; }

std::shared_ptr<const Graph> rewritten(const std::shared_ptr<const Graph>& graph) {
  Rewriting& kept = *graph->rewriting;
  {
    const std::lock_guard lock(kept.mutex);
    if (auto made = kept.made.lock()) return made;
  }
  auto made = changed_by_passes(*graph);  // unlocked: it takes the lock of packed weights
  if (made == nullptr) return graph;
  const std::lock_guard lock(kept.mutex);
  if (auto other = kept.made.lock()) return other;
  kept.made = made;
  return made;
}

}  // namespace walle
