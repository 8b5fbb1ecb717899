// Layouts of a program's values while algorithms are chosen: each value is kept plain, packed (its channels in blocks of the
// instruction set's `pack`), or both where both are read. Rasters change between the two, and are merged with the rasters around
// them.
#pragma once
#include <map>

#include "host/packing.h"
#include "plan/program.h"

namespace walle {

class PackedValues {
 public:
  PackedValues(Program& program, std::int64_t pack);

  // The reference is valid until a value is added.
  const ProgramValue& value(int index) const { return program_.values[static_cast<std::size_t>(index)]; }
  const Program& program() const noexcept { return program_; }
  const Packing& packing() const noexcept { return packing_; }

  bool is_packed(int index) const { return packed_[static_cast<std::size_t>(index)] >= 0; }
  // Whether the value exists in its packed form alone. False for -1.
  bool only_packed(int index) const { return index >= 0 && is_packed(index) && !plain_[static_cast<std::size_t>(index)]; }

  // Makes the value exist in that form, by a raster where it does not yet. Return that form's number.
  int need_plain(int index);
  int need_packed(int index);
  // Adds the packed form of a value that will exist in that form alone; returns its number.
  int add_packed_result(int index);

  int add_constant(Tensor tensor);
  // Return a bias or slope padded to whole blocks, so that kernels read whole vectors; -1 for -1. Groups that have blocks of
  // their own need no padding.
  int pad_to_blocks(int index);

  void add_op(ProgramOp op) { program_.ops.push_back(std::move(op)); }

  // Postpones a raster that only renames the elements of a value of which the packed form exists alone: it is added when its
  // result is read plain. False where the op is not such a raster.
  bool defer(ProgramOp& op);

 private:
  // Return the value whose elements a deferred rename renames; any other value unchanged.
  int source_of(int index) const;
  int add_value(Dims shape);
  void add_raster(int from, int to, std::vector<Region> regions, std::string name);

  Program& program_;
  Packing packing_;
  std::vector<int> packed_;            // by value: its packed form, -1 for none
  std::vector<bool> plain_;            // by value: whether its plain form exists
  std::map<int, ProgramOp> deferred_;  // by output
};

}  // namespace walle
