// DepthToSpace and SpaceToDepth, between channels and blocks of pixels; SpaceToBatch and BatchToSpace, between the batch and
// blocks of pixels; CenterCropPad; and AsStrided, any view of a tensor.
#include <algorithm>
#include <cstring>

#include "geometry/transform/frame.h"

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

// Return the i of [0, count) with 0 <= first + i * step < dim, as [low, high).
std::pair<std::int64_t, std::int64_t> inside(std::int64_t first, std::int64_t step, std::int64_t dim, std::int64_t count) {
  const auto ceil_div = [step](std::int64_t a) { return a > 0 ? (a + step - 1) / step : 0; };
  const std::int64_t low = std::min(ceil_div(-first), count);
  return {low, std::clamp(ceil_div(dim - first), low, count)};
}

// The blocks of SpaceToBatch and BatchToSpace over axes 1 to block.size(), and the padding or cropping at the beginning and end
// of each axis.
struct Blocks {
  Dims block, before, after;
  std::int64_t count = 1;  // positions in a block

  static Blocks of(const Dims& from, const Attributes& attributes, std::string_view border, const char* op) {
    constexpr std::int64_t kMaxPlaces = 1 << 12, kLimit = std::int64_t{1} << 40;
    Blocks blocks;
    blocks.block = required_numbers({}, 0, attributes, "block_shape");
    const std::size_t axes = blocks.block.size();
    const Dims around = attributes.get_ints(border).value_or(Dims(2 * axes, 0));
    const std::string description = std::string(op) + " by " + to_string(blocks.block) + ", " + std::string(border) + " " +
                                    to_string(around) + ", of " + to_string(from);
    if (axes == 0 || axes + 1 > from.size() || around.size() != 2 * axes) throw Error(ErrorKind::shape, description);
    for (const std::int64_t one : blocks.block) {
      if (one < 1 || one > kMaxPlaces || (blocks.count *= one) > kMaxPlaces) throw Error(ErrorKind::shape, description);
    }
    for (const std::int64_t one : around)
      if (one < 0 || one > kLimit) throw Error(ErrorKind::shape, description);
    for (std::size_t i = 0; i < axes; ++i)
      if (from[i + 1] > kLimit) throw Error(ErrorKind::shape, description);
    blocks.before.assign(around.begin(), around.begin() + static_cast<std::ptrdiff_t>(axes));
    blocks.after.assign(around.begin() + static_cast<std::ptrdiff_t>(axes), around.end());
    return blocks;
  }

  // Return the coordinates of position `number` in a block.
  Dims place(std::int64_t number) const {
    Dims at(block.size());
    for (std::size_t i = block.size(); i-- > 0; number /= block[i]) at[i] = number % block[i];
    return at;
  }
};

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
  add_regions(result.regions, 0, size, src, 0, contiguous_strides(size), 0, from, result.shape);
  return {std::move(result)};
}

std::vector<Movement> make_space_to_depth(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::int64_t b = block_of(from, attributes, "SpaceToDepth");
  const std::string mode = attributes.get_string("mode", "DCR");
  if (mode != "DCR" && mode != "CRD")
    throw Error(ErrorKind::unsupported, "SpaceToDepth mode '" + mode + "'; known are DCR and CRD");
  if (from[2] % b != 0 || from[3] % b != 0)
    throw Error(ErrorKind::shape, "SpaceToDepth by " + std::to_string(b) + " of " + to_string(from));
  const std::int64_t n = from[0], c = from[1], h = from[2] / b, w = from[3] / b, width = from[3], plane = from[2] * width;
  Movement result{operands[0].dtype, {n, c * b * b, h, w}, {}, {}};
  // Axes of the result: n, block row, block column, c, h, w; in mode CRD c comes before the block.
  const bool blocks_first = mode == "DCR";
  const Dims size = blocks_first ? Dims{n, b, b, c, h, w} : Dims{n, c, b, b, h, w};
  const Dims src = blocks_first ? Dims{c * plane, width, 1, plane, b * width, b} : Dims{c * plane, plane, width, 1, b * width, b};
  add_regions(result.regions, 0, size, src, 0, contiguous_strides(size), 0, from, result.shape);
  return {std::move(result)};
}

