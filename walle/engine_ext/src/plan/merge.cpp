// Merging of rasters over a whole program (§4.1); geometry/merge.cpp merges a pair.
#include "geometry/merge.h"

#include <algorithm>
#include <map>

#include "graph/index.h"
#include "plan/program.h"

namespace walle {

namespace {

// The limit of regions to which a raster may grow by merging.
constexpr std::size_t kMaxRegions = 64;

int input_number(ProgramOp& op, int value) {
  const auto found = std::find(op.inputs.begin(), op.inputs.end(), value);
  if (found != op.inputs.end()) return static_cast<int>(found - op.inputs.begin());
  op.inputs.push_back(value);
  return static_cast<int>(op.inputs.size() - 1);
}

// Vertical merging: every raster reads the sources of the rasters before it. Producers come first, so chains of any length become
// one raster.
void merge_vertically(Program& program) {
  std::vector<int> raster_of(program.values.size(), -1);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    ProgramOp& op = program.ops[i];
    if (!op.is_raster()) continue;
    raster_of[at(op.output)] = static_cast<int>(i);
    std::vector<Region> merged;
    for (const Region& region : op.regions) {
      const int producer = raster_of[at(op.inputs[at(region.source)])];
      std::optional<std::vector<Region>> pieces;
      if (producer >= 0) pieces = compose(region, program.ops[at(producer)].regions);
      if (!pieces || merged.size() + pieces->size() + op.regions.size() > kMaxRegions) {
        merged.push_back(region);
        continue;
      }
      for (Region& piece : *pieces) {
        piece.source = input_number(op, program.ops[at(producer)].inputs[at(piece.source)]);
        merged.push_back(piece);
      }
    }
    op.regions = std::move(merged);
    // Only inputs that are read stay, in the order of first reading: equal rasters then compare equal.
    std::vector<int> inputs;
    inputs.swap(op.inputs);
    for (Region& region : op.regions) region.source = input_number(op, inputs[at(region.source)]);
  }
}

// Horizontal merging: of rasters that move the same elements, the first one stays and all readers read its result.
void merge_horizontally(Program& program) {
  std::vector<int> stands_for(program.values.size());
  for (std::size_t i = 0; i < stands_for.size(); ++i) stands_for[i] = static_cast<int>(i);
  std::vector<const ProgramOp*> kept;
  for (ProgramOp& op : program.ops) {
    for (int& input : op.inputs)
      if (input >= 0) input = stands_for[at(input)];
    if (!op.is_raster() || op.inputs.empty()) continue;
    const ProgramValue& value = program.values[at(op.output)];
    const auto same = std::find_if(kept.begin(), kept.end(), [&](const ProgramOp* other) {
      const ProgramValue& twin = program.values[at(other->output)];
      return other->inputs == op.inputs && other->regions == op.regions && twin.dtype == value.dtype &&
             element_count(twin.shape) == element_count(value.shape);
    });
    if (same == kept.end()) {
      kept.push_back(&op);
      continue;
    }
    if (program.values[at((*same)->output)].shape == value.shape) {
      stands_for[at(op.output)] = (*same)->output;
    } else {  // the same memory in another shape: a rename
      const std::int64_t count = element_count(value.shape), one = 1;
      op.inputs = {(*same)->output};
      op.regions = {Region::make(0, {&count, 1}, {&one, 1}, 0, {&one, 1}, 0, count, count)};
    }
  }
  for (int& output : program.outputs) output = stands_for[at(output)];
}

// Operators that compute the same from the same values: the first one stays.
void merge_equal(Program& program) {
  std::vector<int> stands_for(program.values.size());
  for (std::size_t i = 0; i < stands_for.size(); ++i) stands_for[i] = static_cast<int>(i);
  std::map<std::pair<const OpDef*, std::vector<int>>, std::vector<const ProgramOp*>> kept;
  for (ProgramOp& op : program.ops) {
    for (int& input : op.inputs)
      if (input >= 0) input = stands_for[at(input)];
    if (op.is_raster()) continue;  // random numbers are equal where their seeds are
    std::vector<const ProgramOp*>& equal = kept[{op.op, op.inputs}];
    const auto same = std::find_if(equal.begin(), equal.end(), [&](const ProgramOp* other) {
      return other->attributes.items() == op.attributes.items() && other->axes == op.axes &&
             program.values[at(other->output)].dtype == program.values[at(op.output)].dtype &&
             program.values[at(other->output)].shape == program.values[at(op.output)].shape;
    });
    if (same == equal.end())
      equal.push_back(&op);
    else
      stands_for[at(op.output)] = (*same)->output;
  }
  for (int& output : program.outputs) output = stands_for[at(output)];
}

}  // namespace

void merge_operators(Program& program) {
  merge_equal(program);
  remove_unread(program);
}

void remove_unread(Program& program) {
  std::vector<bool> read(program.values.size(), false);
  for (const int output : program.outputs) read[at(output)] = true;
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    const ProgramOp& op = program.ops[i];
    if (!read[at(op.output)]) continue;
    for (const int input : op.inputs)
      if (input >= 0) read[at(input)] = true;
  }
  std::erase_if(program.ops, [&](const ProgramOp& op) { return !read[at(op.output)]; });
}

void merge(Program& program) {
  remove_unread(program);
  merge_vertically(program);
  merge_horizontally(program);
  remove_unread(program);
}

std::optional<std::int64_t> rename_offset(const Program& program, const ProgramOp& op) {
  if (!op.is_raster() || op.is_copy || op.regions.size() != 1) return std::nullopt;
  const Region& region = op.regions[0];
  const bool dense = region.axes == 0 || (region.axes == 1 && region.src.stride[0] == 1 && region.dst.stride[0] == 1);
  if (!dense || region.dst.offset != 0 || region.count() != element_count(program.values[at(op.output)].shape))
    return std::nullopt;
  return region.src.offset;
}

}  // namespace walle
