#include "geometry/transform.h"

namespace walle {

// ONNX Gather along an axis with constant indices (in walle.np every index is one): runs of evenly spaced indices become one
// region each.
std::vector<Movement> make_gather(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), from.size());
  Operand flat = operands[1];
  Tensor view;
  if (flat.constant != nullptr && flat.constant->ndim() != 1) {
    if (!flat.constant->contiguous()) throw Error(ErrorKind::shape, "the indices of Gather must be contiguous");
    view = Tensor(flat.constant->storage(), flat.dtype, {flat.constant->size()}, {1}, flat.constant->offset());
    flat.constant = &view;
  }
  Dims indices = required_numbers(std::span(&flat, 1), 0, attributes, "indices");
  const std::int64_t dim = from[axis];
  for (std::int64_t& index : indices) {
    if (index < -dim || index >= dim)
      throw Error(ErrorKind::shape, "index " + std::to_string(index) + " is out of range for axis " + std::to_string(axis) +
                                        " of " + to_string(from));
    if (index < 0) index += dim;
  }
  Movement result{operands[0].dtype, Dims(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(axis)), {}, {}};
  result.shape.insert(result.shape.end(), operands[1].shape.begin(), operands[1].shape.end());
  result.shape.insert(result.shape.end(), from.begin() + static_cast<std::ptrdiff_t>(axis) + 1, from.end());
  element_count(result.shape);
  // The indices as one axis: outer x indices x inner.
  Dims size = from, shape = from, src = contiguous_strides(from);
  shape[axis] = static_cast<std::int64_t>(indices.size());
  const Dims dst = contiguous_strides(shape);
  for (std::size_t first = 0, next; first < indices.size() && element_count(shape) > 0; first = next) {
    next = first + 1;
    const std::int64_t step = next < indices.size() ? indices[next] - indices[first] : 0;
    while (next < indices.size() && indices[next] - indices[next - 1] == step) ++next;
    size[axis] = static_cast<std::int64_t>(next - first);
    Dims src_stride = src;
    src_stride[axis] = step * src[axis];
    result.regions.push_back(region_of(0, size, src_stride, indices[first] * src[axis], dst,
                                       static_cast<std::int64_t>(first) * dst[axis], from, shape));
  }
  return {std::move(result)};
}

}  // namespace walle
