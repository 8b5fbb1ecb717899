// Operands of shape inference, geometry and steps: type, shape and, if known before running, the value.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/attributes.h"
#include "core/tensor.h"

namespace walle {

struct Operand {
  DType dtype = DType::f32;
  Dims shape;
  const Tensor* constant = nullptr;  // value that is known before running, or null
  bool absent = false;               // an optional input that was left out

  static Operand none() { return {DType::f32, {}, nullptr, true}; }
};

// Thrown if an operator's shape or movement depends on an operand that is not constant. A session then plans with the inputs that
// the operand depends on as constants, or uses the operator's at_run_time form.
class ValueNeeded : public Error {
 public:
  ValueNeeded(std::size_t operand, const std::string& what)
      : Error(ErrorKind::unsupported, what + " must be known before running"), operand_(operand) {}
  std::size_t operand() const noexcept { return operand_; }

 private:
  std::size_t operand_;
};

// Return `axis` counted from the front; throw Error (shape) outside [-rank, rank).
std::size_t normal_axis(std::int64_t axis, std::size_t rank);
// Return integers from operand `index` (a constant) or, if that is absent, from the attribute; nothing if both are absent.
std::optional<Dims> whole_numbers(std::span<const Operand> operands, std::size_t index, const Attributes& attributes,
                                  std::string_view name);
Dims required_numbers(std::span<const Operand> operands, std::size_t index, const Attributes& attributes, std::string_view name);
// Return the common shape by NumPy's rule; throw Error (shape).
Dims broadcast_shape(const Dims& a, const Dims& b);
// Return the strides that broadcast a tensor of `shape` and `strides` to `to`; throw Error (shape).
Dims broadcast_strides(const Dims& shape, const Dims& strides, const Dims& to);

}  // namespace walle
