// Clip and Gemm.
#include <cmath>

#include "geometry/composite/composite.h"

namespace walle {

namespace {
using Ref = Emitter::Ref;
}

// Bounds as inputs 1 and 2, or as attributes min and max.
std::vector<Ref> decompose_clip(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const DType dtype = emitter.operand(inputs[0]).dtype;
  const auto bound = [&](std::size_t index, const char* name) {
    if (index < inputs.size() && inputs[index] != Emitter::kAbsent) return inputs[index];
    return attributes.has(name) ? emitter.number(attributes.get_float(name, 0), dtype) : Emitter::kAbsent;
  };
  const Ref low = bound(1, "min"), high = bound(2, "max");
  Ref result = inputs[0];
  if (low != Emitter::kAbsent) result = emitter.one("Maximum", {result, low});
  if (high != Emitter::kAbsent) result = emitter.one("Minimum", {result, high});
  return {result == inputs[0] ? emitter.one("Identity", {result}) : result};
}

// alpha * op(A) @ op(B) + beta * C.
std::vector<Ref> decompose_gemm(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const auto operand = [&](std::size_t index, const char* transposed) {
    if (emitter.operand(inputs[index]).shape.size() != 2)
      throw Error(ErrorKind::shape, "Gemm takes matrices, not " + to_string(emitter.operand(inputs[index]).shape));
    return attributes.get_int(transposed, 0) != 0 ? emitter.one("Transpose", {inputs[index]}) : inputs[index];
  };
  const DType dtype = emitter.operand(inputs[0]).dtype;
  const auto scaled = [&](Ref value, double factor) {
    if (is_integer(dtype) &&
        !(factor == std::trunc(factor) && std::fabs(factor) < 0x1p31 && (factor >= 0 || !is_unsigned(dtype))))
      throw Error(ErrorKind::unsupported, "Gemm of " + std::string(dtype_name(dtype)) + " times " + std::to_string(factor));
    return factor == 1.0 ? value : emitter.one("Mul", {value, emitter.number(factor, dtype)});
  };
  const Ref left = operand(0, "transA"), right = operand(1, "transB");
  const Ref product = scaled(emitter.one("MatMul", {left, right}), attributes.get_float("alpha", 1.0));
  if (inputs.size() < 3 || inputs[2] == Emitter::kAbsent) return {product};
  return {emitter.one("Add", {product, scaled(inputs[2], attributes.get_float("beta", 1.0))})};
}

}  // namespace walle
