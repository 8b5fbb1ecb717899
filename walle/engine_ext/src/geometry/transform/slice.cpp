#include <algorithm>

#include "geometry/transform/transform.h"

namespace walle {

// ONNX Slice: starts, ends, axes, steps as operands 1 to 4 or attributes; out-of-range bounds are clamped as in Python.
std::vector<Movement> make_slice(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Dims starts = required_numbers(operands, 1, attributes, "starts");
  const Dims ends = required_numbers(operands, 2, attributes, "ends");
  Dims every(starts.size());
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::int64_t>(i);
  const Dims axes = whole_numbers(operands, 3, attributes, "axes").value_or(every);
  const Dims steps = whole_numbers(operands, 4, attributes, "steps").value_or(Dims(starts.size(), 1));
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size())
    throw Error(ErrorKind::shape, "Slice needs as many ends, axes and steps as starts");
  Dims shape = from, src_stride = contiguous_strides(from);
  std::vector<bool> seen(from.size(), false);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::size_t axis = normal_axis(axes[i], from.size());
    if (seen[axis]) throw Error(ErrorKind::shape, "Slice names axis " + std::to_string(axes[i]) + " twice");
    seen[axis] = true;
    const std::int64_t dim = from[axis];
    // Steps beyond the dimension all select one element; the clamp keeps their arithmetic within 63 bits.
    const std::int64_t step = std::clamp(steps[i], -dim - 1, dim + 1);
    if (step == 0) throw Error(ErrorKind::shape, "Slice has a step of 0");
    const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? dim : dim - 1;
    const std::int64_t start = std::clamp(starts[i] < 0 ? starts[i] + dim : starts[i], low, high);
    const std::int64_t end = std::clamp(ends[i] < 0 ? std::max(ends[i], -dim - 1) + dim : ends[i], low, high);
    const std::int64_t span = step > 0 ? end - start : start - end;
    shape[axis] = span <= 0 ? 0 : (span + std::abs(step) - 1) / std::abs(step);
    offset += start * src_stride[axis];
    src_stride[axis] *= step;
  }
  Movement result{operands[0].dtype, shape, {}, {}};
  add_regions(result.regions, 0, shape, src_stride, offset, contiguous_strides(shape), 0, from, shape);
  return {std::move(result)};
}

// ONNX Split: parts from operand 1 or attribute `split`, or equal ones (the last may be smaller). `num_outputs` must equal the
// number of outputs.
std::vector<Movement> make_split(std::span<const Operand> operands, const Attributes& attributes, int outputs) {
  const Dims& from = operands[0].shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), from.size());
  if (const std::int64_t count = attributes.get_int("num_outputs", outputs); count != outputs)
    throw Error(ErrorKind::model,
                "attribute 'num_outputs' is " + std::to_string(count) + " with " + std::to_string(outputs) + " outputs");
  Dims parts(static_cast<std::size_t>(outputs), (from[axis] + outputs - 1) / outputs);
  if (auto given = whole_numbers(operands, 1, attributes, "split")) {
    parts = *std::move(given);
  } else {
    std::int64_t left = from[axis];
    for (std::int64_t& part : parts) left -= part = std::min(part, left);
  }
  if (parts.size() != static_cast<std::size_t>(outputs) || element_count(parts) < 0)
    throw Error(ErrorKind::shape, "Split into " + to_string(parts) + " with " + std::to_string(outputs) + " outputs");
  std::int64_t total = 0;
  for (const std::int64_t part : parts)
    if (__builtin_add_overflow(total, part, &total)) throw Error(ErrorKind::shape, "Split parts leave 63 bits");
  if (total != from[axis])
    throw Error(ErrorKind::shape,
                "Split of axis " + std::to_string(axis) + " of " + to_string(from) + " into " + to_string(parts));
  const Dims strides = contiguous_strides(from);
  std::vector<Movement> results;
  std::int64_t at = 0;
  for (const std::int64_t part : parts) {
    Movement result{operands[0].dtype, from, {}, {}};
    result.shape[axis] = part;
    add_regions(result.regions, 0, result.shape, strides, at * strides[axis], contiguous_strides(result.shape), 0, from,
                result.shape);
    results.push_back(std::move(result));
    at += part;
  }
  return results;
}

// Split into slices along `axis` (default 0), each one an output without that axis.
std::vector<Movement> make_unstack(std::span<const Operand> operands, const Attributes& attributes, int outputs) {
  const Dims& from = operands[0].shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), from.size());
  if (from[axis] != outputs)
    throw Error(ErrorKind::shape, "Unstack of axis " + std::to_string(axis) + " of " + to_string(from) + " into " +
                                      std::to_string(outputs) + " outputs");
  const auto without = [axis](Dims dims) {
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
    return dims;
  };
  const Dims strides = contiguous_strides(from), shape = without(from), src = without(strides);
  std::vector<Movement> results;
  for (std::int64_t at = 0; at < outputs; ++at) {
    Movement result{operands[0].dtype, shape, {}, {}};
    add_regions(result.regions, 0, shape, src, at * strides[axis], contiguous_strides(shape), 0, from, shape);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace walle
