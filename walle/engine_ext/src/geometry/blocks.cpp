// DepthToSpace and SpaceToDepth: between channels and blocks of pixels; CenterCropPad; and AsStrided, any view of a tensor.
#include <algorithm>
#include <cstring>

#include "geometry/transform.h"

namespace walle {

std::vector<Movement> make_pad(std::span<const Operand>, const Attributes&, int);  // pad.cpp

namespace {

std::int64_t block_of(const Dims& from, const Attributes& attributes, const char* op) {
  const std::int64_t block = attributes.get_int("blocksize", 0);
  if (from.size() != 4 || block < 1 || block >= (1 << 16))
    throw Error(ErrorKind::shape, std::string(op) + " by " + std::to_string(block) + " of " + to_string(from));
  for (const std::int64_t dim : from) element_count({dim, block, block});
  return block;
}

}  // namespace

std::vector<Movement> make_depth_to_space(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::int64_t b = block_of(from, attributes, "DepthToSpace");
  const std::string mode = attributes.get_string("mode", "DCR");
  if (mode != "DCR" && mode != "CRD")
    throw Error(ErrorKind::unsupported, "DepthToSpace mode '" + mode + "'; known are DCR and CRD");
  if (from[1] % b != 0 || from[1] / b % b != 0)
    throw Error(ErrorKind::shape, "DepthToSpace by " + std::to_string(b) + " of " + to_string(from));
  const std::int64_t n = from[0], c = from[1] / b / b, h = from[2], w = from[3];
  Movement result{operands[0].dtype, {n, c, h * b, w * b}, {}, {}};
  // Axes of the result: n, c, h, block row, w, block column.
  const std::int64_t plane = h * w, row_step = mode == "DCR" ? b * c * plane : b * plane,
                     column_step = mode == "DCR" ? c * plane : plane;
  const std::int64_t channel_step = mode == "DCR" ? plane : b * b * plane;
  const Dims size{n, c, h, b, w, b}, src{from[1] * plane, channel_step, w, row_step, 1, column_step};
  result.regions.push_back(region_of(0, size, src, 0, contiguous_strides(size), 0, from, result.shape));
  return {std::move(result)};
}

std::vector<Movement> make_space_to_depth(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::int64_t b = block_of(from, attributes, "SpaceToDepth");
  if (from[2] % b != 0 || from[3] % b != 0)
    throw Error(ErrorKind::shape, "SpaceToDepth by " + std::to_string(b) + " of " + to_string(from));
  const std::int64_t n = from[0], c = from[1], h = from[2] / b, w = from[3] / b, width = from[3];
  Movement result{operands[0].dtype, {n, c * b * b, h, w}, {}, {}};
  // Axes of the result: n, block row, block column, c, h, w.
  const Dims size{n, b, b, c, h, w}, src{c * from[2] * width, width, 1, from[2] * width, b * width, b};
  result.regions.push_back(region_of(0, size, src, 0, contiguous_strides(size), 0, from, result.shape));
  return {std::move(result)};
}

// Any view: attributes shape, strides and offset in elements. What walle.np's diagonals and Einsum's repeated labels are.
std::vector<Movement> make_as_strided(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims shape = required_numbers({}, 0, attributes, "shape"), strides = required_numbers({}, 0, attributes, "strides");
  if (shape.size() != strides.size()) throw Error(ErrorKind::shape, "AsStrided needs one stride for each dimension");
  Movement result{operands[0].dtype, shape, {}, {}};
  if (element_count(shape) > 0)
    result.regions.push_back(
        region_of(0, shape, strides, attributes.get_int("offset", 0), contiguous_strides(shape), 0, operands[0].shape, shape));
  return {std::move(result)};
}

// Crops and pads with zeros around the middle to `shape` (operand 1) along `axes`.
std::vector<Movement> make_center_crop_pad(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::size_t rank = from.size();
  const Dims asked = required_numbers(operands, 1, attributes, "shape");
  Dims axes = attributes.get_ints("axes").value_or(Dims{});
  if (!attributes.has("axes"))
    for (std::size_t i = 0; i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  if (asked.size() != axes.size())
    throw Error(ErrorKind::shape, "CenterCropPad to " + to_string(asked) + " along axes " + to_string(axes));
  // The same as a Pad whose pads may be negative: crop ceil((from - to) / 2) in front, pad floor((to - from) / 2).
  Dims pads(2 * rank, 0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = normal_axis(axes[i], rank);
    std::int64_t more;
    if (asked[i] < 0 || __builtin_sub_overflow(asked[i], from[axis], &more))
      throw Error(ErrorKind::shape, "CenterCropPad to " + to_string(asked));
    pads[axis] = more >= 0 ? more / 2 : -((-more) / 2);
    pads[axis + rank] = more - pads[axis];
  }
  return make_pad(operands.first(1), {{"pads", pads}}, 1);
}

}  // namespace walle
