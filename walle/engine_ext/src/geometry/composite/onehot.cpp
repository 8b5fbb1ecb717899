// OneHot.
#include <cstring>

#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {
using Ref = Emitter::Ref;

}  // namespace

// values[1] where the position along the new axis equals the index, values[0] elsewhere; negative indices count from depth,
// others out of range match no position.
std::vector<Ref> decompose_one_hot(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int) {
  Ref depth_number = inputs[1];
  if (emitter.operand(depth_number).dtype != DType::i64)
    depth_number = emitter.one("Cast", {depth_number}, {{"to", std::string("int64")}});
  const Tensor depth_value = emitter.value(depth_number, "'depth'");
  if (depth_value.size() != 1) throw Error(ErrorKind::shape, "the depth of OneHot must be one number");
  const std::int64_t depth = *depth_value.data<std::int64_t>();
  if (depth < 0 || static_cast<std::size_t>(depth) > storage_limit() / sizeof(std::int64_t))
    throw Error(ErrorKind::shape,
                "OneHot with a depth of " + std::to_string(depth) + ", which must be 0 or more and fit in memory");
  if (emitter.operand(inputs[2]).shape != Dims{2}) throw Error(ErrorKind::shape, "the values of OneHot must be two");
  Ref indices = inputs[0];
  if (emitter.operand(indices).dtype != DType::i64) indices = emitter.one("Cast", {indices}, {{"to", std::string("int64")}});
  const Ref size = whole(emitter, {depth}, {});
  indices = emitter.one("Where",
                        {emitter.one("Less", {indices, whole(emitter, {0}, {})}), emitter.one("Add", {indices, size}), indices});
  const std::size_t rank = emitter.operand(indices).shape.size();
  const std::size_t axis = normal_axis(attributes.get_int("axis", -1), rank + 1);
  Dims along(rank + 1, 1);
  along[axis] = depth;
  Tensor count = Tensor::empty(DType::i64, along);
  for (std::int64_t i = 0; i < depth; ++i) count.data<std::int64_t>()[i] = i;
  const Ref hot = emitter.one("Equal", {emitter.one("Unsqueeze", {indices}, {{"axes", Dims{static_cast<std::int64_t>(axis)}}}),
                                        emitter.constant(std::move(count))});
  const auto value = [&](std::int64_t at) {
    return emitter.one("Squeeze", {emitter.one("Slice", {inputs[2]}, {{"starts", Dims{at}}, {"ends", Dims{at + 1}}})},
                       {{"axes", Dims{0}}});
  };
  return {emitter.one("Where", {hot, value(1), value(0)})};
}

}  // namespace walle
