// The graph of a model: values (inputs, constants, results), nodes and outputs. Immutable once loaded; sessions share it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "graph/packed_weights.h"
#include "graph/scaled_weights.h"
#include "operators/op.h"

namespace walle {

// An outer value is one that a subgraph takes from the graph around it; an object is an input that is a sequence or an optional.
enum class ValueKind : std::uint8_t { result = 0, constant = 1, input = 2, outer = 3, object = 4 };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::result;
  DType dtype = DType::f32;                  // type of an input or constant
  Dims shape;                                // shape of an input or constant; -1 in an input: known at run time only
  bool any_dtype = false, any_rank = false;  // true for an input whose type or rank is known at run time only
  int outer = -1;                            // number of an outer value in the graph around
  Tensor constant;
  std::shared_ptr<const ScaledWeights> scaled;  // what the constant is computed from, where it is not there yet
};

struct Graph;

// The graph that plans are made of, while any of its users lives (rewrite/rewrite.h).
struct Rewriting {
  ForkMutex mutex;
  std::weak_ptr<const Graph> made;
};

struct Node {
  const OpDef* op = nullptr;
  std::string name;
  std::vector<int> inputs;  // value numbers; -1: left out
  std::vector<int> outputs;
  Attributes attributes;
  std::vector<std::pair<std::string, std::shared_ptr<const Graph>>> graphs;  // attributes that are subgraphs

  // Return the subgraph of that name; throw Error (model) where it is missing.
  const std::shared_ptr<const Graph>& graph(std::string_view key) const;
  std::string title() const;  // for messages: its name and operator
};

struct Output {
  std::string name;
  int value;
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Node> nodes;  // topological order
  std::vector<int> inputs;  // value numbers, in the model's order
  std::vector<Output> outputs;
  std::shared_ptr<PackedWeights> packed = std::make_shared<PackedWeights>();  // constants as plans packed them
  std::shared_ptr<Rewriting> rewriting = std::make_shared<Rewriting>();
};

// Return the values that a node reads: its inputs, and the outer values of its subgraphs.
std::vector<int> reads(const Node& node);

// Return whether only a module runs the graph: an input is a sequence or an optional, or the outputs of a node, or their shapes,
// are not known before it has run.
bool needs_module(const Graph& graph) noexcept;

// Throws Error (model) where a node has too few or too many inputs, or no output. Inputs that are left out at the end are
// dropped.
void check(Node& node);

// Check that every value has one producer and sort the nodes topologically (step 1 of a session, §4.2). Throws Error (model) for
// a value without a producer or with two, and for a cycle.
void arrange(Graph& graph);

}  // namespace walle
