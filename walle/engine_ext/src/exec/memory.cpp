#include "exec/memory.h"

#include <algorithm>

namespace walle {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::int64_t bytes_of(const ProgramValue& value) {
  constexpr std::int64_t kAlignment = Storage::kAlignment;
  std::int64_t bytes;
  if (__builtin_mul_overflow(element_count(value.shape), static_cast<std::int64_t>(item_size(value.dtype)), &bytes) ||
      bytes > INT64_MAX / 4)
    throw Error(ErrorKind::shape, "a tensor of shape " + to_string(value.shape) + " has more bytes than memory");
  return (bytes / kAlignment + 1) * kAlignment;  // room for a vector kernel's last whole vector
}

// A value seen as a stretch of another's memory.
struct Alias {
  int root;
  std::int64_t offset;  // in bytes
};

std::vector<Alias> find_aliases(const Program& program) {
  std::vector<Alias> aliases(program.values.size());
  for (std::size_t i = 0; i < aliases.size(); ++i) aliases[i] = {static_cast<int>(i), 0};
  for (const ProgramOp& op : program.ops) {
    const auto offset = rename_offset(program, op);
    if (!offset) continue;
    const Alias& source = aliases[at(op.inputs[at(op.regions[0].source)])];
    const auto item = static_cast<std::int64_t>(item_size(program.values[at(op.output)].dtype));
    aliases[at(op.output)] = {source.root, source.offset + *offset * item};
  }
  return aliases;
}

struct Block {
  int value;
  std::int64_t bytes;
  std::size_t first, last;  // ops that write it and read it last
  std::int64_t offset = 0;
};

// Greedy by size: the largest first, each at the lowest offset that no block alive at the same time covers.
std::int64_t lay_out(std::vector<Block>& blocks) {
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.value < b.value; });
  std::vector<const Block*> placed;  // ascending offsets
  std::int64_t total = 0;
  for (Block& block : blocks) {
    std::int64_t offset = 0;
    for (const Block* other : placed) {
      if (other->last < block.first || block.last < other->first) continue;
      if (other->offset >= offset + block.bytes) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    block.offset = offset;
    total = std::max(total, offset + block.bytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), offset, [](std::int64_t o, const Block* b) { return o < b->offset; }),
        &block);
  }
  return total;
}

}  // namespace

MemoryPlan plan_memory(Program& program, int inputs) {
  std::vector<Alias> aliases = find_aliases(program);
  std::vector<int> output_of(program.values.size(), -1);  // which output a root's memory is
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    const int value = program.outputs[i];
    const Alias alias = aliases[at(value)];
    const ProgramValue& root = program.values[at(alias.root)];
    const bool own = root.input < 0 && !root.is_constant() && output_of[at(alias.root)] < 0 && alias.offset == 0 &&
                     element_count(root.shape) == element_count(program.values[at(value)].shape);
    if (own) {
      output_of[at(alias.root)] = static_cast<int>(i);
      continue;
    }
    ProgramOp copy;
    copy.name = "output " + std::to_string(i);
    copy.inputs = {value};
    const std::int64_t count = element_count(program.values[at(value)].shape), one = 1;
    copy.regions = {Region::make(0, {&count, 1}, {&one, 1}, 0, {&one, 1}, 0, count, count)};
    copy.output = static_cast<int>(program.values.size());
    program.values.push_back({program.values[at(value)].dtype, program.values[at(value)].shape, {}, -1});
    program.outputs[i] = copy.output;
    aliases.push_back({copy.output, 0});
    output_of.push_back(static_cast<int>(i));
    program.ops.push_back(std::move(copy));
  }

  MemoryPlan plan;
  plan.places.resize(program.values.size());
  std::vector<int> block_of(program.values.size(), -1);
  std::vector<Block> blocks;
  int next_base = MemoryPlan::input_base(inputs) + static_cast<int>(program.outputs.size());
  const auto give_root = [&](int root, std::size_t op) {
    const ProgramValue& value = program.values[at(root)];
    Place& place = plan.places[at(root)];
    if (value.input >= 0) {
      place = {MemoryPlan::input_base(value.input), 0};
    } else if (output_of[at(root)] >= 0) {
      place = {MemoryPlan::input_base(inputs) + output_of[at(root)], 0};
    } else if (value.is_constant()) {
      if (place.base < 0) {
        place = {next_base++, 0};
        plan.constants.push_back(root);
      }
    } else if (block_of[at(root)] < 0) {
      block_of[at(root)] = static_cast<int>(blocks.size());
      blocks.push_back({root, bytes_of(value), op, op});
    } else {
      blocks[at(block_of[at(root)])].last = op;
    }
  };
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    plan.skipped.push_back(aliases[at(op.output)].root != op.output);
    for (const int input : op.inputs)
      if (input >= 0) give_root(aliases[at(input)].root, i);
    give_root(aliases[at(op.output)].root, i);
  }
  plan.arena_bytes = static_cast<std::size_t>(lay_out(blocks));
  for (const Block& block : blocks) plan.places[at(block.value)] = {MemoryPlan::kArena, block.offset};
  for (std::size_t i = 0; i < plan.places.size(); ++i) {
    const Alias& alias = aliases[i];
    if (at(alias.root) == i) continue;
    plan.places[i] = plan.places[at(alias.root)];
    plan.places[i].offset += alias.offset;
  }
  return plan;
}

}  // namespace walle
