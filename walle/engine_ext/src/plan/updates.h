// Updates: outputs of a program that take the place of inputs, as the new parameters of a training step do. They run last and
// only where a condition holds, so that a run that is stopped, or finds a loss that is not finite, changes nothing.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace walle {

struct Program;
struct TensorType;

struct Updates {
  std::vector<int> replaced;  // by output: the input whose memory receives it; -1: memory of its own. Empty: no updates
  int condition = -1;         // output of one bool; where it is false, no input changes. -1: always

  bool empty() const noexcept { return replaced.empty(); }
  bool replaces(std::size_t output) const noexcept { return !empty() && replaced[output] >= 0; }
};

// Moves the ops that write updates, and those that read these, behind all others, and copies values that would otherwise change
// too early: an output that is an input, an update whose op cannot write over the old value. An update that other outputs or the
// condition are computed from is computed with these, and copied. Return the first op that runs only where the condition holds.
// `inputs` are the types of the program's. Throws Error (shape) where an output has another type than the input that it replaces,
// or the condition is not one bool.
std::size_t separate_updates(Program& program, const Updates& updates, std::span<const TensorType> inputs);

}  // namespace walle
