// Flip, Roll and Rot90: all elements reordered along their axes.
#include <algorithm>

#include "geometry/transform/runs.h"

namespace walle {

namespace {

// Return the axes that an operator names, each once, or all of them if it names none.
std::vector<std::size_t> chosen_axes(const Attributes& attributes, std::size_t rank, const char* op) {
  std::vector<std::size_t> axes;
  if (const auto given = attributes.get_ints("axes")) {
    for (const std::int64_t axis : *given) {
      const std::size_t at = normal_axis(axis, rank);
      if (std::find(axes.begin(), axes.end(), at) != axes.end())
        throw Error(ErrorKind::shape, std::string(op) + " names axis " + std::to_string(axis) + " twice");
      axes.push_back(at);
    }
  } else {
    for (std::size_t i = 0; i < rank; ++i) axes.push_back(i);
  }
  return axes;
}

}  // namespace

// Reverse along `axes`; along all if they are absent.
std::vector<Movement> make_flip(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  Movement result{operands[0].dtype, from, {}, {}};
  const auto axes = chosen_axes(attributes, from.size(), "Flip");
  if (element_count(from) == 0) return {std::move(result)};
  const Dims strides = contiguous_strides(from);
  Dims backwards = strides;
  std::int64_t offset = 0;
  for (const std::size_t axis : axes) {
    offset += (from[axis] - 1) * strides[axis];
    backwards[axis] = -strides[axis];
  }
  add_regions(result.regions, 0, from, backwards, offset, strides, 0, from, from);
  return {std::move(result)};
}

// Shift every element by `shifts` along `axes`, wrapping around at the end; one shift for each axis, or one for all. Without axes
// the tensor is rolled as if it were flat.
std::vector<Movement> make_roll(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& whole = operands[0].shape;
  Movement result{operands[0].dtype, whole, {}, {}};
  const bool flat = !attributes.has("axes");
  const Dims from = flat ? Dims{element_count(whole)} : whole;
  const auto axes = chosen_axes(attributes, from.size(), "Roll");
  Dims shifts = required_numbers({}, 0, attributes, "shifts");
  if (shifts.size() == 1) shifts.resize(axes.size(), shifts[0]);
  if (shifts.size() != axes.size())
    throw Error(ErrorKind::shape, "Roll by " + to_string(shifts) + " along " + std::to_string(axes.size()) + " axes");
  std::vector<std::vector<Run>> runs;
  for (const std::int64_t dim : from) runs.push_back(whole_axis(dim));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t dim = from[axes[i]], shift = dim == 0 ? 0 : (shifts[i] % dim + dim) % dim;
    if (shift != 0) runs[axes[i]] = {{0, dim - shift, 1, shift, 1}, {shift, 0, 1, dim - shift, 1}};
  }
  result.regions = regions_of(0, from, runs, from);
  return {std::move(result)};
}

// Rotate by `k` quarter turns from the first of two `axes` (default 0 and 1) towards the second.
std::vector<Movement> make_rot90(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Dims given = attributes.get_ints("axes").value_or(Dims{0, 1});
  if (given.size() != 2) throw Error(ErrorKind::shape, "Rot90 needs two axes, not " + to_string(given));
  const std::size_t first = normal_axis(given[0], from.size()), second = normal_axis(given[1], from.size());
  if (first == second) throw Error(ErrorKind::shape, "Rot90 needs two axes, not " + to_string(given));
  const std::int64_t turns = (attributes.get_int("k", 1) % 4 + 4) % 4;
  Movement result{operands[0].dtype, from, {}, {}};
  if (turns % 2 != 0) std::swap(result.shape[first], result.shape[second]);
  if (element_count(from) == 0) return {std::move(result)};
  const Dims strides = contiguous_strides(from);
  Dims src = strides;
  std::int64_t offset = 0;
  if (turns % 2 != 0) std::swap(src[first], src[second]);
  // One turn reads the second axis backwards, three the first, two both.
  if (turns == 1 || turns == 2) {
    offset += (from[second] - 1) * strides[second];
    src[turns == 1 ? first : second] *= -1;
  }
  if (turns == 3 || turns == 2) {
    offset += (from[first] - 1) * strides[first];
    src[turns == 3 ? second : first] *= -1;
  }
  add_regions(result.regions, 0, result.shape, src, offset, contiguous_strides(result.shape), 0, from, result.shape);
  return {std::move(result)};
}

}  // namespace walle
