// Emitter: what a decomposition writes operators to (§4.1).
#pragma once
#include <string_view>
#include <vector>

#include "geometry/operand.h"

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

}  // namespace walle
