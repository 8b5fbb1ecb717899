// A model: values (inputs, constants, results), nodes, and outputs. Immutable once loaded, and shared by sessions.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "graph/packed_weights.h"
#include "operators/op.h"

namespace walle {

// An outer value is one that a subgraph takes from the graph around it; an object is an input that is a sequence or an optional.
enum class ValueKind : std::uint8_t { result = 0, constant = 1, input = 2, outer = 3, object = 4 };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::result;
  DType dtype = DType::f32;                  // of inputs and constants
  Dims shape;                                // of inputs and constants; -1 in an input: known at run time only
  bool any_dtype = false, any_rank = false;  // of inputs: not even that is known before running
  int outer = -1;                            // of an outer value: its number in the graph around
  Tensor constant;
};

struct Graph;

struct Node {
  const OpDef* op = nullptr;
  std::string name;
  std::vector<int> inputs;  // value numbers; -1: left out
  std::vector<int> outputs;
  Attributes attributes;
  std::vector<std::pair<std::string, std::shared_ptr<const Graph>>> graphs;  // attributes that are subgraphs

  // The subgraph of that name; throws Error (model) where there is none.
  const std::shared_ptr<const Graph>& graph(std::string_view key) const;
};

struct Output {
  std::string name;
  int value;
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Node> nodes;  // in topological order
  std::vector<int> inputs;  // value numbers, in the model's order
  std::vector<Output> outputs;
  std::shared_ptr<PackedWeights> packed = std::make_shared<PackedWeights>();  // what plans made of the constants
};

// The values that a node reads: its inputs, and what its subgraphs take from the graph around them.
std::vector<int> reads(const Node& node);

// Whether only a module runs it: it takes a sequence or an optional, or has a node whose outputs, or their shapes, are known no
// sooner than it has run.
bool needs_module(const Graph& graph) noexcept;

// Checks that every value has one origin and puts the nodes into topological order (step 1 of a session, §4.2).
// Throws Error (model) for a value that nothing gives or two nodes give, and for a cycle.
void arrange(Graph& graph);

}  // namespace walle
