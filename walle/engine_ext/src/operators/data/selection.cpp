// Operators that select elements by their values: Compress and NonZero.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "operators/data/data.h"
#include "operators/eager.h"

namespace walle {

namespace {

std::int64_t count_set(const unsigned char* flags, std::int64_t size) {
  std::int64_t total = 0;
  run_stoppable(size, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t done = first; done < last;) {
      const std::int64_t end = std::min<std::int64_t>(last, done + 255);  // the sum fits in a byte
      unsigned char part = 0;
      for (; done < end; ++done) part = static_cast<unsigned char>(part + (flags[done] != 0));
      total += part;
    }
  });
  return total;
}

// Copy the elements whose flag is set, contiguously, without a branch for each. Another thread may clear flags after they were
// counted; then zeros follow.
template <class Item>
void keep_flagged(const std::byte* items, const unsigned char* flags, std::int64_t size, std::int64_t kept, std::byte* to) {
  const auto* from = reinterpret_cast<const Item*>(items);
  auto* result = reinterpret_cast<Item*>(to);
  std::int64_t found = 0;
  run_stoppable(size, 2, [=, &found](std::int64_t first, std::int64_t last) {
    std::int64_t next = found;  // a local copy stays in a register
    for (std::int64_t i = first; next < kept && i < last; ++i) {
      result[next] = from[i];
      next += flags[i] != 0;
    }
    found = next;
  });
  std::fill(result + found, result + kept, Item{});
}

}  // namespace

Tensor take_slices(const Tensor& x, std::size_t axis, const Dims& index) {
  Dims shape = x.shape();
  std::int64_t outer = 1, inner = static_cast<std::int64_t>(item_size(x.dtype()));
  for (std::size_t i = 0; i < axis; ++i) outer *= shape[i];
  for (std::size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
  const std::int64_t from = shape[axis];
  shape[axis] = static_cast<std::int64_t>(index.size());
  Tensor result = Tensor::empty(x.dtype(), std::move(shape));
  if (inner == 0) return result;
  std::byte* to = result.raw();
  StopPoll poll;
  constexpr std::int64_t kPart = StopPoll::kInterval;  // bytes of one slice that are copied between two polls
  for (std::int64_t o = 0; o < outer; ++o) {
    const auto copy = [&](std::int64_t first, std::int64_t last) {
      for (; first < last; ++first) {
        const std::byte* slice = x.raw() + (o * from + index[static_cast<std::size_t>(first)]) * inner;
        for (std::int64_t done = 0; done < inner && (done == 0 || poll.proceed(kPart / 4)); done += kPart)
          std::memcpy(to + done, slice + done, static_cast<std::size_t>(std::min(kPart, inner - done)));
        to += inner;
      }
    };
    if (!run_in_blocks(static_cast<std::int64_t>(index.size()), 4 + inner / 4, poll, copy)) throw_if_stopped();
  }
  return result;
}

// ONNX Compress: the slices along `axis` (of the flattened tensor if it is absent) whose condition is true.
std::vector<Tensor> compress(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const Tensor x = attributes.has("axis") ? inputs[0] : flat(inputs[0]);
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), x.shape().size());
  const Tensor& condition = inputs[1];
  if (condition.dtype() != DType::b8 || condition.ndim() != 1 || condition.size() > x.shape()[axis])
    throw Error(ErrorKind::shape, "Compress takes one bool for each of at most " + std::to_string(x.shape()[axis]) +
                                      " slices, not " + std::string(dtype_name(condition.dtype())) + " of shape " +
                                      to_string(condition.shape()));
  const auto* flags = condition.data<const unsigned char>();
  if (x.ndim() == 1) {
    const std::int64_t kept = count_set(flags, condition.size());
    Tensor result = Tensor::empty(x.dtype(), {kept});
    constexpr decltype(&keep_flagged<std::uint8_t>) keep[] = {&keep_flagged<std::uint8_t>, &keep_flagged<std::uint16_t>,
                                                              &keep_flagged<std::uint32_t>, &keep_flagged<std::uint64_t>,
                                                              &keep_flagged<std::array<std::uint64_t, 2>>};
    keep[std::bit_width(item_size(x.dtype())) - 1](x.raw(), flags, condition.size(), kept, result.raw());
    return {result};
  }
  Dims index;
  run_stoppable(condition.size(), 2, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      if (flags[i] != 0) index.push_back(i);
  });
  return {take_slices(x, axis, index)};
}

// ONNX NonZero: the coordinates of all elements that are not 0, (rank, count), in row-major order.
std::vector<Tensor> non_zero(std::span<const Tensor> inputs, const Attributes&, int) {
  const Tensor x = is_complex(inputs[0].dtype()) ? cast(inputs[0], DType::b8) : inputs[0];
  const std::int64_t size = x.size();
  std::int64_t count = 0;
  with_elements(x, [&](const auto* at) {
    if constexpr (sizeof(*at) == 1)
      count = count_set(reinterpret_cast<const unsigned char*>(at), size);
    else
      run_stoppable(size, 1, [&](std::int64_t first, std::int64_t end) {
        std::int64_t part = 0;
        for (std::int64_t i = first; i < end; ++i) part += at[i] != 0;
        count += part;
      });
  });
  Tensor result = Tensor::empty(DType::i64, {x.ndim(), count});
  if (count == 0) return {result};
  if (x.ndim() == 0) return {result};
  const auto last = static_cast<std::size_t>(x.ndim() - 1);
  const std::int64_t row = x.shape()[last];
  auto* places = result.data<std::int64_t>();
  auto* columns = places + static_cast<std::int64_t>(last) * count;
  with_elements(x, [&](const auto* at) {  // a row or part of one at a time; coordinates within a row differ only in the last one
    Dims outer(last, 0);
    std::int64_t found = 0;  // less than `count` if another thread clears elements after they were counted
    std::int64_t column = 0;
    run_stoppable(size, 1 + x.ndim(), [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t start = first; found < count && start < end;) {
        const std::int64_t before = found, length = std::min(row - column, end - start);
        std::int64_t next = found;                                   // a local copy stays in a register
        for (std::int64_t i = 0; i < length && next < count; ++i) {  // no branch for each element
          columns[next] = column + i;
          next += at[start + i] != 0;
        }
        found = next;
        for (std::size_t axis = 0; axis < last; ++axis)
          std::fill(places + static_cast<std::int64_t>(axis) * count + before,
                    places + static_cast<std::int64_t>(axis) * count + found, outer[axis]);
        start += length;
        column += length;
        if (column < row) continue;
        column = 0;
        for (std::size_t axis = last; axis-- > 0;) {
          if (++outer[axis] < x.shape()[axis]) break;
          outer[axis] = 0;
        }
      }
    });
    for (std::size_t axis = 0; axis <= last; ++axis)
      std::fill(places + static_cast<std::int64_t>(axis) * count + found, places + static_cast<std::int64_t>(axis + 1) * count,
                std::int64_t{0});
  });
  return {result};
}

}  // namespace walle
