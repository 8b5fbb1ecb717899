#include "graph/graph.h"

#include <algorithm>

namespace walle {

const std::shared_ptr<const Graph>& Node::graph(std::string_view key) const {
  for (const auto& [given, graph] : graphs)
    if (given == key) return graph;
  throw Error(ErrorKind::model, "attribute '" + std::string(key) + "' (a subgraph) is missing");
}

std::string Node::title() const { return "node '" + name + "' (" + std::string(op->name) + ")"; }

std::vector<int> reads(const Node& node) {
  std::vector<int> values;
  for (const int value : node.inputs)
    if (value >= 0) values.push_back(value);
  for (const auto& [key, graph] : node.graphs)
    for (const Value& value : graph->values)
      if (value.kind == ValueKind::outer) values.push_back(value.outer);
  return values;
}

bool needs_module(const Graph& graph) noexcept {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.op->module_only(); }) ||
         std::any_of(graph.inputs.begin(), graph.inputs.end(),
                     [&](int input) { return graph.values[static_cast<std::size_t>(input)].kind == ValueKind::object; });
}

void check(Node& node) {
  while (!node.inputs.empty() && node.inputs.back() < 0) node.inputs.pop_back();
  const auto inputs = static_cast<int>(node.inputs.size());
  if (inputs < node.op->min_inputs || inputs > node.op->max_inputs)
    throw Error(ErrorKind::model, node.title() + " has " + std::to_string(inputs) + " inputs");
  for (std::size_t i = 0; i < static_cast<std::size_t>(node.op->min_inputs); ++i)
    if (node.inputs[i] < 0) throw Error(ErrorKind::model, node.title() + ": input " + std::to_string(i) + " is missing");
  if (node.outputs.empty()) throw Error(ErrorKind::model, "node '" + node.name + "' has no output");
}

void arrange(Graph& graph) {
  const auto quoted = [&](int value) { return "'" + graph.values[static_cast<std::size_t>(value)].name + "'"; };
  constexpr int kNone = -1;
  std::vector<int> producer(graph.values.size(), kNone);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const int value : graph.nodes[i].outputs) {
      int& node = producer[static_cast<std::size_t>(value)];
      if (graph.values[static_cast<std::size_t>(value)].kind != ValueKind::result)
        throw Error(ErrorKind::model,
                    "node '" + graph.nodes[i].name + "' writes " + quoted(value) + ", which is an input or a constant");
      if (node != kNone) throw Error(ErrorKind::model, "two nodes write " + quoted(value));
      node = static_cast<int>(i);
    }
  }
  std::vector<std::vector<std::size_t>> readers(graph.nodes.size());
  std::vector<int> waiting(graph.nodes.size(), 0);
  const auto check_given = [&](int value) {
    if (graph.values[static_cast<std::size_t>(value)].kind == ValueKind::result &&
        producer[static_cast<std::size_t>(value)] == kNone)
      throw Error(ErrorKind::model, quoted(value) + " has no producer");
  };
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const int value : reads(graph.nodes[i])) {
      check_given(value);
      const int node = producer[static_cast<std::size_t>(value)];
      if (node == kNone) continue;
      readers[static_cast<std::size_t>(node)].push_back(i);
      ++waiting[i];
    }
  }
  for (const Output& output : graph.outputs) check_given(output.value);

  // Kahn's algorithm: a node is ready once all values that it reads are produced.
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (waiting[i] == 0) order.push_back(i);
  for (std::size_t done = 0; done < order.size(); ++done)
    for (const std::size_t reader : readers[order[done]])
      if (--waiting[reader] == 0) order.push_back(reader);
  if (order.size() != graph.nodes.size()) {
    const auto stuck =
        static_cast<std::size_t>(std::find_if(waiting.begin(), waiting.end(), [](int n) { return n > 0; }) - waiting.begin());
    throw Error(ErrorKind::model,
                "node '" + graph.nodes[stuck].name + "' is part of a cycle; loops need a control-flow operator");
  }
  std::vector<Node> nodes;
  nodes.reserve(order.size());
  for (const std::size_t i : order) nodes.push_back(std::move(graph.nodes[i]));
  graph.nodes = std::move(nodes);
}

}  // namespace walle
