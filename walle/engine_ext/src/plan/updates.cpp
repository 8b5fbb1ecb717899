#include "plan/updates.h"

#include <algorithm>

#include "graph/index.h"
#include "plan/program.h"

namespace walle {

namespace {

class UpdateOrder {
 public:
  UpdateOrder(Program& program, const Updates& updates, std::span<const TensorType> inputs)
      : program_(program), updates_(updates), inputs_(inputs) {}

  std::size_t run() {
    check_types();
    read_program();
    copy_shared();
    read_program();
    copy_needed();
    read_program();
    const std::size_t first = move_last();
    read_program();
    for (std::size_t output = 0; output < updates_.replaced.size(); ++output)
      if (updates_.replaces(output) && !may_overwrite(output)) append_copy(output);
    return first;
  }

 private:
  void check_types() const {
    for (std::size_t output = 0; output < updates_.replaced.size(); ++output) {
      const ProgramValue& update = program_.values[at(program_.outputs[output])];
      const std::string has = "output " + std::to_string(output) + " has shape " + to_string(update.shape) + " and dtype " +
                              std::string(dtype_name(update.dtype));
      if (updates_.replaces(output)) {
        const TensorType& input = inputs_[at(updates_.replaced[output])];  // a program may have the input as a constant
        if (input.dtype != update.dtype || input.shape != update.shape)
          throw Error(ErrorKind::shape, has + ", which are not those of the input that it replaces");
      }
      if (updates_.condition == static_cast<int>(output) && (update.dtype != DType::b8 || element_count(update.shape) != 1))
        throw Error(ErrorKind::shape, has + "; it is the condition of updates, which is one bool");
    }
  }

  void read_program() {
    const std::size_t count = program_.values.size();
    root_.resize(count);
    for (std::size_t value = 0; value < count; ++value) root_[value] = static_cast<int>(value);
    producer_.assign(count, -1);
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const ProgramOp& op = program_.ops[i];
      if (rename_offset(program_, op)) root_[at(op.output)] = root_[at(op.inputs[at(op.regions[0].source)])];
      producer_[at(op.output)] = static_cast<int>(i);
    }
  }

  // Gives memory of their own to outputs that are inputs, constants, parts of other values or the same value as another output.
  void copy_shared() {
    std::vector<bool> is_taken(program_.values.size(), false);
    for (std::size_t output = 0; output < updates_.replaced.size(); ++output) {
      const int value = program_.outputs[output], root = root_[at(value)];
      const ProgramValue& whole = program_.values[at(root)];
      const bool is_own = whole.input < 0 && !whole.is_constant() && !is_taken[at(root)] &&
                          element_count(whole.shape) == element_count(program_.values[at(value)].shape);
      is_taken[at(root)] = true;
      if (is_own) continue;
      append_copy(output);
      if (updates_.replaces(output)) append_copy(output);  // the first one runs before any input changes
    }
  }

  // Copies the updates that other outputs, the condition among them, are computed from: these are there in each run.
  void copy_needed() {
    std::vector<bool> is_needed(program_.values.size(), false);
    for (std::size_t output = 0; output < program_.outputs.size(); ++output)
      if (!updates_.replaces(output)) is_needed[at(program_.outputs[output])] = true;
    for (std::size_t i = program_.ops.size(); i-- > 0;) {
      const ProgramOp& op = program_.ops[i];
      for (const int input : op.inputs)
        if (input >= 0 && is_needed[at(op.output)]) is_needed[at(input)] = is_needed[at(root_[at(input)])] = true;
    }
    for (std::size_t output = 0; output < updates_.replaced.size(); ++output)
      if (updates_.replaces(output) && is_needed[at(root_of(output))]) append_copy(output);
  }

  int root_of(std::size_t output) const { return root_[at(program_.outputs[output])]; }

  void append_copy(std::size_t output) {
    const int value = program_.outputs[output];
    const ProgramValue type{program_.values[at(value)].dtype, program_.values[at(value)].shape, {}, -1, {}};
    const std::int64_t count = element_count(type.shape), one = 1;
    ProgramOp copy;
    copy.name = "output " + std::to_string(output);
    copy.inputs = {value};
    copy.is_copy = true;
    copy.regions = {Region::make(0, {&count, 1}, {&one, 1}, 0, {&one, 1}, 0, count, count)};
    copy.output = static_cast<int>(program_.values.size());
    program_.values.push_back(type);
    program_.outputs[output] = copy.output;
    program_.ops.push_back(std::move(copy));
  }

  // Moves the ops that write updates last, with those that read them; copies of old values come before.
  std::size_t move_last() {
    std::vector<bool> is_late(program_.values.size(), false);
    for (std::size_t output = 0; output < program_.outputs.size(); ++output)
      if (updates_.replaces(output)) is_late[at(root_of(output))] = true;
    std::vector<ProgramOp> early, late;
    for (ProgramOp& op : program_.ops) {
      const bool reads =
          std::any_of(op.inputs.begin(), op.inputs.end(), [&](int input) { return input >= 0 && is_late[at(input)]; });
      if (reads) is_late[at(op.output)] = true;
      (is_late[at(op.output)] ? late : early).push_back(std::move(op));
    }
    const std::size_t first = early.size();
    std::move(late.begin(), late.end(), std::back_inserter(early));
    program_.ops = std::move(early);
    return first;
  }

  // Whether the output's op may write over the input: it is the last one that reads it, each element before it writes there.
  bool may_overwrite(std::size_t output) const {
    const int writer = producer_[at(root_of(output))];
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const ProgramOp& op = program_.ops[i];
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        if (op.inputs[k] < 0 || program_.values[at(root_[at(op.inputs[k])])].input != updates_.replaced[output]) continue;
        if (i > at(writer)) return false;
        if (i == at(writer) && (op.step == nullptr || !op.step->may_overwrite(k))) return false;
      }
    }
    return true;
  }

  Program& program_;
  const Updates& updates_;
  std::span<const TensorType> inputs_;
  std::vector<int> root_;      // by value: the value whose memory it renames, or itself
  std::vector<int> producer_;  // by value: the op that computes it; -1: none
};

}  // namespace

std::size_t separate_updates(Program& program, const Updates& updates, std::span<const TensorType> inputs) {
  return UpdateOrder(program, updates, inputs).run();
}

}  // namespace walle
