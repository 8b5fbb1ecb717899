#include "plan/memory.h"
#include "graph/index.h"

#include <algorithm>

namespace walle {

namespace {

std::int64_t bytes_of(const ProgramValue& value, std::int64_t alignment) {
  std::int64_t bytes;
  if (__builtin_mul_overflow(element_count(value.shape), static_cast<std::int64_t>(item_size(value.dtype)), &bytes) ||
      bytes > INT64_MAX / 4)
    throw Error(ErrorKind::shape, "a tensor of shape " + to_string(value.shape) + " has more bytes than memory");
  return (bytes / alignment + 1) * alignment;  // room for a vector kernel's last whole vector
}

// Values as stretches of other values' memory: renames, and values that are written directly into a raster's result.
class Aliases {
 public:
  explicit Aliases(const Program& program) {
    for (std::size_t i = 0; i < program.values.size(); ++i) add();
    for (const ProgramOp& op : program.ops) {
      const auto offset = rename_offset(program, op);
      if (!offset) continue;
      const auto item = static_cast<std::int64_t>(item_size(program.values[at(op.output)].dtype));
      put(op.output, op.inputs[at(op.regions[0].source)], *offset * item);
    }
  }

  struct Alias {
    int root;
    std::int64_t offset;  // in bytes
  };
  Alias of(int value) const {
    Alias found{value, 0};
    while (links_[at(found.root)].root != found.root) {
      const Alias& link = links_[at(found.root)];
      found = {link.root, found.offset + link.offset};
    }
    return found;
  }
  void add() { links_.push_back({static_cast<int>(links_.size()), 0}); }
  // Places `value`, a root so far, `offset` bytes after the first byte of `in`.
  void put(int value, int in, std::int64_t offset) {
    const Alias whole = of(in);
    links_[at(value)] = {whole.root, whole.offset + offset};
  }

