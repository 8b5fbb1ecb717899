#include "host/elementwise_groups.h"

#include <algorithm>
#include <bit>

#include "atomic/elementwise_group.h"
#include "graph/index.h"
#include "host/raster_view.h"
#include "operators/op.h"

namespace walle {

namespace {

// The operator of a group, as plans show it. Graphs do not have it.
const OpDef& group_operator() {
  static const OpDef op{"Elementwise", 1, static_cast<int>(kMostGroupOperands), OwnKernel{nullptr, nullptr}};
  return op;
}

Dims without_ones(const Dims& shape) {
  Dims left;
  for (const std::int64_t size : shape)
    if (size != 1) left.push_back(size);
  return left;
}

std::int64_t byte_count(const ProgramValue& value) {
  return element_count(value.shape) * static_cast<std::int64_t>(item_size(value.dtype));
}

class ElementwiseJoin {
 public:
  ElementwiseJoin(Program& program, const Table& table)
      : program_(program),
        table_(table),
        readers_(program.values.size(), 0),
        last_(program.values.size(), 0),
        producer_(program.values.size(), -1),
        kernels_(program.ops.size()),
        joined_(program.ops.size(), false),
        views_(program.values.size()) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const ProgramOp& op = program.ops[i];
      for (const int input : op.inputs) {
        if (input < 0) continue;
        ++readers_[at(input)];
        last_[at(input)] = i;
      }
      producer_[at(op.output)] = static_cast<int>(i);
      kernels_[i] = kernel_of(op);
    }
    for (const int output : program.outputs) {
      ++readers_[at(output)];
      last_[at(output)] = program.ops.size();
    }
  }

