// Order of operators by memory. A training step is traced as all gradients and then what reads them: their sums, norms and
// updates. Here each of these runs as soon as its gradient exists, which is then in the caches, too; updates in place stay last.
#include <algorithm>

#include "graph/index.h"
#include "plan/program.h"

namespace walle {

namespace {

constexpr std::int64_t kSmall = 4096;  // bytes of memory that no order is chosen for

class Advance {
 public:
  Advance(Program& program, const std::vector<bool>& last)
      : program_(program), ops_(program.ops.size()), root_(program.values.size()), readers_(program.values.size()) {
    for (std::size_t value = 0; value < root_.size(); ++value) root_[value] = static_cast<int>(value);
    producer_.assign(program.values.size(), -1);
    is_output_.assign(program.values.size(), false);
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const ProgramOp& op = program.ops[i];
      if (rename_offset(program, op)) root_[at(op.output)] = root_[at(op.inputs[at(op.regions[0].source)])];
      producer_[at(op.output)] = static_cast<int>(i);
      ops_[i].place = i + 1;
      for (const int input : op.inputs)
        if (input >= 0) readers_[at(root_[at(input)])].push_back(i);
    }
    for (const int output : program.outputs) is_output_[at(root_[at(output)])] = true;
    stays_.assign(program.values.size(), false);
    for (std::size_t output = 0; output < last.size(); ++output) stays_[at(program.outputs[output])] = last[output];
  }

  void run() {
    for (std::size_t i = 0; i < ops_.size(); ++i) advance(i);
    std::vector<std::size_t> order(ops_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(ops_[a].place, ops_[a].is_moved) < std::pair(ops_[b].place, ops_[b].is_moved);
    });
    std::vector<ProgramOp> sorted;
    sorted.reserve(order.size());
    for (const std::size_t i : order) sorted.push_back(std::move(program_.ops[i]));
    program_.ops = std::move(sorted);
  }

 private:
  struct Op {
    std::size_t place = 0;  // 0: before all; an op that moves has that of the op behind which it runs
    bool is_moved = false;
  };

  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  std::int64_t byte_count(int index) const {
    return element_count(value(index).shape) * static_cast<std::int64_t>(item_size(value(index).dtype));
  }
  bool is_in_arena(int root) const { return value(root).input < 0 && !value(root).is_constant() && !is_output_[at(root)]; }

  // Moves the op to the earliest place at which its operands exist, if that takes no more memory.
  void advance(std::size_t i) {
    const ProgramOp& op = program_.ops[i];
    if (stays_[at(op.output)]) return;
    std::size_t earliest = 0;
    for (const int input : op.inputs) {
      if (input < 0) continue;
      if (producer_[at(input)] >= 0) earliest = std::max(earliest, ops_[at(producer_[at(input)])].place);
      if (is_next_value(op.output, input)) earliest = std::max(earliest, last_read(input));
    }
    if (earliest + 1 >= ops_[i].place) return;
    const int result = root_[at(op.output)];
    const std::int64_t held = result == op.output && is_in_arena(result) ? byte_count(result) : 0;
    if (held > freed(i, earliest) + kSmall) return;
    ops_[i].place = earliest;
    ops_[i].is_moved = true;
  }

  // Whether the result may be the next value of an input, as an updated parameter is. It is computed behind the gradients that
  // read the input, so that a later plan may write it in the input's place.
  bool is_next_value(int result, int input) const {
    return is_output_[at(root_[at(result)])] && value(input).input >= 0 && value(input).dtype == value(result).dtype &&
           value(input).shape == value(result).shape;
  }
  // Return the last place at which an input is read, but by what may be its next value.
  std::size_t last_read(int input) const {
    std::size_t last = 0;
    for (const std::size_t reader : readers_[at(root_[at(input)])])
      if (!is_next_value(program_.ops[reader].output, input)) last = std::max(last, ops_[reader].place);
    return last;
  }

  // Return the bytes that are in use for a shorter time where the op moves.
  std::int64_t freed(std::size_t i, std::size_t earliest) const {
    std::vector<int> roots;
    for (const int input : program_.ops[i].inputs)
      if (input >= 0) roots.push_back(root_[at(input)]);
    std::sort(roots.begin(), roots.end());
    roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
    std::int64_t bytes = 0;
    for (const int root : roots) {
      const std::vector<std::size_t>& readers = readers_[at(root)];
      const bool is_last = std::all_of(readers.begin(), readers.end(),
                                       [&](std::size_t reader) { return reader == i || ops_[reader].place <= earliest; });
      if (is_last && is_in_arena(root)) bytes += byte_count(root);
    }
    return bytes;
  }

  Program& program_;
  std::vector<Op> ops_;
  std::vector<int> root_;                          // by value: the value whose memory it renames, or itself
  std::vector<std::vector<std::size_t>> readers_;  // by root: the ops that read it or a rename of it
  std::vector<int> producer_;                      // by value: the op that computes it; -1: none
  std::vector<bool> is_output_;                    // by root: its memory is an output's
  std::vector<bool> stays_;                        // by value: the op that computes it does not move
};

}  // namespace

void advance(Program& program, const std::vector<bool>& last) { Advance(program, last).run(); }

}  // namespace walle
