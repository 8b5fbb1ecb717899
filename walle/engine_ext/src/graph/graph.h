// A model: values (inputs, constants, results), nodes, and outputs. Immutable once loaded, and shared by sessions.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "graph/op.h"

namespace walle {

enum class ValueKind : std::uint8_t { result = 0, constant = 1, input = 2 };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::result;
  DType dtype = DType::f32;  // of inputs and constants
  Dims shape;                // of inputs and constants; -1 in an input: known at run time only
  Tensor constant;
};

struct Node {
  const OpDef* op = nullptr;
  std::string name;
  std::vector<int> inputs;  // value numbers; -1: left out
  std::vector<int> outputs;
  Attributes attributes;
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
};

// Checks that every value has one origin and puts the nodes into topological order (step 1 of a session, §4.2).
// Throws Error (model) for a value that nothing gives or two nodes give, and for a cycle.
void arrange(Graph& graph);

}  // namespace walle
