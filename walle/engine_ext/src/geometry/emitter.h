// Emitter: the receiver of the operators that a decomposition emits (§4.1).
#pragma once
#include <string_view>
#include <vector>

#include "geometry/operand.h"

namespace walle {

// Implemented by lowering (plan/lower.cpp) and by eager evaluation (operators/eager.cpp).
class Emitter {
 public:
  using Ref = int;
  static constexpr Ref kAbsent = -1;

  virtual ~Emitter() = default;
  // Return type and shape of a tensor, valid until the next call; an absent operand for kAbsent.
  virtual Operand operand(Ref tensor) const = 0;
  virtual std::vector<Ref> emit(std::string_view op, std::vector<Ref> inputs, Attributes attributes, int outputs) = 0;
  virtual Ref constant(Tensor value) = 0;
  // Return the value of a tensor that a decomposition needs while planning; `what` names it in errors. A session plans with the
  // inputs that the tensor depends on as constants.
  virtual Tensor value(Ref tensor, const std::string& what) const = 0;

  Ref one(std::string_view op, std::vector<Ref> inputs, Attributes attributes = {}) {
    return emit(op, std::move(inputs), std::move(attributes), 1)[0];
  }
  // Emit a 0-d constant of a dtype that kernels compute in; the number must be in its range.
  Ref number(double value, DType dtype);
};

}  // namespace walle
