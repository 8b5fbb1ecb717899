// Memory plan: the address of every value of a program. Results share one arena, in which the memory of a value that is no longer
// read is used for later ones; renames lie in their source's memory, values that a raster gathers whole lie in its result's;
// outputs are written to separate memory.
#pragma once
#include "core/device.h"
#include "plan/program.h"
#include "plan/updates.h"

namespace walle {

struct MemoryPlan {
  std::vector<Place> places;   // by value; buffer -1 for values that are not read
  std::vector<int> constants;  // values whose memory is the buffers behind arena, inputs and outputs
  std::vector<bool> skipped;   // by op: a raster that moves nothing: a rename, or all elements are in place already
  std::size_t arena_bytes = 0;

  static constexpr int kArena = 0;
  static constexpr int input_buffer(int input) noexcept { return 1 + input; }
};

// Adds a copying raster for an output without its own memory (an input, a constant, part of another value), removes
// regions whose elements are in place already, and assigns all addresses. A value's memory may be a stretch of another's,
// directly followed by other elements: a kernel writes only the elements of its result. Buffers: the arena, `inputs` inputs, the
// outputs, the constants. `alignment` is the device's. Updates lie in the memory of the inputs that they replace; the program is
// what separate_updates() made of it.
MemoryPlan plan_memory(Program& program, int inputs, std::size_t alignment, const Updates& updates = {});

}  // namespace walle
