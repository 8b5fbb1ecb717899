// The memory plan: where every value of a program lies. Results share one arena, in which the memory of a value that is no longer
// read serves later ones; renames lie in their source's memory, values that a raster gathers whole lie in its result's; outputs
// are written to memory of their own.
#pragma once
#include "plan/program.h"

namespace walle {

// An address as a base, filled in for each run, and an offset in bytes.
struct Place {
  int base = -1;
  std::int64_t offset = 0;
};

struct MemoryPlan {
  std::vector<Place> places;   // by value; base -1 for values that nobody reads
  std::vector<int> constants;  // values whose addresses are the bases behind arena, inputs and outputs
  std::vector<bool> skipped;   // by op: a raster with nothing to run: a rename, or all lies where it is to go
  std::size_t arena_bytes = 0;

  static constexpr int kArena = 0;
  static constexpr int input_base(int input) noexcept { return 1 + input; }
};

// Adds a copying raster for an output that has no memory of its own (an input, a constant, part of another value), removes
// regions whose elements lie already where they are to go, and lays out everything. A value's memory may be a stretch of
// another's, with others' elements right behind: a kernel writes the elements of its result and nothing else. Bases: the arena,
// `inputs` inputs, the outputs, the constants.
MemoryPlan plan_memory(Program& program, int inputs);

}  // namespace walle
