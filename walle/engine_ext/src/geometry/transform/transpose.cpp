#include "geometry/transform/transform.h"

namespace walle {

std::vector<Movement> make_transpose(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::size_t rank = from.size();
  Dims order(rank);
  for (std::size_t i = 0; i < rank; ++i) order[i] = static_cast<std::int64_t>(rank - 1 - i);
  if (auto perm = attributes.get_ints("perm")) order = *std::move(perm);
  if (order.size() != rank)
    throw Error(ErrorKind::shape, "Transpose by " + to_string(order) + " of a tensor of shape " + to_string(from));
  const Dims strides = contiguous_strides(from);
  Dims shape(rank), src_stride(rank);
  std::vector<bool> seen(rank, false);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::size_t axis = normal_axis(order[i], rank);
    if (seen[axis]) throw Error(ErrorKind::shape, "Transpose by " + to_string(order) + " names an axis twice");
    seen[axis] = true;
    shape[i] = from[axis];
    src_stride[i] = strides[axis];
  }
  Movement result{operands[0].dtype, shape, {}, {}};
  add_regions(result.regions, 0, shape, src_stride, 0, contiguous_strides(shape), 0, from, shape);
  return {std::move(result)};
}

}  // namespace walle
