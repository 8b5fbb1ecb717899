// Tests of the table of passes: what a match refuses, whichever pass asks, and what rewriting shares.
#include <algorithm>
#include <cmath>
#include <functional>

#include "check.h"
#include "graph/graph.h"
#include "rewrite/match.h"

using namespace walle;

namespace {

Tensor row(std::vector<float> numbers, Dims shape) {
  Tensor tensor = Tensor::empty(DType::f32, std::move(shape));
  std::copy(numbers.begin(), numbers.end(), tensor.data<float>());
  return tensor;
}

int add_value(Graph& graph, ValueKind kind, Tensor constant = {}) {
  Value value;
  value.name = "v" + std::to_string(graph.values.size());
  value.kind = kind;
  value.shape = kind == ValueKind::input ? Dims{1, 2, 3, 3} : constant.shape();
  value.constant = std::move(constant);
  graph.values.push_back(std::move(value));
  return static_cast<int>(graph.values.size() - 1);
}

int add_node(Graph& graph, std::string_view op, std::vector<int> inputs, Attributes attributes = {}) {
  Node node;
  node.op = find_operator(op);
  node.name = std::string(op);
  node.inputs = std::move(inputs);
  node.outputs = {add_value(graph, ValueKind::result)};
  node.attributes = std::move(attributes);
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().outputs[0];
}

// Returns a Conv, what `attach` adds, and a BatchNormalization of the value that `attach` returns.
std::shared_ptr<const Graph> conv_norm(const std::function<int(Graph&, Node& conv)>& attach) {
  auto graph = std::make_shared<Graph>();
  const int x = add_value(*graph, ValueKind::input);
  graph->inputs = {x};
  const int weights = add_value(*graph, ValueKind::constant, row({1, 2, 3, 4}, {2, 2, 1, 1}));
  const int scale = add_value(*graph, ValueKind::constant, row({2, 3}, {2})),
            other = add_value(*graph, ValueKind::constant, row({1, 1}, {2}));
  const int sums = add_node(*graph, "Conv", {x, weights});
  Node& conv = graph->nodes.back();
  const int normal = attach ? attach(*graph, conv) : sums;
  const int y = add_node(*graph, "BatchNormalization", {normal, scale, other, other, other}, {{"epsilon", 0.0}});
  graph->outputs.push_back({"y", y});
  return graph;
}

bool is_folded(const std::shared_ptr<const Graph>& graph) {
  const auto made = rewritten(graph);
  return std::none_of(made->nodes.begin(), made->nodes.end(),
                      [](const Node& node) { return node.op->name == "BatchNormalization"; });
}

void test_a_plain_pair() {
  const auto graph = conv_norm({});
  const auto made = rewritten(graph);
  CHECK(is_folded(graph));
  CHECK(graph->nodes.size() == 2);  // the graph of the file stays
  CHECK(made->nodes.size() == 1);
  CHECK(made->nodes[0].outputs == graph->nodes[1].outputs);
  CHECK(rewritten(graph) == made);
  CHECK(rewritten(made) == made);
  const Value& weights = made->values[static_cast<std::size_t>(made->nodes[0].inputs[1])];
  CHECK(weights.scaled != nullptr);
  const Tensor product = multiplied(*weights.scaled);
  const float expected[] = {2, 4, 9, 12};
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::fabs(product.data<float>()[i] - expected[i]) < 1e-6f);
}

void test_what_is_attached() {
  CHECK(is_folded(conv_norm([](Graph&, Node& conv) {
    conv.attributes.set("pads", Dims{0, 0, 0, 0});
    return conv.outputs[0];
  })));
  for (const char* activation : {"Relu", "Sigmoid", "Tanh", "any other"})
    CHECK(!is_folded(conv_norm([&](Graph&, Node& conv) {
      conv.attributes.set("activation", std::string(activation));
      return conv.outputs[0];
    })));
  CHECK(!is_folded(conv_norm([](Graph& graph, Node& conv) {  // a residual
    conv.inputs.resize(3, -1);
    conv.inputs.push_back(graph.inputs[0]);
    return conv.outputs[0];
  })));
  CHECK(!is_folded(conv_norm([](Graph& graph, Node& conv) {  // another reader
    const int sums = conv.outputs[0];
    graph.outputs.push_back({"z", add_node(graph, "Neg", {sums})});
    return sums;
  })));
  CHECK(!is_folded(conv_norm([](Graph& graph, Node& conv) {  // an output of the graph
    graph.outputs.push_back({"sums", conv.outputs[0]});
    return conv.outputs[0];
  })));
  for (const char* between : {"Relu", "Neg", "Tanh"})
    CHECK(!is_folded(conv_norm([&](Graph& graph, Node& conv) { return add_node(graph, between, {conv.outputs[0]}); })));
  CHECK(is_folded(conv_norm([](Graph& graph, Node& conv) { return add_node(graph, "Identity", {conv.outputs[0]}); })));
}

// Whatever a pass asks for, it gets no node with more than its entry names.
void test_every_entry_refuses_what_it_does_not_name() {
  for (const Pass& pass : passes()) {
    CHECK(!pass.name.empty() && !pass.statement.empty());
    for (const Crossing& crossing : pass.crossings) {
      Node node;
      node.op = find_operator(crossing.op);
      CHECK(node.op != nullptr);
      if (node.op == nullptr) continue;
      node.inputs = {0};
      node.outputs = {1};
      CHECK(Match::permits(crossing, node, 1));
      CHECK(Match::permits(crossing, node, 2) == crossing.shared);
      for (const char* attribute : {"activation", "algorithm", "alpha", "training_mode", "block_size", "new one"}) {
        Node attached = node;
        attached.attributes.set(attribute, std::string("Relu"));
        CHECK(!Match::permits(crossing, attached, 1));
      }
      Node second = node;
      second.outputs = {1, 2};
      CHECK(!Match::permits(crossing, second, 1));
      if (crossing.operands > 8) continue;
      Node wide = node;
      wide.inputs.assign(crossing.operands + 1, 0);
      CHECK(!Match::permits(crossing, wide, 1));
    }
  }
}

void test_groups_of_a_transposed_convolution() {
  ScaledWeights scaled{row({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}), {1, 10, 100, 1000}, 1, 2, ""};
  const float expected[] = {1, 20, 3, 40, 500, 6000, 700, 8000};
  const Tensor product = multiplied(scaled);
  for (std::size_t i = 0; i < 8; ++i) CHECK(product.data<float>()[i] == expected[i]);
}

}  // namespace

int main() {
  test_a_plain_pair();
  test_what_is_attached();
  test_every_entry_refuses_what_it_does_not_name();
  test_groups_of_a_transposed_convolution();
  return check::failures == 0 ? 0 : 1;
}
