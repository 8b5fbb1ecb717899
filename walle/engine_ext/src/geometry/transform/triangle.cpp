// Trilu and ReverseSequence: movements with one region for each row, or for each batch.
#include <algorithm>
#include <cstring>

#include "geometry/transform/transform.h"

namespace walle {

// Keep the upper or lower triangle from diagonal k (operand 1) on; zeros elsewhere.
std::vector<Movement> make_trilu(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  if (from.size() < 2) throw Error(ErrorKind::shape, "Trilu of " + to_string(from) + "; at least two dimensions are needed");
  const bool upper = attributes.get_int("upper", 1) != 0;
  const Dims given = whole_numbers(operands, 1, Attributes(), "k").value_or(Dims{0});
  if (given.size() != 1) throw Error(ErrorKind::shape, "k of Trilu must be one number");
  const std::int64_t rows = from[from.size() - 2], columns = from.back(), k = std::clamp(given[0], -rows - 1, columns + 1);
  Movement result{operands[0].dtype, from, {}, zero_fill(operands[0].dtype)};
  if (element_count(from) == 0) return {std::move(result)};
  const std::int64_t batch = element_count(Dims(from.begin(), from.end() - 2));
  // Add columns [low, high) of `count` rows from `row` on.
  const auto add = [&](int source, std::int64_t row, std::int64_t count, std::int64_t low, std::int64_t high) {
    if (count <= 0 || low >= high) return;
    const Dims size{batch, count, high - low}, strides{rows * columns, columns, 1};
    const std::int64_t offset = row * columns + low;
    if (source == 0)
      result.regions.push_back(region_of(0, size, strides, offset, strides, offset, from, from));
    else
      result.regions.push_back(region_of(Movement::kFill, size, {0, 0, 0}, 0, strides, offset, {1}, from));
  };
  // The first column of the upper part in a row.
  const auto edge = [&](std::int64_t row) { return std::clamp<std::int64_t>(row + k + (upper ? 0 : 1), 0, columns); };
  for (std::int64_t row = 0, next; row < rows; row = next) {
    next = row + 1;
    while (next < rows && edge(next) == edge(row)) ++next;
    add(upper ? Movement::kFill : 0, row, next - row, 0, edge(row));
    add(upper ? 0 : Movement::kFill, row, next - row, edge(row), columns);
  }
  return {std::move(result)};
}

// Reverse the first sequence_lens[b] (operand 1) steps of every batch b, the others unchanged.
std::vector<Movement> make_reverse_sequence(std::span<const Operand> operands, const Attributes& attributes, int) {
  const Dims& from = operands[0].shape;
  const std::size_t batch = normal_axis(attributes.get_int("batch_axis", 1), from.size());
  const std::size_t time = normal_axis(attributes.get_int("time_axis", 0), from.size());
  const Dims lengths = required_numbers(operands, 1, Attributes(), "sequence_lens");
  if (batch == time || static_cast<std::int64_t>(lengths.size()) != from[batch])
    throw Error(ErrorKind::shape, "ReverseSequence of " + to_string(from) + " needs one length for each batch");
  Movement result{operands[0].dtype, from, {}, {}};
  const Dims strides = contiguous_strides(from);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > from[time])
      throw Error(ErrorKind::shape, "ReverseSequence: a length of " + std::to_string(lengths[i]) + " in " + to_string(from));
    const std::int64_t base = static_cast<std::int64_t>(i) * strides[batch];
    Dims size = from, backwards = strides;
    size[batch] = 1;
    size[time] = lengths[i];
    backwards[time] = -strides[time];
    if (element_count(size) > 0)
      result.regions.push_back(region_of(0, size, backwards, base + (lengths[i] - 1) * strides[time], strides, base, from, from));
    size[time] = from[time] - lengths[i];
    const std::int64_t rest = base + lengths[i] * strides[time];
    if (element_count(size) > 0) result.regions.push_back(region_of(0, size, strides, rest, strides, rest, from, from));
  }
  return {std::move(result)};
}

}  // namespace walle