  // A raster that expands or cuts out rows is not needed where elementwise operators alone read it: they read its source.
  //
  // From the last op on: a result joins the group of its readers, which are in one then or never.
  void run() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) look_through(i);
    for (std::size_t i = program_.ops.size(); i-- > 0;) {
      if (!kernels_[i] || joined_[i]) continue;
      const std::vector<std::size_t> members = grow(i);
      if (members.size() > 1 || reads_view(members.front())) replace(members);
    }
    std::erase_if(program_.ops, [](const ProgramOp& op) { return op.output < 0; });
  }

 private:
  using Kernel = decltype(GroupStage::kernel);

  static constexpr std::int64_t kFewElements = 256;  // moved at the cost of beginning a step

  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  // Return the view that a raster is whose rows are moved as a whole, or repeat one element; strides along the axes that have
  // more than one.
  std::optional<RasterView> rows_of(const ProgramOp& op) const {
    auto view = view_of(program_, op);
    if (!view) return std::nullopt;
    const Dims& shape = value(op.output).shape;
    Dims strides;
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      if (shape[axis] != 1) strides.push_back(view->strides[axis]);
    if (strides.back() < 0 || strides.back() > 1) return std::nullopt;
    view->strides = std::move(strides);
    return view;
  }

  // Makes the readers of a raster's result read its source, where all of them can and that takes no more memory.
  void look_through(std::size_t i) {
    const ProgramOp& op = program_.ops[i];
    auto view = rows_of(op);
    const std::int64_t bytes = byte_count(value(op.output));
    if (!view || last_[at(op.output)] >= program_.ops.size() || element_count(value(op.output).shape) < kFewElements) return;
    constexpr std::size_t kNear = 8;
    const bool is_held = last_[at(view->source)] >= last_[at(op.output)] || producer_[at(view->source)] < 0;
    if (!is_held && byte_count(value(view->source)) > bytes && last_[at(op.output)] - i > kNear) return;
    int reads = 0;
    for (std::size_t k = i + 1; k <= last_[at(op.output)]; ++k) {
      const ProgramOp& reader = program_.ops[k];
      const auto count = std::count(reader.inputs.begin(), reader.inputs.end(), op.output);
      if (count == 0) continue;
      if (!can_read_view(k, op.output, view->strides.back() == 1)) return;
      reads += static_cast<int>(count);
    }
    if (reads == 0 || reads != readers_[at(op.output)]) return;
    last_[at(view->source)] = std::max(last_[at(view->source)], last_[at(op.output)]);
    views_[at(op.output)] = std::move(view);
    program_.ops[i].output = -1;
  }

  // Whether the op can read a view of this operand. A kernel has the same code for rows as for repeated elements beside a row:
  // the view has rows, or another operand has the result's shape in memory of its own.
  bool can_read_view(std::size_t i, int operand, bool has_rows) const {
    const ProgramOp& op = program_.ops[i];
    if (!kernels_[i] || value(op.output).shape != value(operand).shape) return false;
    if (has_rows) return true;
    return std::any_of(op.inputs.begin(), op.inputs.end(), [&](int input) {
      const int producer = producer_[at(input)];
      return input != operand && value(input).shape == value(op.output).shape && !views_[at(input)] &&
             (producer < 0 || !rows_of(program_.ops[at(producer)]));
    });
  }
  bool reads_view(std::size_t i) const {
    const std::vector<int>& inputs = program_.ops[i].inputs;
    return std::any_of(inputs.begin(), inputs.end(), [&](int input) { return views_[at(input)].has_value(); });
  }

  // Return the kernel that computes the operator element by element; nothing where none does.
  std::optional<Kernel> kernel_of(const ProgramOp& op) const {
    if (op.is_raster() || op.step != nullptr || op.inputs.empty()) return std::nullopt;
    for (const int input : op.inputs)
      if (input < 0 || is_complex(value(input).dtype)) return std::nullopt;
    const DType dtype = value(op.inputs[0]).dtype, result = value(op.output).dtype;
    const int from = compute_index(dtype), to = compute_index(result);
    if (from < 0 || to < 0 || without_ones(value(op.output).shape).size() > kMaxAxes) return std::nullopt;
    if (op.op->name == "Cast") return known(table_.cast[from][to]);
    if (op.op->fused() == &kFusedMap) {
      const auto map = find_map(op.op->name, op.attributes);
      const MapFn kernel = map && dtype == DType::f32 ? table_.map[static_cast<std::size_t>(map->op)] : nullptr;
      if (kernel == nullptr) return std::nullopt;
      return GroupStage::BoundMap{kernel, static_cast<float>(map->a), static_cast<float>(map->b)};
    }
    const auto* listed = op.op->as<ListedKernel>();
    if (listed == nullptr) return std::nullopt;
    switch (listed->family) {
      case Family::unary: return known(table_.unary[listed->code][from]);
      case Family::test: return known(table_.test[listed->code][from]);
      case Family::binary: return known(table_.binary[listed->code][from]);
      case Family::compare: return known(table_.compare[listed->code][from]);
      case Family::select: return known(table_.select[static_cast<std::size_t>(std::bit_width(item_size(result)) - 1)]);
      default: return std::nullopt;
    }
  }
  template <class F>
  static std::optional<Kernel> known(F kernel) {
    return kernel == nullptr ? std::nullopt : std::optional<Kernel>(kernel);
  }

  // Return the ops of the group that ends with an op, in the order of the program.
  std::vector<std::size_t> grow(std::size_t root) const {
    std::vector<std::size_t> members{root}, refused;
    const Dims shape = without_ones(value(program_.ops[root].output).shape);
    for (bool grows = true; grows && members.size() < kMostGroupStages;) {
      grows = false;
      std::optional<std::size_t> next;
      for (const std::size_t member : members)
        for (const int input : program_.ops[member].inputs) {
          const int producer = producer_[at(input)];
          if (producer < 0 || (next && at(producer) <= *next) || contains(members, at(producer)) ||
              contains(refused, at(producer)) || !is_inner(at(producer), members, shape))
            continue;
          next = at(producer);
        }
      if (!next) break;
      grows = true;
      if (fits(*next, members))
        members.push_back(*next);
      else
        refused.push_back(*next);
    }
    std::sort(members.begin(), members.end());
    return members;
  }

  static bool contains(const std::vector<std::size_t>& ops, std::size_t op) {
    return std::find(ops.begin(), ops.end(), op) != ops.end();
  }

  // Whether the op is elementwise, of this shape, and only members read its result.
  bool is_inner(std::size_t i, const std::vector<std::size_t>& members, const Dims& shape) const {
    if (!kernels_[i] || joined_[i]) return false;
    const int result = program_.ops[i].output;
    int reads = 0;
    for (const std::size_t member : members)
      reads += static_cast<int>(std::count(program_.ops[member].inputs.begin(), program_.ops[member].inputs.end(), result));
    return reads == readers_[at(result)] && without_ones(value(result).shape) == shape;
  }

  // Whether the group stays within the limits of its step, and uses no more memory at once: the operands of what joins it stay in
  // use until the group runs, where its result would have been.
  bool fits(std::size_t i, const std::vector<std::size_t>& members) const {
    const std::size_t root = members.front();
    std::vector<int> operands;
    for (const std::size_t member : members) collect_operands(member, members, operands);
    std::int64_t longer = 0;
    for (const int input : program_.ops[i].inputs) {
      const bool is_held = std::find(operands.begin(), operands.end(), input) != operands.end() || last_[at(input)] >= root;
      if (!is_held && producer_[at(input)] >= 0) longer += byte_count(value(input));
    }
    std::size_t between = root - i - 1;
    for (const std::size_t member : members) between -= member > i && member < root ? 1 : 0;
    constexpr std::size_t kNear = 8;
    constexpr std::int64_t kSmall = 4096;  // bytes
    if (between > kNear && longer > byte_count(value(program_.ops[i].output)) + kSmall) return false;
    collect_operands(i, members, operands);
    const int result = program_.ops[i].output;
    return static_cast<std::size_t>(std::count_if(operands.begin(), operands.end(), [&](int v) { return v != result; })) <=
           kMostGroupOperands;
  }

  // Adds the operands of an op that no member computes, each once.
  void collect_operands(std::size_t i, const std::vector<std::size_t>& members, std::vector<int>& operands) const {
    for (const int input : program_.ops[i].inputs) {
      const int producer = producer_[at(input)];
      if (producer >= 0 && contains(members, at(producer))) continue;
      if (std::find(operands.begin(), operands.end(), input) == operands.end()) operands.push_back(input);
    }
  }

  // Makes the last member the group, and removes the others.
  void replace(const std::vector<std::size_t>& members) {
    const std::size_t root = members.back();
    const ProgramValue& result = value(program_.ops[root].output);
    std::vector<GroupOperand> operands;
    std::vector<int> inputs;
    std::vector<std::vector<std::pair<bool, std::size_t>>> reads;  // by stage: whether of a stage, and which
    for (const std::size_t member : members) {
      const ProgramOp& op = program_.ops[member];
      reads.emplace_back();
      for (const int input : op.inputs) {
        const auto inner = std::find_if(members.begin(), members.end(),
                                        [&](std::size_t other) { return other < member && program_.ops[other].output == input; });
        if (inner != members.end()) {
          reads.back().emplace_back(true, static_cast<std::size_t>(inner - members.begin()));
          continue;
        }
        const auto& view = views_[at(input)];
        const int source = view ? view->source : input;
        GroupOperand operand{value(input).dtype, view ? view->strides : strides_of(value(input).shape, value(op.output).shape),
                             view ? view->offset : 0};
        std::size_t place = 0;
        while (place < inputs.size() && (inputs[place] != source || operands[place].strides != operand.strides ||
                                         operands[place].offset != operand.offset))
          ++place;
        if (place == inputs.size()) {
          inputs.push_back(source);
          operands.push_back(std::move(operand));
        }
        reads.back().emplace_back(false, place);
      }
    }
    if (inputs.size() > kMostGroupOperands) {  // one operand in several shapes: the other members may form groups of their own
      if (reads_view(root)) replace({root});
      return;
    }
    std::vector<GroupStage> stages;
    double us = 0;
    for (std::size_t k = 0; k < members.size(); ++k) {
      const ProgramOp& op = program_.ops[members[k]];
      GroupStage stage{*kernels_[members[k]], {}, value(op.output).dtype};
      for (const auto& [is_stage, place] : reads[k])
        stage.operands.push_back(static_cast<int>(is_stage ? inputs.size() + place : place));
      stages.push_back(std::move(stage));
      us += op.predicted_us;
    }
    ProgramOp group;
    group.name = program_.ops[root].name;
    group.op = &group_operator();
    group.step = make_elementwise_group(name_of(members), operands, stages, {result.dtype, without_ones(result.shape)});
    group.inputs = std::move(inputs);
    group.output = program_.ops[root].output;
    group.predicted_us = us;
    for (const int input : group.inputs) last_[at(input)] = std::max(last_[at(input)], root);
    for (const std::size_t member : members) {
      joined_[member] = true;
      program_.ops[member].output = -1;
    }
    program_.ops[root] = std::move(group);
  }

  // Strides of an operand along the axes of a result that have more than one element.
  static Dims strides_of(const Dims& shape, const Dims& result) {
    const Dims all = broadcast_strides(shape, contiguous_strides(shape), result);
    Dims strides;
    for (std::size_t axis = 0; axis < result.size(); ++axis)
      if (result[axis] != 1) strides.push_back(all[axis]);
    return strides;
  }

  // The operators in the order of running, such as "Mul+Sub".
  std::string name_of(const std::vector<std::size_t>& members) const {
    constexpr std::size_t kMost = 6;
    std::string name;
    for (std::size_t k = 0; k < std::min(members.size(), kMost); ++k)
      name += (k == 0 ? "" : "+") + std::string(program_.ops[members[k]].op->name);
    if (members.size() > kMost) name += "+" + std::to_string(members.size() - kMost) + " more";
    return name;
  }

  Program& program_;
  const Table& table_;
  std::vector<int> readers_;                      // by value: how many operands and outputs it is
  std::vector<std::size_t> last_;                 // by value: the last op that reads it; behind all: an output
  std::vector<int> producer_;                     // by value: the op that computes it; -1: none
  std::vector<std::optional<Kernel>> kernels_;    // by op; nothing where it is not elementwise
  std::vector<bool> joined_;                      // by op: whether it is in a group
  std::vector<std::optional<RasterView>> views_;  // by value: what is read for it; nothing: itself
};

}  // namespace

void join_elementwise(Program& program, const Table& table) { ElementwiseJoin(program, table).run(); }

}  // namespace walle
