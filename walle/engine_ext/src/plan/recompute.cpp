// Recomputation: where most memory is in use, a cheap value that lies unused between forward and backward pass is computed again
// before its next reader, while what it is computed from is in memory anyway.
#include <algorithm>

#include "graph/index.h"
#include "operators/op.h"
#include "plan/program.h"

namespace walle {

namespace {

constexpr double kRecomputeTime = 0.01;          // share of the program's predicted time that all recomputation may take
constexpr std::int64_t kLeastBytes = 64 * 1024;  // free meanwhile; less is not worth an op
constexpr std::int64_t kSmallOperand = 4096;     // bytes of an operand whose longer life does not count

class Recompute {
 public:
  explicit Recompute(Program& program) : program_(program) {}

  void run() {
    double budget_us = 0;
    for (const ProgramOp& op : program_.ops) budget_us += kRecomputeTime * op.predicted_us;
    for (bool found = true; found;) {
      read_program();
      found = false;
      Choice best;
      for (std::size_t i = 0; i < peak_; ++i)
        if (const Choice one = choice(i); one.bytes > 0 && one.us() <= budget_us && one.value() > best.value()) best = one;
      if (best.bytes == 0) break;
      budget_us -= best.us();
      apply(best);
      found = true;
    }
  }

 private:
  struct Choice {
    const ProgramOp* op = nullptr;
    std::size_t before = 0;  // the op that reads the value next
    std::int64_t bytes = 0;  // free meanwhile
    double us() const { return op->predicted_us; }
    double value() const { return op == nullptr ? 0 : static_cast<double>(bytes) / std::max(us(), 0.1); }
  };

  const ProgramValue& value(int index) const { return program_.values[at(index)]; }
  std::int64_t byte_count(int index) const {
    return element_count(value(index).shape) * static_cast<std::int64_t>(item_size(value(index).dtype));
  }
  bool is_in_arena(int root) const { return value(root).input < 0 && !value(root).is_constant() && !is_output_[at(root)]; }

  void read_program() {
    const std::size_t count = program_.values.size(), ops = program_.ops.size();
    root_.resize(count);
    for (std::size_t i = 0; i < count; ++i) root_[i] = static_cast<int>(i);
    reads_.assign(count, {});
    is_output_.assign(count, false);
    std::vector<std::size_t> first(count, ops);
    for (std::size_t i = 0; i < ops; ++i) {
      const ProgramOp& op = program_.ops[i];
      if (rename_offset(program_, op)) root_[at(op.output)] = root_[at(op.inputs[at(op.regions[0].source)])];
      for (const int input : op.inputs)
        if (input >= 0) reads_[at(root_[at(input)])].push_back(i);
      first[at(op.output)] = i;
    }
    for (const int output : program_.outputs) is_output_[at(root_[at(output)])] = true;
    std::vector<std::int64_t> change(ops + 1, 0);
    for (std::size_t i = 0; i < count; ++i) {
      if (root_[i] != static_cast<int>(i) || !is_in_arena(root_[i]) || first[i] == ops) continue;
      change[first[i]] += byte_count(root_[i]);
      change[(reads_[i].empty() ? first[i] : reads_[i].back()) + 1] -= byte_count(root_[i]);
    }
    std::int64_t bytes = 0, most = 0;
    for (std::size_t i = 0; i < ops; ++i) {
      bytes += change[i];
      if (bytes > most) most = bytes, peak_ = i;
    }
  }

  // Whether the op does little for each element of its result.
  static bool is_cheap(const ProgramOp& op) {
    if (op.is_raster() || op.predicted_us <= 0) return false;
    if (op.op->name == "ChannelNormalize" || op.op->name == "Gate" || op.op->name == "Gelu" || op.op->name == "Elementwise")
      return true;
    const auto* listed = op.op->as<ListedKernel>();
    return listed != nullptr && (listed->family == Family::unary || listed->family == Family::binary);
  }

  // Return what computing the op's result again behind the peak gives; no bytes where it may not be, or takes as much memory.
  Choice choice(std::size_t i) const {
    const ProgramOp& op = program_.ops[i];
    const int result = op.output;
    Choice found;
    if (!is_cheap(op) || root_[at(result)] != result || !is_in_arena(result) || byte_count(result) < kLeastBytes) return found;
    const std::vector<std::size_t>& reads = reads_[at(result)];
    const auto next = std::lower_bound(reads.begin(), reads.end(), peak_);
    if (next == reads.end() || *next == peak_) return found;
    for (auto read = next; read != reads.end(); ++read) {  // renames that were made before do not count
      const std::vector<int>& inputs = program_.ops[*read].inputs;
      for (const int input : inputs)
        if (input >= 0 && input != result && root_[at(input)] == result && producer(input) < peak_) return found;
    }
    std::int64_t longer = 0;
    std::vector<int> roots;
    for (const int input : op.inputs) {
      if (input < 0) continue;
      const int root = root_[at(input)];
      if (!is_in_arena(root) || byte_count(root) <= kSmallOperand || reads_[at(root)].back() >= *next) continue;
      if (std::find(roots.begin(), roots.end(), root) != roots.end()) continue;
      roots.push_back(root);
      if (reads_[at(root)].back() < peak_)
        longer += byte_count(root);  // else it is in use at the peak as well
      else if (byte_count(root) > byte_count(result))
        return found;
    }
    const std::int64_t bytes = byte_count(result) - longer;
    if (bytes < kLeastBytes) return found;
    return {&op, *next, bytes};
  }

  std::size_t producer(int value) const {
    for (std::size_t i = 0; i < program_.ops.size(); ++i)
      if (program_.ops[i].output == value) return i;
    return 0;
  }

  void apply(const Choice& choice) {
    ProgramOp again = *choice.op;
    const ProgramValue type{value(again.output).dtype, value(again.output).shape, {}, -1, {}};
    const int before = again.output, after = static_cast<int>(program_.values.size());
    again.output = after;
    for (std::size_t i = choice.before; i < program_.ops.size(); ++i)
      std::replace(program_.ops[i].inputs.begin(), program_.ops[i].inputs.end(), before, after);
    program_.ops.insert(program_.ops.begin() + static_cast<std::ptrdiff_t>(choice.before), std::move(again));
    program_.values.push_back(type);
  }

  Program& program_;
  std::size_t peak_ = 0;                         // the op at which most memory is in use
  std::vector<int> root_;                        // by value: the value whose memory it renames, or itself
  std::vector<std::vector<std::size_t>> reads_;  // by root: the ops that read it or a rename of it
  std::vector<bool> is_output_;                  // by root: its memory is an output's
};

}  // namespace

void recompute(Program& program) { Recompute(program).run(); }

}  // namespace walle