 private:
  std::vector<Alias> links_;
};

// Return whether the region moves the whole of a tensor of `count` elements, in order.
bool moves_whole(const Region& region, std::int64_t count) {
  const bool dense = region.axes == 0 || (region.axes == 1 && region.src.stride[0] == 1 && region.dst.stride[0] == 1);
  return dense && count > 0 && region.src.offset == 0 && region.count() == count;
}

// Where a raster gathers a whole value into a stretch of its result, the value's memory becomes that stretch: the op that
// computes the value writes there. Not for values whose memory is already that of another value, an input, a constant or an
// output. The result's memory is then in use from the first op that writes to it.
// Not an update's memory, which is an input's that other ops read until then.
void gather_in_place(const Program& program, const std::vector<int>& output_of, const Updates& updates, Aliases& aliases) {
  for (const ProgramOp& op : program.ops) {
    if (!op.is_raster() || aliases.of(op.output).root != op.output) continue;
    if (const int output = output_of[at(op.output)]; output >= 0 && updates.replaces(at(output))) continue;
    const std::size_t item = item_size(program.values[at(op.output)].dtype);
    for (const Region& region : op.regions) {
      const int source = op.inputs[at(region.source)];
      const auto [root, offset] = aliases.of(source);
      const ProgramValue& value = program.values[at(root)];
      const std::int64_t count = element_count(program.values[at(source)].shape);
      if (root == op.output || offset != 0 || value.input >= 0 || value.is_constant() || output_of[at(root)] >= 0 ||
          item_size(value.dtype) != item || element_count(value.shape) != count || !moves_whole(region, count))
        continue;
      aliases.put(root, op.output, region.dst.offset * static_cast<std::int64_t>(item));
    }
  }
}

// Where an operand is read for the last time, and each element before its place is written, the result takes its memory.
void overwrite_operands(const Program& program, const std::vector<int>& output_of, Aliases& aliases) {
  std::vector<std::size_t> last(program.values.size(), 0);  // by root: the op that reads it last
  for (std::size_t i = 0; i < program.ops.size(); ++i)
    for (const int input : program.ops[i].inputs)
      if (input >= 0) last[at(aliases.of(input).root)] = i;
  const auto is_free = [&](int root) {
    const ProgramValue& value = program.values[at(root)];
    return value.input < 0 && !value.is_constant() && output_of[at(root)] < 0;
  };
  const auto byte_count = [&](int root) {
    return element_count(program.values[at(root)].shape) * static_cast<std::int64_t>(item_size(program.values[at(root)].dtype));
  };
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    if (op.step == nullptr || aliases.of(op.output).root != op.output || !is_free(op.output)) continue;
    for (const int input : op.inputs) {
      if (input < 0) continue;
      const auto [root, offset] = aliases.of(input);
      if (offset != 0 || !is_free(root) || last[at(root)] != i || byte_count(root) != byte_count(op.output)) continue;
      bool may = true;
      for (std::size_t k = 0; k < op.inputs.size(); ++k)
        may = may && (op.inputs[k] < 0 || aliases.of(op.inputs[k]).root != root || op.step->may_overwrite(k));
      if (!may) continue;
      last[at(root)] = last[at(op.output)];
      aliases.put(op.output, root, 0);
      break;
    }
  }
}

// Removes the regions whose elements are in place already.
void drop_needless_regions(Program& program, const Aliases& aliases) {
  for (ProgramOp& op : program.ops) {
    if (!op.is_raster()) continue;
    const Aliases::Alias to = aliases.of(op.output);
    const auto item = static_cast<std::int64_t>(item_size(program.values[at(op.output)].dtype));
    std::erase_if(op.regions, [&](const Region& region) {
      const Aliases::Alias from = aliases.of(op.inputs[at(region.source)]);
      return from.root == to.root && region.same_layout() &&
             from.offset + region.src.offset * item == to.offset + region.dst.offset * item;
    });
  }
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

MemoryPlan plan_memory(Program& program, int inputs, std::size_t alignment, const Updates& updates) {
  Aliases aliases(program);
  std::vector<int> output_of(program.values.size(), -1);  // by root: the output whose memory it has
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    const int value = program.outputs[i];
    const Aliases::Alias alias = aliases.of(value);
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
    program.values.push_back({program.values[at(value)].dtype, program.values[at(value)].shape, {}, -1, {}});
    program.outputs[i] = copy.output;
    aliases.add();
    output_of.push_back(static_cast<int>(i));
    program.ops.push_back(std::move(copy));
  }
  gather_in_place(program, output_of, updates, aliases);
  drop_needless_regions(program, aliases);
  overwrite_operands(program, output_of, aliases);

  MemoryPlan plan;
  plan.places.resize(program.values.size());
  std::vector<int> block_of(program.values.size(), -1);
  std::vector<Block> blocks;
  int next_buffer = MemoryPlan::input_buffer(inputs) + static_cast<int>(program.outputs.size());
  const auto give_root = [&](int root, std::size_t op) {
    const ProgramValue& value = program.values[at(root)];
    Place& place = plan.places[at(root)];
    if (value.input >= 0) {
      place = {MemoryPlan::input_buffer(value.input), 0};
    } else if (output_of[at(root)] >= 0) {
      const int output = output_of[at(root)];
      place = {MemoryPlan::input_buffer(updates.replaces(at(output)) ? updates.replaced[at(output)] : inputs + output), 0};
    } else if (value.is_constant()) {
      if (place.buffer < 0) {
        place = {next_buffer++, 0};
        plan.constants.push_back(root);
      }
    } else if (block_of[at(root)] < 0) {
      block_of[at(root)] = static_cast<int>(blocks.size());
      blocks.push_back({root, bytes_of(value, static_cast<std::int64_t>(alignment)), op, op});
    } else {
      blocks[at(block_of[at(root)])].last = op;
    }
  };
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    plan.skipped.push_back(op.is_raster() && op.regions.empty());
    for (const int input : op.inputs)
      if (input >= 0) give_root(aliases.of(input).root, i);
    give_root(aliases.of(op.output).root, i);
  }
  plan.arena_bytes = static_cast<std::size_t>(lay_out(blocks));
  for (const Block& block : blocks) plan.places[at(block.value)] = {MemoryPlan::kArena, block.offset};
  for (std::size_t i = 0; i < plan.places.size(); ++i) {
    const Aliases::Alias alias = aliases.of(static_cast<int>(i));
    if (at(alias.root) == i) continue;
    plan.places[i] = plan.places[at(alias.root)];
    plan.places[i].offset += alias.offset;
  }
  return plan;
}

}  // namespace walle
