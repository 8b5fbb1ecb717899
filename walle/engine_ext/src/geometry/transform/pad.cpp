#include <algorithm>
#include <cstring>

#include "geometry/transform/frame.h"
#include "geometry/transform/runs.h"

namespace walle {

namespace {

// Return the source of position `at` of an axis of `dim` elements, also outside of it.
std::int64_t source_of(const std::string& mode, std::int64_t at, std::int64_t dim) {
  if (mode == "edge") return std::clamp<std::int64_t>(at, 0, dim - 1);
  // Reflection at the border repeats its element in mode symmetric, and skips it in mode reflect.
  const std::int64_t twice = mode == "symmetric" ? 1 : 0;
  const std::int64_t period = mode == "wrap" ? dim : std::max<std::int64_t>(2 * (dim - 1 + twice), 1);
  const std::int64_t rest = (at % period + period) % period;
  return rest < dim ? rest : period - rest - twice;
}

// Return the runs of one axis: those of the borders, and between them the axis itself.
std::vector<Run> padded_axis(const std::string& mode, std::int64_t dim, std::int64_t before, std::int64_t after) {
  constexpr std::size_t kMaxRuns = 1 << 16;
  std::vector<Run> runs;
  const auto add = [&](std::int64_t begin, std::int64_t end) {  // positions of the result
    if (begin >= end) return;
    Dims indices;
    for (std::int64_t at = begin; at < end; ++at) indices.push_back(source_of(mode, at - before, dim));
    const auto found = runs_of(indices, kMaxRuns);
    if (!found) throw Error(ErrorKind::shape, "Pad repeats an axis of " + std::to_string(dim) + " too often");
    for (Run run : *found) {
      run.begin += begin;
      runs.push_back(run);
    }
  };
  const std::int64_t first = std::max<std::int64_t>(before, 0), skipped = first - before;
  const std::int64_t kept = std::max<std::int64_t>(dim - skipped - std::max<std::int64_t>(-after, 0), 0);
  add(0, std::min(first, dim + before + after));
  if (kept > 0) runs.push_back({first, skipped, 1, kept, 1});
  add(first + kept, dim + before + after);
  return runs;
}

// Modes reflect, symmetric, edge and wrap: each axis is a few runs of its elements.
std::vector<Movement> pad_by_elements(const Operand& operand, const std::string& mode, const Dims& before, const Dims& after) {
  const Dims& from = operand.shape;
  Movement result{operand.dtype, from, {}, {}};
  std::vector<std::vector<Run>> runs;
  for (std::size_t axis = 0; axis < from.size(); ++axis) {
    const std::int64_t size = from[axis] + before[axis] + after[axis];
    if (size < 0) throw Error(ErrorKind::shape, "Pad leaves nothing of " + to_string(from));
    if (from[axis] == 0 && size > 0)
      throw Error(ErrorKind::shape, "Pad mode '" + mode + "' has no element to repeat in " + to_string(from));
    result.shape[axis] = size;
    if (before[axis] == 0 && after[axis] == 0) {
      runs.push_back(whole_axis(size));
      continue;
    }
    if (static_cast<std::size_t>(size) > storage_limit() / sizeof(std::int64_t))
      throw Error(ErrorKind::shape,
                  "Pad of " + to_string(from) + " to " + std::to_string(size) + " needs more memory than the machine has");
    runs.push_back(padded_axis(mode, from[axis], before[axis], after[axis]));
  }
  result.regions = regions_of(0, from, runs, result.shape);
  return {std::move(result)};
}

}  // namespace

// ONNX Pad, and NumPy's mode symmetric. Mode "constant": pads (all begins, then all ends; negative ones crop), a fill value, axes
// as operands 1 to 3 or pads and value as attributes. The border is cut into at most two boxes per axis, read from one fill
// element.
std::vector<Movement> make_pad(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::size_t rank = from.size();
  const auto mode = attributes.get_string("mode", "constant");
  if (mode != "constant" && mode != "reflect" && mode != "symmetric" && mode != "edge" && mode != "wrap")
    throw Error(ErrorKind::unsupported, "Pad mode '" + mode + "'; known are constant, reflect, symmetric, edge and wrap");
  const Dims pads = required_numbers(operands, 1, attributes, "pads");
  Dims axes(rank);
  for (std::size_t i = 0; i < rank; ++i) axes[i] = static_cast<std::int64_t>(i);
  if (auto given = whole_numbers(operands, 3, attributes, "axes")) axes = *std::move(given);
  if (pads.size() != 2 * axes.size())
    throw Error(ErrorKind::shape,
                "Pad needs two pads per axis, not " + std::to_string(pads.size()) + " for " + std::to_string(axes.size()));

  Movement result{operands[0].dtype, from, {}, {}};
  Dims first(rank, 0), last(rank, 0);
  Dims begin(rank, 0), start(rank, 0), size = from;  // kept box: its place in the output, its place in the input, its size
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = normal_axis(axes[i], rank);
    const std::int64_t before = pads[i], after = pads[i + axes.size()];
    constexpr std::int64_t kLimit = std::int64_t{1} << 40;
    if (before < -kLimit || before > kLimit || after < -kLimit || after > kLimit || from[axis] > kLimit)
      throw Error(ErrorKind::shape, "Pad by " + to_string(pads) + " is too large");
    first[axis] = before;
    last[axis] = after;
    if (mode != "constant") continue;
    result.shape[axis] = from[axis] + before + after;
    begin[axis] = std::max<std::int64_t>(before, 0);
    start[axis] = std::max<std::int64_t>(-before, 0);
    size[axis] = from[axis] - start[axis] - std::max<std::int64_t>(-after, 0);
    if (result.shape[axis] < 0)
      throw Error(ErrorKind::shape, "Pad by " + to_string(pads) + " leaves nothing of " + to_string(from));
    if (size[axis] < 0) {  // cropped beyond the other end, into its border
      size[axis] = 0;
      begin[axis] = std::min(begin[axis], result.shape[axis]);
    }
  }
  if (mode != "constant") return pad_by_elements(operands[0], mode, first, last);
  int filler = Movement::kFill;  // source of the border
  result.fill = zero_fill(result.dtype);
  if (operands.size() > 2 && !operands[2].absent) {
    if (element_count(operands[2].shape) != 1 || operands[2].dtype != result.dtype)
      throw Error(ErrorKind::dtype, "the fill value of Pad must be one " + std::string(dtype_name(result.dtype)));
    filler = 2;
    result.fill = {};
  } else if (const double value = attributes.get_float("value", 0.0); value != 0.0) {
    if (result.dtype != DType::f32)
      throw Error(ErrorKind::dtype, "attribute 'value' of Pad is for float32; give the value as an input");
    const auto number = static_cast<float>(value);
    std::memcpy(result.fill.raw(), &number, sizeof(number));
  }

  Frame frame{result.shape, begin, begin, contiguous_strides(from), contiguous_strides(result.shape), 0, 0};
  for (std::size_t i = 0; i < rank; ++i) {
    frame.high[i] += size[i];
    frame.src_offset += start[i] * frame.src_stride[i];
  }
  frame.add_to(result.regions, 0, filler, from, result.shape);
  return {std::move(result)};
}

}  // namespace walle
