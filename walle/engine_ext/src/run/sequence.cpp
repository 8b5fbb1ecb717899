#include "run/sequence.h"

#include <algorithm>
#include <array>

#include "operators/eager.h"

namespace walle {

namespace {

Var sequence_of(std::vector<Tensor> items, DType dtype) {
  return std::make_shared<const Sequence>(Sequence{std::move(items), dtype});
}

template <class T>
Tensor one(DType dtype, T value) {
  Tensor result = Tensor::empty(dtype, {});
  *result.data<T>() = value;
  return result;
}

// Return a position in a sequence of `size` elements, counted from the front; at most `last`.
std::size_t place_of(std::int64_t index, std::size_t size, std::size_t last) {
  const auto count = static_cast<std::int64_t>(size);
  if (index < -count || index > static_cast<std::int64_t>(last))
    throw Error(ErrorKind::shape,
                "position " + std::to_string(index) + " is out of range for a sequence of " + std::to_string(size));
  return static_cast<std::size_t>(index < 0 ? index + count : index);
}

void check_dtype(const Tensor& item, DType dtype) {
  if (item.dtype() != dtype)
    throw Error(ErrorKind::dtype,
                "a sequence of " + std::string(dtype_name(dtype)) + " does not take " + std::string(dtype_name(item.dtype())));
}

std::vector<Var> construct(const FlowCall& call) {
  std::vector<Tensor> items;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    items.push_back(call.tensor(i));
    check_dtype(items.back(), items[0].dtype());
  }
  return {sequence_of(items, items[0].dtype())};
}

std::vector<Var> empty(const FlowCall& call) {
  return {sequence_of({}, target_dtype({{"to", call.node.attributes.get_int("dtype", 1)}}))};
}

std::vector<Var> element(const FlowCall& call) {
  const auto& items = call.sequence(0).items;
  if (items.empty()) throw Error(ErrorKind::shape, "the sequence is empty");
  return {items[place_of(call.whole_number(1), items.size(), items.size() - 1)]};
}

std::vector<Var> length(const FlowCall& call) {
  return {one(DType::i64, static_cast<std::int64_t>(call.sequence(0).items.size()))};
}

std::vector<Var> insert(const FlowCall& call) {
  const Sequence& sequence = call.sequence(0);
  std::vector<Tensor> items = sequence.items;
  check_dtype(call.tensor(1), items.empty() ? call.tensor(1).dtype() : sequence.dtype);
  const std::size_t place = call.given(2) ? place_of(call.whole_number(2), items.size(), items.size()) : items.size();
  items.insert(items.begin() + static_cast<std::ptrdiff_t>(place), call.tensor(1));
  return {sequence_of(std::move(items), call.tensor(1).dtype())};
}

std::vector<Var> erase(const FlowCall& call) {
  const Sequence& sequence = call.sequence(0);
  std::vector<Tensor> items = sequence.items;
  if (items.empty()) throw Error(ErrorKind::shape, "the sequence is empty");
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(call.given(1)
                                                              ? place_of(call.whole_number(1), items.size(), items.size() - 1)
                                                              : items.size() - 1));
  return {sequence_of(std::move(items), sequence.dtype)};
}

// Splits into parts of the given sizes; of one size, the last perhaps smaller; or by default of 1 (keepdims 0: without the axis).
std::vector<Var> split(const FlowCall& call) {
  const Tensor& x = call.tensor(0);
  const std::size_t axis = normal_axis(call.node.attributes.get_int("axis", 0), x.shape().size());
  const std::int64_t dim = x.shape()[axis];
  const bool squeeze = !call.given(1) && call.node.attributes.get_int("keepdims", 1) == 0;
  Dims parts;
  if (call.given(1) && call.tensor(1).ndim() == 1) {
    const Operand operand{call.tensor(1).dtype(), call.tensor(1).shape(), &call.tensor(1), false};
    parts = required_numbers(std::span(&operand, 1), 0, {}, "split");
  } else {
    const std::int64_t size = call.given(1) ? call.whole_number(1) : 1;
    if (size < 1) throw Error(ErrorKind::shape, "split is " + std::to_string(size));
    for (std::int64_t left = dim; left > 0; left -= size) parts.push_back(std::min(size, left));
  }
  std::vector<Tensor> items;
  if (!parts.empty())
    items = evaluate(*find_operator("Split"), std::span(&x, 1), {{"axis", static_cast<std::int64_t>(axis)}, {"split", parts}},
                     static_cast<int>(parts.size()), call.table);
  for (Tensor& item : items)
    if (squeeze) item = evaluate_one("Squeeze", std::span(&item, 1), {{"axes", Dims{static_cast<std::int64_t>(axis)}}});
  return {sequence_of(std::move(items), x.dtype())};
}

std::vector<Var> join(const FlowCall& call) {
  const auto& items = call.sequence(0).items;
  if (items.empty()) throw Error(ErrorKind::shape, "an empty sequence has nothing to join");
  const bool fresh = call.node.attributes.get_int("new_axis", 0) != 0;
  return {evaluate_one(fresh ? "Stack" : "Concat", items, {{"axis", call.node.attributes.get_int("axis", 0)}})};
}

std::vector<Var> optional(const FlowCall& call) { return {call.given(0) ? call.inputs[0] : Var(Nothing{})}; }

std::vector<Var> has_element(const FlowCall& call) {
  return {one(DType::b8, call.given(0) && !std::holds_alternative<Nothing>(call.inputs[0]))};
}

std::vector<Var> get_element(const FlowCall& call) {
  if (!call.given(0) || std::holds_alternative<Nothing>(call.inputs[0])) throw Error(ErrorKind::model, "the optional is empty");
  return {call.inputs[0]};
}

}  // namespace

FlowFn sequence_function(std::string_view op) noexcept {
  static constexpr std::array<std::pair<std::string_view, FlowFn>, 11> table{{
      {"ConcatFromSequence", &join},
      {"Optional", &optional},
      {"OptionalGetElement", &get_element},
      {"OptionalHasElement", &has_element},
      {"SequenceAt", &element},
      {"SequenceConstruct", &construct},
      {"SequenceEmpty", &empty},
      {"SequenceErase", &erase},
      {"SequenceInsert", &insert},
      {"SequenceLength", &length},
      {"SplitToSequence", &split},
  }};
  for (const auto& [name, run] : table)
    if (name == op) return run;
  return nullptr;
}

}  // namespace walle
