#include "operators/op.h"

#include <algorithm>

namespace walle {

namespace {

OpDef atomic(std::string_view name, int min_inputs, int max_inputs, Family family, std::uint8_t code = 0) {
  OpDef def;
  def.name = name;
  def.min_inputs = min_inputs;
  def.max_inputs = max_inputs;
  def.family = family;
  def.code = code;
  return def;
}

std::vector<OpDef> all() {
  std::vector<OpDef> defs;
#define WALLE_UNARY(op, types) defs.push_back(atomic(#op, 1, 1, Family::unary, static_cast<std::uint8_t>(UnaryOp::op)));
#define WALLE_BINARY(op, types) defs.push_back(atomic(#op, 2, 2, Family::binary, static_cast<std::uint8_t>(BinaryOp::op)));
#define WALLE_COMPARE(op, types) defs.push_back(atomic(#op, 2, 2, Family::compare, static_cast<std::uint8_t>(CompareOp::op)));
#define WALLE_TEST(op, types) defs.push_back(atomic(#op, 1, 1, Family::test, static_cast<std::uint8_t>(TestOp::op)));
#define WALLE_REDUCE(op, types, join) defs.push_back(atomic(#op, 1, 2, Family::reduce, static_cast<std::uint8_t>(ReduceOp::op)));
#define WALLE_ARG(op, types) defs.push_back(atomic(#op, 1, 1, Family::arg, static_cast<std::uint8_t>(ArgOp::op)));
#include "kernels/kernels.inc"
#undef WALLE_UNARY
#undef WALLE_BINARY
#undef WALLE_COMPARE
#undef WALLE_TEST
#undef WALLE_REDUCE
#undef WALLE_ARG
  defs.push_back(atomic("MatMul", 2, 2, Family::matmul));
  defs.push_back(atomic("ReduceMean", 1, 2, Family::mean));
  defs.push_back(atomic("Where", 3, 3, Family::select));
  for (const DataOp& op : data_operators()) {
    OpDef def = atomic(op.name, op.min_inputs, op.max_inputs, Family::none);
    def.data = op.compute;
    defs.push_back(def);
  }
  constexpr int kMany = 1 << 16;
  const auto in_module = [&](Category category, std::string_view name, int min_inputs, int max_inputs) {
    OpDef def = atomic(name, min_inputs, max_inputs, Family::none);
    def.category = category;
    defs.push_back(def);
  };
  in_module(Category::control_flow, "If", 1, 1);
  in_module(Category::control_flow, "Loop", 0, kMany);
  in_module(Category::control_flow, "Scan", 0, kMany);
  in_module(Category::sequence, "ConcatFromSequence", 1, 1);
  in_module(Category::sequence, "Optional", 0, 1);
  in_module(Category::sequence, "OptionalGetElement", 1, 1);
  in_module(Category::sequence, "OptionalHasElement", 0, 1);
  in_module(Category::sequence, "SequenceAt", 2, 2);
  in_module(Category::sequence, "SequenceConstruct", 1, kMany);
  in_module(Category::sequence, "SequenceEmpty", 0, 0);
  in_module(Category::sequence, "SequenceErase", 1, 2);
  in_module(Category::sequence, "SequenceInsert", 2, 3);
  in_module(Category::sequence, "SequenceLength", 1, 1);
  in_module(Category::sequence, "SequenceMap", 1, kMany);
  in_module(Category::sequence, "SplitToSequence", 1, 2);
  for (const Atomic& own : atomics()) {
    OpDef def = atomic(own.name, own.min_inputs, own.max_inputs, Family::none);
    def.infer = own.infer;
    def.make_step = own.make;
    defs.push_back(def);
  }
  for (const Transform& transform : transforms()) {
    OpDef def = atomic(transform.name, transform.min_inputs, transform.max_inputs, Family::none);
    def.category = Category::transform;
    def.transform = transform.make;
    def.decompose = transform.at_run_time;
    defs.push_back(def);
  }
  for (const Composite& composite : composites()) {
    OpDef def = atomic(composite.name, composite.min_inputs, composite.max_inputs, Family::none);
    def.category = Category::composite;
    def.decompose = composite.decompose;
    def.decomposes_to = composite.parts;
    def.fused = find_fused(composite.name);
    defs.push_back(def);
  }
  std::sort(defs.begin(), defs.end(), [](const OpDef& a, const OpDef& b) { return a.name < b.name; });
  return defs;
}

const std::vector<OpDef>& table() {
  static const std::vector<OpDef> defs = all();
  return defs;
}

}  // namespace

std::string_view category_name(Category category) noexcept {
  constexpr std::string_view names[] = {"atomic", "transform", "composite", "control-flow", "sequence"};
  return names[static_cast<std::size_t>(category)];
}

std::span<const OpDef> operators() { return table(); }

const OpDef* find_operator(std::string_view name) {
  const auto& defs = table();
  const auto at =
      std::lower_bound(defs.begin(), defs.end(), name, [](const OpDef& def, std::string_view key) { return def.name < key; });
  return at != defs.end() && at->name == name ? &*at : nullptr;
}

}  // namespace walle
