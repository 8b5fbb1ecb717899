// Operators that a module interprets: control flow, and operators on sequences and optionals.
#pragma once
#include "run/module.h"

namespace walle {

// Arguments of one node at run time. `bodies` are its subgraphs, in the order of Node::graphs; `around` the values of the graph
// that contains the node.
struct FlowCall {
  const Node& node;
  std::vector<Var> inputs;
  std::span<const std::shared_ptr<Block>> bodies;
  std::span<const Var> around;
  const Table& table;  // kernels of the host
  ModuleRun& run;

  // Counts one round of a loop; throws Error (model) beyond the limit, and WorkStopped.
  void begin_round() const;

  Block& body(std::string_view key) const;
  bool given(std::size_t index) const { return index < inputs.size() && !std::holds_alternative<Absent>(inputs[index]); }
  // Throw Error (model) where the input is missing or of another kind.
  const Tensor& tensor(std::size_t index) const;
  const Sequence& sequence(std::size_t index) const;
  std::int64_t whole_number(std::size_t index) const;
};

using FlowFn = std::vector<Var> (*)(const FlowCall& call);
// Return the function that interprets the operator; null for an operator that is not interpreted.
FlowFn flow_function(std::string_view op) noexcept;

}  // namespace walle
