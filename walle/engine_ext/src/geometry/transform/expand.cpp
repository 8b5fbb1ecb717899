#include "geometry/transform/transform.h"

namespace walle {

// ONNX Expand: broadcasting in both directions.
std::vector<Movement> make_expand(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Dims shape = broadcast_shape(from, required_numbers(operands, 1, attributes, "shape"));
  Movement result{operands[0].dtype, shape, {}, {}};
  const Dims src_stride = broadcast_strides(from, contiguous_strides(from), shape);
  add_regions(result.regions, 0, shape, src_stride, 0, contiguous_strides(shape), 0, from, shape);
  return {std::move(result)};
}

std::vector<Movement> make_tile(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Dims repeats = required_numbers(operands, 1, attributes, "repeats");
  if (repeats.size() != from.size())
    throw Error(ErrorKind::shape, "Tile of " + to_string(from) + " by " + to_string(repeats) + "; give one repeat per axis");
  element_count(repeats);
  Dims shape(from.size());
  for (std::size_t i = 0; i < from.size(); ++i)
    if (__builtin_mul_overflow(from[i], repeats[i], &shape[i])) throw Error(ErrorKind::shape, "Tile leaves 63 bits");
  element_count(shape);
  // Two axes for each of the tensor's: the repetition, and the position.
  const Dims src = contiguous_strides(from), dst = contiguous_strides(shape);
  Dims size, src_stride, dst_stride;
  for (std::size_t i = 0; i < from.size(); ++i) {
    size.insert(size.end(), {repeats[i], from[i]});
    src_stride.insert(src_stride.end(), {0, src[i]});
    dst_stride.insert(dst_stride.end(), {from[i] * dst[i], dst[i]});
  }
  Movement result{operands[0].dtype, shape, {}, {}};
  add_regions(result.regions, 0, size, src_stride, 0, dst_stride, 0, from, shape);
  return {std::move(result)};
}

// Broadcast the values of each operand (one dimension, or a number) over the grid that the operands span; `indexing` is "xy" (the
// first two axes of the grid are swapped) or "ij".
std::vector<Movement> make_meshgrid(std::span<const Operand> operands, const Attributes& attributes, int outputs) {
  const std::string indexing = attributes.get_string("indexing", "xy");
  if (indexing != "xy" && indexing != "ij")
    throw Error(ErrorKind::model, "Meshgrid indexing '" + indexing + "'; known are xy and ij");
  if (static_cast<std::size_t>(outputs) != operands.size())
    throw Error(ErrorKind::model,
                "Meshgrid of " + std::to_string(operands.size()) + " inputs with " + std::to_string(outputs) + " outputs");
  const auto axis_of = [&](std::size_t input) {
    return indexing == "xy" && input < 2 && operands.size() > 1 ? 1 - input : input;
  };
  Dims shape(operands.size(), 1);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].absent || operands[i].shape.size() > 1)
      throw Error(ErrorKind::shape, "Meshgrid of " + to_string(operands[i].shape) + "; one dimension is needed");
    shape[axis_of(i)] = element_count(operands[i].shape);
  }
  std::vector<Movement> results;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    Movement result{operands[i].dtype, shape, {}, {}};
    Dims src(operands.size(), 0);
    src[axis_of(i)] = 1;
    if (element_count(shape) > 0)
      add_regions(result.regions, static_cast<int>(i), shape, src, 0, contiguous_strides(shape), 0, operands[i].shape, shape);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace walle
