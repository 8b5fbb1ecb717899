// Composition of a reader with one writer. The writer's destination strides define a mixed-radix number system: an address of the
// intermediate tensor has one digit per axis of the writer, and the writer covers a box of digits. Each axis of the reader is
// split into axes that step within one digit each; then the part of the reader inside the box is a box of coordinates again, and
// each step of a digit is a step of the writer's source stride.
#include "geometry/merge.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace walle {

namespace {

using std::int64_t;

// One digit of the address: its stride, its radix (0: the topmost digit, unbounded), the range that the writer covers, and the
// writer's source stride for one step.
struct Digit {
  int64_t stride, radix, low, size, source_stride;
};

// An axis of the reader that changes one digit by `step` (no digit where step is 0).
struct Axis {
  int64_t size, src_stride, dst_stride;
  std::size_t digit = 0;
  int64_t step = 0;
};

// Return the writer's number system in ascending strides; nothing if its strides do not divide each other or its box would carry.
std::optional<std::vector<Digit>> digits_of(const Region& writer) {
  std::vector<Digit> digits;
  int64_t rest = writer.dst.offset;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(writer.axes); ++axis)
    digits.push_back({writer.dst.stride[axis], 0, 0, writer.size[axis], writer.src.stride[axis]});
  if (digits.empty() || digits.back().stride != 1) digits.push_back({1, 0, 0, 1, 0});
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits[i - 1].stride % digits[i].stride != 0 || digits[i - 1].stride == digits[i].stride)) return std::nullopt;
    digits[i].radix = i > 0 ? digits[i - 1].stride / digits[i].stride : 0;
    digits[i].low = rest / digits[i].stride;
    rest %= digits[i].stride;
    if (digits[i].radix != 0 && digits[i].low + digits[i].size > digits[i].radix) return std::nullopt;
  }
  std::reverse(digits.begin(), digits.end());
  return digits;
}

// Split one axis (positive source stride) into axes of one digit each, innermost first; return false if it crosses carries
// unevenly.
bool cut(const Axis& whole, const std::vector<Digit>& digits, const std::vector<int64_t>& start, std::vector<Axis>& out) {
  Axis left = whole;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const Digit& digit = digits[i];
    if (left.size == 1) return true;
    if (digit.radix != 0 && left.src_stride >= digit.stride * digit.radix) continue;
    if (left.src_stride % digit.stride != 0) return false;
    Axis axis = left;
    axis.digit = i;
    axis.step = left.src_stride / digit.stride;
    if (digit.radix == 0 || start[i] + (left.size - 1) * axis.step < digit.radix) {
      out.push_back(axis);
      return true;
    }
    // It carries: the digit must return to its start after an integer number of steps.
    if (digit.radix % axis.step != 0 || start[i] >= axis.step) return false;
    const int64_t turn = digit.radix / axis.step;
    if (left.size % turn != 0) return false;
    axis.size = turn;
    if (turn > 1) out.push_back(axis);
    left = {left.size / turn, left.src_stride * turn, left.dst_stride * turn};
  }
  return left.size == 1;
}

struct Piece {
  std::optional<Region> region;  // empty: the reader reads nothing of this writer
};

// Return the part of the reader that this writer wrote; nothing if it is not a box.
std::optional<Piece> compose_one(const Region& reader, const Region& writer) {
  const auto digits = digits_of(writer);
  if (!digits) return std::nullopt;

  // Make every axis ascend in the source.
  std::vector<Axis> whole;
  int64_t src_offset = reader.src.offset, dst_offset = reader.dst.offset;
  for (std::size_t i = 0; i < static_cast<std::size_t>(reader.axes); ++i) {
    Axis axis{reader.size[i], reader.src.stride[i], reader.dst.stride[i]};
    if (axis.src_stride < 0) {
      src_offset += (axis.size - 1) * axis.src_stride;
      dst_offset += (axis.size - 1) * axis.dst_stride;
      axis.src_stride = -axis.src_stride;
      axis.dst_stride = -axis.dst_stride;
    }
    whole.push_back(axis);
  }
  std::vector<int64_t> start(digits->size());
  int64_t rest = src_offset;
  for (std::size_t i = digits->size(); i-- > 0;) {
    start[i] = rest / (*digits)[i].stride;
    rest %= (*digits)[i].stride;
  }
  std::vector<Axis> axes;
  for (const Axis& axis : whole) {
    if (axis.src_stride == 0)
      axes.push_back(axis);
    else if (!cut(axis, *digits, start, axes))
      return std::nullopt;
  }

  // No digit may carry in any combination of the axes; then the digits change independently.
  for (std::size_t i = 0; i < digits->size(); ++i) {
    const Digit& digit = (*digits)[i];
    int64_t high = start[i], movers = 0;
    Axis* mover = nullptr;
    for (Axis& axis : axes) {
      if (axis.step == 0 || axis.digit != i) continue;
      high += (axis.size - 1) * axis.step;
      ++movers;
      mover = &axis;
    }
    if (digit.radix != 0 && high >= digit.radix) return std::nullopt;
    const int64_t low = digit.low, end = digit.low + digit.size;
    if (high < low || start[i] >= end) return Piece{};
    if (start[i] >= low && high < end) continue;
    if (movers != 1) return std::nullopt;
    // Keep the coordinates whose digit is in [low, end).
    const int64_t first = start[i] >= low ? 0 : (low - start[i] + mover->step - 1) / mover->step;
    const int64_t last = std::min(mover->size - 1, (end - 1 - start[i]) / mover->step);
    if (first > last) return Piece{};
    mover->size = last - first + 1;
    start[i] += first * mover->step;
    dst_offset += first * mover->dst_stride;
  }

  Dims size, src_stride, dst_stride;
  int64_t offset = writer.src.offset;
  for (std::size_t i = 0; i < digits->size(); ++i) offset += (start[i] - (*digits)[i].low) * (*digits)[i].source_stride;
  for (const Axis& axis : axes) {
    size.push_back(axis.size);
    src_stride.push_back(axis.step * (*digits)[axis.digit].source_stride);
    dst_stride.push_back(axis.dst_stride);
  }
  // The bounds follow from those of the two regions, but are checked again.
  const auto src_bounds = writer.bounds(writer.src), dst_bounds = reader.bounds(reader.dst);
  return Piece{
      Region::make(writer.source, size, src_stride, offset, dst_stride, dst_offset, src_bounds[1] + 1, dst_bounds[1] + 1)};
}

}  // namespace

std::optional<std::vector<Region>> compose(const Region& reader, std::span<const Region> writers) {
  std::vector<Region> pieces;
  int64_t count = 0;
  for (const Region& writer : writers) {
    if (writer.count() == 0) continue;
    std::optional<Piece> piece;
    try {
      piece = compose_one(reader, writer);
    } catch (const Error&) {
      return std::nullopt;  // more axes than a region holds
    }
    if (!piece) return std::nullopt;
    if (!piece->region) continue;
    count += piece->region->count();
    pieces.push_back(*piece->region);
  }
  if (count != reader.count()) return std::nullopt;
  if constexpr (kCompositionsChecked) {
    if (!is_composition(reader, writers, pieces)) {
      std::fputs("walle: vertical merging moved other elements than the rasters that it merged\n", stderr);
      std::abort();
    }
  }
  return pieces;
}

}  // namespace walle
