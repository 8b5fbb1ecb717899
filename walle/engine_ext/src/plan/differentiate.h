// Differentiation of a program in reverse (§4.2): the gradients of a value are computed by the operators that the rules of its
// operators emit behind them (operators/gradient/), and are planned as any others.
#pragma once
#include <string>

#include "plan/program.h"

namespace walle {

// Receives what is emitted, behind the ops of the program so far.
class ProgramEmitter : public Emitter {
 public:
  virtual const Program& program() const noexcept = 0;
  // Names the node that later ops come from.
  virtual void set_node(std::string name) = 0;
  // Adds a raster with one source, whose regions fill every element of the result once.
  virtual Ref move(Ref source, std::vector<Region> regions, Dims shape) = 0;
};

// Return the gradient of `y` by each of `xs`, in its shape and type. Where y has several elements, it is that of their sum.
// `names` are the xs' for messages. Throws Error (unsupported) that names the node of an operator without a rule, or an x that
// no gradient reaches; Error (dtype) where y is not a float.
std::vector<Emitter::Ref> differentiate(ProgramEmitter& emitter, Emitter::Ref y, std::span<const Emitter::Ref> xs,
                                        std::span<const std::string> names);

}  // namespace walle
