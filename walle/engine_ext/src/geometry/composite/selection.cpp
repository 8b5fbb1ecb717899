// Operators that select elements: Hardmax and TopK.
#include <algorithm>

#include "geometry/composite/composite.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

// Return the integers of a tensor of one element or one dimension, in any dtype.
Dims numbers(Emitter& emitter, Ref tensor, const std::string& what) {
  const Tensor value = emitter.value(emitter.one("Cast", {tensor}, {{"to", std::string("int64")}}), what);
  const Operand operand{value.dtype(), value.shape(), &value, false};
  return required_numbers({&operand, 1}, 0, {}, what);
}

// Return 0, 1, ... along one axis of `rank`.
Ref axis_positions(Emitter& emitter, std::int64_t count, std::size_t axis, std::size_t rank) {
  Dims shape(rank, 1);
  shape[axis] = count;
  Tensor tensor = Tensor::empty(DType::i64, std::move(shape));
  for (std::int64_t i = 0; i < count; ++i) tensor.data<std::int64_t>()[i] = i;
  return emitter.constant(std::move(tensor));
}

}  // namespace

// Return 1 at the first maximum along the axis, else 0.
std::vector<Ref> decompose_hardmax(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  const Operand x = emitter.operand(inputs[0]);
  const std::string dtype(dtype_name(x.dtype));
  const std::size_t rank = x.shape.size(), axis = normal_axis(attributes.get_int("axis", -1), rank);
  const std::int64_t length = x.shape[axis];
  if (element_count(x.shape) == 0) return {emitter.one("Identity", {inputs[0]})};
  const Ref best = emitter.one("ArgMax", {inputs[0]}, {{"axis", static_cast<std::int64_t>(axis)}, {"keepdims", std::int64_t{1}}});
  return {emitter.one("Cast", {emitter.one("Equal", {axis_positions(emitter, length, axis, rank), best})}, {{"to", dtype}})};
}

// Return the k greatest (or least) elements along the axis, and their indices.
std::vector<Ref> decompose_top_k(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  const Dims k = numbers(emitter, inputs[1], "'k'");
  if (k.size() != 1) throw Error(ErrorKind::shape, "'k' must be one number");
  Attributes with_k = attributes;
  with_k.set("k", k[0]);
  std::vector<Ref> results{emitter.one("TopValues", {inputs[0]}, with_k)};
  if (outputs > 1) results.push_back(emitter.one("TopIndices", {inputs[0]}, with_k));
  return results;
}

}  // namespace walle
