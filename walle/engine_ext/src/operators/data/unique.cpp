// Unique: distinct elements or slices.
#include <algorithm>
#include <numeric>

#include "core/work_vector.h"
#include "operators/data/data.h"
#include "operators/eager.h"

namespace walle {

namespace {

Tensor whole(const Dims& numbers) {
  Tensor result = Tensor::empty(DType::i64, {static_cast<std::int64_t>(numbers.size())});
  run_stoppable(result.size(), 2, [&](std::int64_t first, std::int64_t last) {
    std::copy(numbers.begin() + first, numbers.begin() + last, result.data<std::int64_t>() + first);
  });
  return result;
}

}  // namespace

// ONNX Unique: the distinct slices along `axis` (elements if it is absent), sorted or in the order of first appearance; the index
// of each one's first appearance; for each slice, its number among the distinct ones; the count of each.
std::vector<Tensor> unique(std::span<const Tensor> inputs, const Attributes& attributes, int outputs) {
  // A copy: a sort by elements that another thread changes would leave its memory.
  const Tensor copy = Tensor::empty(inputs[0].dtype(), inputs[0].shape());
  assign(inputs[0], copy);
  const Tensor x = attributes.has("axis") ? copy : flat(copy);
  const std::size_t axis = normal_axis(attributes.get_int("axis", 0), x.shape().size());
  const std::int64_t slices = x.shape()[axis];
  std::int64_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < axis; ++i) outer *= x.shape()[i];
  for (std::size_t i = axis + 1; i < x.shape().size(); ++i) inner *= x.shape()[i];
  Dims first, inverse, counts;
  fill_stoppable(inverse, static_cast<std::size_t>(slices), 0);
  SortPoll poll;
  with_elements(x, [&](const auto* at) {
    const auto compare = [&](std::int64_t a, std::int64_t b) {
      poll.proceed(1 + outer * inner);
      for (std::int64_t o = 0; o < outer; ++o)
        for (std::int64_t i = 0; i < inner; ++i) {
          const auto left = at[(o * slices + a) * inner + i], right = at[(o * slices + b) * inner + i];
          if (left < right) return -1;
          if (right < left) return 1;
          if (left != right && (left == left || right == right)) return left == left ? -1 : 1;  // NaN is the greatest
        }
      return 0;
    };
    Dims order;
    fill_stoppable(order, static_cast<std::size_t>(slices), 0);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return compare(a, b) < 0; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i == 0 || compare(order[i - 1], order[i]) != 0) {
        first.push_back(order[i]);
        counts.push_back(0);
      }
      inverse[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(first.size() - 1);
      ++counts.back();
    }
  });
  if (attributes.get_int("sorted", 1) == 0) {  // unsorted: the order of first appearance
    Dims rank(first.size()), place(first.size());
    std::iota(rank.begin(), rank.end(), 0);
    std::sort(rank.begin(), rank.end(), [&](std::int64_t a, std::int64_t b) {
      poll.proceed(1);
      return first[static_cast<std::size_t>(a)] < first[static_cast<std::size_t>(b)];
    });
    Dims new_first, new_counts;
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const auto old = static_cast<std::size_t>(rank[i]);
      place[old] = static_cast<std::int64_t>(i);
      new_first.push_back(first[old]);
      new_counts.push_back(counts[old]);
    }
    for (std::int64_t& one : inverse) one = place[static_cast<std::size_t>(one)];
    first = std::move(new_first);
    counts = std::move(new_counts);
  }
  std::vector<Tensor> results{take_slices(x, axis, first), whole(first), whole(inverse), whole(counts)};
  results.resize(static_cast<std::size_t>(std::clamp(outputs, 1, 4)));
  return results;
}

}  // namespace walle
