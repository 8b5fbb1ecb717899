// Repeat, Delete, Insert and Cycle: elements of one axis repeated, removed, or inserted.
#include <algorithm>
#include <numeric>

#include "geometry/transform/runs.h"

namespace walle {

namespace {

// The shape along one axis: of the tensor unchanged, or flattened if no axis is given.
struct Line {
  Dims from;
  std::size_t axis;

  static Line of(const Dims& shape, const Attributes& attributes) {
    if (!attributes.has("axis")) return {{element_count(shape)}, 0};
    return {shape, normal_axis(attributes.get_int("axis", 0), shape.size())};
  }
  std::int64_t dim() const { return from[axis]; }
};

// Move whole slices along the axis; `runs` fill `length` positions of the result.
std::vector<Movement> moved(DType dtype, const Line& line, std::vector<Run> runs, std::int64_t length) {
  Movement result{dtype, line.from, {}, {}};
  result.shape[line.axis] = length;
  std::vector<std::vector<Run>> all;
  for (const std::int64_t dim : line.from) all.push_back(whole_axis(dim));
  all[line.axis] = std::move(runs);
  result.regions = regions_of(0, line.from, all, result.shape);
  return {std::move(result)};
}

// Return indices from [-limit, limit) counted from the front.
Dims edited_positions(const Attributes& attributes, std::int64_t dim, std::int64_t limit, const char* op) {
  Dims indices = required_numbers({}, 0, attributes, "indices");
  for (std::int64_t& index : indices) {
    if (index < -dim || index >= limit)
      throw Error(ErrorKind::shape, std::string(op) + ": index " + std::to_string(index) + " is out of range for an axis of " +
                                        std::to_string(dim));
    if (index < 0) index += dim;
  }
  return indices;
}

}  // namespace

// Repeat each slice along `axis` `repeats` times: one number for all, or one for each slice. Without an axis the tensor is
// flattened.
std::vector<Movement> make_repeat(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Line line = Line::of(operands[0].shape, attributes);
  const Dims repeats = required_numbers({}, 0, attributes, "repeats");
  const std::int64_t dim = line.dim();
  const bool same = repeats.size() == 1;
  if (!same && static_cast<std::int64_t>(repeats.size()) != dim)
    throw Error(ErrorKind::shape,
                "Repeat by " + std::to_string(repeats.size()) + " numbers along an axis of " + std::to_string(dim));
  std::vector<Run> runs;
  std::int64_t length = 0;
  for (std::int64_t at = 0, next; at < dim; at = next) {
    const std::int64_t times = repeats[same ? 0 : static_cast<std::size_t>(at)];
    next = same ? dim : at + 1;
    while (next < dim && repeats[static_cast<std::size_t>(next)] == times) ++next;
    std::int64_t more;
    if (times < 0) throw Error(ErrorKind::shape, "Repeat by " + std::to_string(times));
    if (__builtin_mul_overflow(next - at, times, &more) || __builtin_add_overflow(length, more, &more))
      throw Error(ErrorKind::shape, "Repeat leaves 63 bits");
    if (times > 0) runs.push_back({length, at, 1, next - at, times});
    length = more;
  }
  return moved(operands[0].dtype, line, std::move(runs), length);
}

// Remove the slices along `axis` that `indices` name. Without an axis the tensor is flattened.
std::vector<Movement> make_delete(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Line line = Line::of(operands[0].shape, attributes);
  Dims gone = edited_positions(attributes, line.dim(), line.dim(), "Delete");
  std::sort(gone.begin(), gone.end());
  gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
  gone.push_back(line.dim());
  std::vector<Run> runs;
  std::int64_t length = 0, next = 0;
  for (const std::int64_t index : gone) {
    if (index > next) runs.push_back({length, next, 1, index - next, 1});
    length += index - next;
    next = index + 1;
  }
  return moved(operands[0].dtype, line, std::move(runs), length);
}

// Insert slice i of operand 1 along `axis` before slice indices[i] of operand 0 (after the last if that is its length); those
// inserted before the same slice keep their order.
std::vector<Movement> make_insert(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims &from = operands[0].shape, &values = operands[1].shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), from.size());
  const Dims indices = edited_positions(attributes, from[axis], from[axis] + 1, "Insert");
  Dims expected = from;
  expected[axis] = static_cast<std::int64_t>(indices.size());
  if (values != expected || operands[1].absent)
    throw Error(ErrorKind::shape, "Insert at " + to_string(indices) + " of " + to_string(from) + " needs " + to_string(expected) +
                                      ", not " + to_string(values));
  if (operands[1].dtype != operands[0].dtype)
    throw Error(ErrorKind::dtype, "Insert of " + std::string(dtype_name(operands[1].dtype)) + " into " +
                                      std::string(dtype_name(operands[0].dtype)) + "; cast one of them");
  Movement result{operands[0].dtype, from, {}, {}};
  if (__builtin_add_overflow(from[axis], expected[axis], &result.shape[axis]))
    throw Error(ErrorKind::shape, "Insert leaves 63 bits");
  if (element_count(result.shape) == 0) return {std::move(result)};
  const Dims src[] = {contiguous_strides(from), contiguous_strides(values)}, dst = contiguous_strides(result.shape);
  std::int64_t at = 0;  // next position of the result
  const auto add = [&](int source, std::int64_t first, std::int64_t count) {
    Dims size = from;
    size[axis] = count;
    const Dims& stride = src[source];
    if (count > 0)
      result.regions.push_back(region_of(source, size, stride, first * stride[axis], dst, at * dst[axis],
                                         operands[static_cast<std::size_t>(source)].shape, result.shape));
    at += count;
  };
  std::vector<std::size_t> order(indices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return indices[a] < indices[b]; });
  std::int64_t next = 0;
  for (std::size_t i = 0, end; i < order.size(); i = end) {
    const std::int64_t before = indices[order[i]];
    add(0, next, before - next);
    next = before;
    for (end = i + 1; end < order.size() && indices[order[end]] == before && order[end] == order[end - 1] + 1;) ++end;
    add(1, static_cast<std::int64_t>(order[i]), static_cast<std::int64_t>(end - i));
  }
  add(0, next, from[axis] - next);
  return {std::move(result)};
}

// Repeat the elements in row-major order until `shape` is full (NumPy's resize); zeros if there are none.
std::vector<Movement> make_cycle(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const Dims to = required_numbers({}, 0, attributes, "shape");
  if (std::any_of(to.begin(), to.end(), [](std::int64_t dim) { return dim < 0; }))
    throw Error(ErrorKind::shape, "Cycle to " + to_string(to));
  const std::int64_t count = element_count(from), total = element_count(to);
  Movement result{operands[0].dtype, to, {}, count == 0 ? zero_fill(operands[0].dtype) : Tensor()};
  if (total == 0) return {std::move(result)};
  if (count == 0) {
    result.regions.push_back(region_of(Movement::kFill, {total}, {0}, 0, {1}, 0, {1}, to));
    return {std::move(result)};
  }
  const std::int64_t whole = total / count * count;
  if (whole > 0) result.regions.push_back(region_of(0, {total / count, count}, {0, 1}, 0, {count, 1}, 0, from, to));
  if (whole < total) result.regions.push_back(region_of(0, {total - whole}, {1}, 0, {1}, whole, from, to));
  return {std::move(result)};
}

}  // namespace walle