// (n, spatial..., rest...) → (positions of a block × n, spatial / block..., rest...), the border padded with zeros by `pads` (all
// begins, then all ends). Each position of a block becomes a separate batch.
std::vector<Movement> make_space_to_batch(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Blocks blocks = Blocks::of(from, attributes, "pads", "SpaceToBatch");
  const std::size_t axes = blocks.block.size();
  Movement result{operands[0].dtype, from, {}, zero_fill(operands[0].dtype)};
  if (__builtin_mul_overflow(from[0], blocks.count, &result.shape[0]))
    throw Error(ErrorKind::shape, "SpaceToBatch leaves 63 bits");
  for (std::size_t i = 0; i < axes; ++i) {
    const std::int64_t padded = blocks.before[i] + from[i + 1] + blocks.after[i];
    if (padded % blocks.block[i] != 0)
      throw Error(ErrorKind::shape, "SpaceToBatch by " + to_string(blocks.block) + " of " + to_string(from) + ": axis " +
                                        std::to_string(i + 1) + " is padded to " + std::to_string(padded) +
                                        ", which does not divide");
    result.shape[i + 1] = padded / blocks.block[i];
  }
  if (element_count(result.shape) == 0) return {std::move(result)};
  const Dims src = contiguous_strides(from), dst = contiguous_strides(result.shape);
  for (std::int64_t number = 0; number < blocks.count; ++number) {
    const Dims place = blocks.place(number);
    Frame frame{result.shape, Dims(from.size(), 0), result.shape, src, dst, 0, number * from[0] * dst[0]};
    frame.size[0] = frame.high[0] = from[0];
    for (std::size_t i = 0; i < axes; ++i) {
      const std::int64_t first = place[i] - blocks.before[i];
      const auto [low, high] = inside(first, blocks.block[i], from[i + 1], result.shape[i + 1]);
      frame.low[i + 1] = low;
      frame.high[i + 1] = high;
      if (low == high) continue;
      frame.src_offset += (first + low * blocks.block[i]) * src[i + 1];
      if (high - low > 1) frame.src_stride[i + 1] *= blocks.block[i];
    }
    frame.add_to(result.regions, 0, Movement::kFill, from, result.shape);
  }
  return {std::move(result)};
}

// The inverse: (positions of a block × n, spatial..., rest...) → (n, spatial × block..., rest...), cropped by `crops` (all
// begins, then all ends).
std::vector<Movement> make_batch_to_space(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Blocks blocks = Blocks::of(from, attributes, "crops", "BatchToSpace");
  const std::size_t axes = blocks.block.size();
  if (from[0] % blocks.count != 0)
    throw Error(ErrorKind::shape, "BatchToSpace by " + to_string(blocks.block) + " of " + to_string(from) + ": a batch of " +
                                      std::to_string(from[0]) + " does not divide");
  Movement result{operands[0].dtype, from, {}, {}};
  const std::int64_t n = result.shape[0] = from[0] / blocks.count;
  for (std::size_t i = 0; i < axes; ++i) {
    result.shape[i + 1] = from[i + 1] * blocks.block[i] - blocks.before[i] - blocks.after[i];
    if (result.shape[i + 1] < 0)
      throw Error(ErrorKind::shape, "BatchToSpace crops more elements than " + to_string(from) + " has");
  }
  if (element_count(result.shape) == 0) return {std::move(result)};
  const Dims src = contiguous_strides(from), dst = contiguous_strides(result.shape);
  for (std::int64_t number = 0; number < blocks.count; ++number) {
    const Dims place = blocks.place(number);
    Dims size = from, dst_stride = dst;
    size[0] = n;
    std::int64_t src_offset = number * n * src[0], dst_offset = 0;
    for (std::size_t i = 0; i < axes; ++i) {
      const std::int64_t first = place[i] - blocks.before[i];
      const auto [low, high] = inside(first, blocks.block[i], result.shape[i + 1], from[i + 1]);
      size[i + 1] = high - low;
      if (low == high) continue;
      src_offset += low * src[i + 1];
      dst_offset += (first + low * blocks.block[i]) * dst[i + 1];
      if (high - low > 1) dst_stride[i + 1] *= blocks.block[i];
    }
    if (element_count(size) > 0)
      add_regions(result.regions, 0, size, src, src_offset, dst_stride, dst_offset, from, result.shape);
  }
  return {std::move(result)};
}

// Any view: attributes shape, strides and offset in elements. walle.np's diagonals and Einsum's repeated labels use it.
std::vector<Movement> make_as_strided(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims shape = required_numbers({}, 0, attributes, "shape"), strides = required_numbers({}, 0, attributes, "strides");
  const std::int64_t offset = attributes.get_int("offset", 0);
  if (shape.size() != strides.size()) throw Error(ErrorKind::shape, "AsStrided needs one stride for each dimension");
  Movement result{operands[0].dtype, shape, {}, {}};
  if (element_count(shape) > 0)
    add_regions(result.regions, 0, shape, strides, offset, contiguous_strides(shape), 0, operands[0].shape, shape);
  return {std::move(result)};
}

// Crop or zero-pad symmetrically to `shape` (operand 1) along `axes`.
std::vector<Movement> make_center_crop_pad(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::size_t rank = from.size();
  const Dims asked = required_numbers(operands, 1, attributes, "shape");
  Dims axes = attributes.get_ints("axes").value_or(Dims{});
  if (!attributes.has("axes"))
    for (std::size_t i = 0; i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  if (asked.size() != axes.size())
    throw Error(ErrorKind::shape, "CenterCropPad to " + to_string(asked) + " along axes " + to_string(axes));
  // The same as a Pad whose pads may be negative: crop ceil((from - to) / 2) at the beginning, pad floor((to - from) / 2).
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
