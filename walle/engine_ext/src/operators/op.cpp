#include "operators/op.h"

#include <algorithm>

#include "operators/known_attributes.h"

namespace walle {

namespace {

constexpr int kMany = 1 << 16;

std::vector<OpDef> all() {
  std::vector<OpDef> defs;
  const auto listed = [&](std::string_view name, int min_inputs, int max_inputs, Family family, auto code) {
    defs.push_back({name, min_inputs, max_inputs, ListedKernel{family, static_cast<std::uint8_t>(code)}});
  };
#define WALLE_UNARY(op, types) listed(#op, 1, 1, Family::unary, UnaryOp::op);
#define WALLE_BINARY(op, types) listed(#op, 2, 2, Family::binary, BinaryOp::op);
#define WALLE_COMPARE(op, types) listed(#op, 2, 2, Family::compare, CompareOp::op);
#define WALLE_TEST(op, types) listed(#op, 1, 1, Family::test, TestOp::op);
#define WALLE_PART(op, types) listed(#op, 1, 1, Family::part, PartOp::op);
#define WALLE_REDUCE(op, types, join) listed(#op, 1, 2, Family::reduce, ReduceOp::op);
#define WALLE_ARG(op, types) listed(#op, 1, 1, Family::arg, ArgOp::op);
#include "kernels/kernels.inc"
#undef WALLE_UNARY
#undef WALLE_BINARY
#undef WALLE_COMPARE
#undef WALLE_TEST
#undef WALLE_PART
#undef WALLE_REDUCE
#undef WALLE_ARG
  listed("MatMul", 2, 2, Family::matmul, 0);
  listed("ReduceMean", 1, 2, Family::mean, 0);
  listed("Where", 3, 3, Family::select, 0);
  for (const Atomic& op : atomics()) defs.push_back({op.name, op.min_inputs, op.max_inputs, OwnKernel{op.infer, op.make}});
  for (const DataOp& op : data_operators()) defs.push_back({op.name, op.min_inputs, op.max_inputs, DataDependent{op.compute}});
  for (const Transform& op : transforms())
    defs.push_back({op.name, op.min_inputs, op.max_inputs, TransformRule{op.make, op.at_run_time}});
  for (const Composite& op : composites())
    defs.push_back({op.name, op.min_inputs, op.max_inputs, CompositeRule{op.decompose, op.parts, find_fused(op.name)}});
  defs.push_back({"Gradient", 2, kMany, Differentiation{}});
  defs.push_back({"If", 1, 1, ControlFlow{}});
  defs.push_back({"Loop", 0, kMany, ControlFlow{}});
  defs.push_back({"Scan", 0, kMany, ControlFlow{}});
  defs.push_back({"ConcatFromSequence", 1, 1, SequenceRule{}});
  defs.push_back({"Optional", 0, 1, SequenceRule{}});
  defs.push_back({"OptionalGetElement", 1, 1, SequenceRule{}});
  defs.push_back({"OptionalHasElement", 0, 1, SequenceRule{}});
  defs.push_back({"SequenceAt", 2, 2, SequenceRule{}});
  defs.push_back({"SequenceConstruct", 1, kMany, SequenceRule{}});
  defs.push_back({"SequenceEmpty", 0, 0, SequenceRule{}});
  defs.push_back({"SequenceErase", 1, 2, SequenceRule{}});
  defs.push_back({"SequenceInsert", 2, 3, SequenceRule{}});
  defs.push_back({"SequenceLength", 1, 1, SequenceRule{}});
  defs.push_back({"SequenceMap", 1, kMany, SequenceRule{}});
  defs.push_back({"SplitToSequence", 1, 2, SequenceRule{}});
  std::sort(defs.begin(), defs.end(), [](const OpDef& a, const OpDef& b) { return a.name < b.name; });
  for (OpDef& def : defs) def.attributes = known_attributes(def.name);
  return defs;
}

const std::vector<OpDef>& table() {
  // Never destroyed: threads may plan while the process exits.
  static const auto& defs = *new std::vector<OpDef>(all());
  return defs;
}

}  // namespace

std::string_view category_name(Category category) noexcept {
  constexpr std::string_view names[] = {"atomic", "transform", "composite", "control-flow", "sequence"};
  return names[static_cast<std::size_t>(category)];
}

Category OpDef::category() const noexcept {
  if (as<TransformRule>() != nullptr) return Category::transform;
  if (as<CompositeRule>() != nullptr || as<Differentiation>() != nullptr) return Category::composite;
  if (as<ControlFlow>() != nullptr) return Category::control_flow;
  if (as<SequenceRule>() != nullptr) return Category::sequence;
  return Category::atomic;
}

std::span<const OpDef> operators() { return table(); }

const OpDef* find_operator(std::string_view name) {
  const auto& defs = table();
  const auto at =
      std::lower_bound(defs.begin(), defs.end(), name, [](const OpDef& def, std::string_view key) { return def.name < key; });
  return at != defs.end() && at->name == name ? &*at : nullptr;
}

void check_known(const OpDef& op, std::string_view attribute, std::string_view node) {
  if (std::find(op.attributes.begin(), op.attributes.end(), attribute) != op.attributes.end()) return;
  std::string known;
  for (const std::string_view name : op.attributes) known += (known.empty() ? "" : ", ") + std::string(name);
  const std::string name(op.name);
  throw Error(ErrorKind::unsupported, (node.empty() ? name : "node '" + std::string(node) + "' (" + name + ")") +
                                          ": attribute '" + std::string(attribute) + "' is unknown; " + name +
                                          (known.empty() ? " has no attributes" : " knows " + known));
}

}  // namespace walle
