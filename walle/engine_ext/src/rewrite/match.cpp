#include "rewrite/match.h"

#include <algorithm>

#include "graph/index.h"

namespace walle {

namespace {

// Whether a list that is separated by spaces has the word.
bool lists(std::string_view list, std::string_view word) {
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(' ', begin), list.size());
    if (list.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

Values::Values(const Graph& graph) : graph_(graph), producer_(graph.values.size(), -1), readers_(graph.values.size(), 0) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const int output : graph.nodes[i].outputs)
      if (output >= 0) producer_[at(output)] = static_cast<int>(i);
    for (const int value : reads(graph.nodes[i])) ++readers_[at(value)];
  }
  for (const Output& output : graph.outputs) readers_[at(output.value)] += 2;  // never inside a pattern
}

const Node* Values::producer(int value) const noexcept {
  const int node = value < 0 || at(value) >= producer_.size() ? -1 : producer_[at(value)];
  return node < 0 ? nullptr : &graph_.nodes[at(node)];
}

bool Match::permits(const Crossing& crossing, const Node& node, int readers) {
  if (node.op->name != crossing.op || node.outputs.size() != 1 || !node.graphs.empty()) return false;
  if (node.inputs.size() > crossing.operands || (readers != 1 && !crossing.shared)) return false;
  const auto& given = node.attributes.items();
  return std::all_of(given.begin(), given.end(), [&](const auto& item) { return lists(crossing.attributes, item.first); });
}

const Node* Match::producer(const Node& node, std::size_t operand) const {
  if (operand >= node.inputs.size() || node.inputs[operand] < 0) return nullptr;
  const Node* found = values_.producer(node.inputs[operand]);
  if (found == nullptr) return nullptr;
  const int readers = values_.readers(node.inputs[operand]);
  const auto permitted = [&](const Crossing& crossing) { return permits(crossing, *found, readers); };
  return std::any_of(pass_.crossings.begin(), pass_.crossings.end(), permitted) ? found : nullptr;
}

const Tensor* Match::constant(const Node& node, std::size_t operand) const noexcept {
  if (operand >= node.inputs.size() || node.inputs[operand] < 0) return nullptr;
  const Value& value = values_.graph().values[at(node.inputs[operand])];
  return value.kind == ValueKind::constant && value.scaled == nullptr ? &value.constant : nullptr;
}

std::optional<DType> Match::dtype(const Node& node, std::size_t operand) const noexcept {
  if (operand >= node.inputs.size() || node.inputs[operand] < 0) return std::nullopt;
  const Value& value = values_.graph().values[at(node.inputs[operand])];
  const bool known = value.kind == ValueKind::constant || (value.kind == ValueKind::input && !value.any_dtype);
  return known ? std::optional(value.dtype) : std::nullopt;
}

int Match::add(std::string name) {
  Value value;
  value.name = std::move(name);
  result_.values.push_back(std::move(value));
  return static_cast<int>(result_.values.size() - 1);
}

int Match::add(std::string name, Tensor constant) {
  const int number = add(std::move(name));
  Value& value = result_.values.back();
  value.kind = ValueKind::constant;
  value.dtype = constant.dtype();
  value.shape = constant.shape();
  value.constant = std::move(constant);
  return number;
}

int Match::add(std::string name, ScaledWeights scaled) {
  const int number = add(std::move(name));
  Value& value = result_.values.back();
  value.kind = ValueKind::constant;
  value.dtype = scaled.weights.dtype();
  value.shape = scaled.weights.shape();
  value.scaled = std::make_shared<const ScaledWeights>(std::move(scaled));
  return number;
}

Tensor Match::derived(const Tensor& constant, const std::string& key, const std::function<Tensor()>& make) {
  return values_.graph().packed->get(constant, key, make);
}

}  // namespace walle
