// Composite operators: each writes itself as transform and atomic operators (§4.1). The decomposition is the operator's meaning.
#pragma once
#include <span>
#include <vector>

#include "geometry/transform.h"

namespace walle {

// What a decomposition builds on: a session that is being planned, or walle.np, which computes at once.
class Emitter {
 public:
  using Ref = int;
  static constexpr Ref kAbsent = -1;

  virtual ~Emitter() = default;
  // Type and shape of a tensor; valid until the next call. kAbsent gives an absent operand.
  virtual Operand operand(Ref tensor) const = 0;
  virtual std::vector<Ref> emit(std::string_view op, std::vector<Ref> inputs, Attributes attributes, int outputs) = 0;
  virtual Ref constant(Tensor value) = 0;
  // The value of a tensor that a decomposition cannot do without; `what` names it. A session plans with the inputs that it hangs
  // on as constants.
  virtual Tensor value(Ref tensor, const std::string& what) const = 0;

  Ref one(std::string_view op, std::vector<Ref> inputs, Attributes attributes = {}) {
    return emit(op, std::move(inputs), std::move(attributes), 1)[0];
  }
  // A 0-d constant of a dtype that kernels compute in; the number must be in its range.
  Ref number(double value, DType dtype);
};

using CompositeFn = std::vector<Emitter::Ref> (*)(Emitter& emitter, std::span<const Emitter::Ref> inputs,
                                                  const Attributes& attributes, int outputs);

struct Composite {
  std::string_view name;
  int min_inputs, max_inputs;
  CompositeFn decompose;
  std::span<const std::string_view> parts;  // what it decomposes to
};
// All of them, in alphabetical order; each is defined in the geometry/ file of its family.
std::span<const Composite> composites() noexcept;

}  // namespace walle
