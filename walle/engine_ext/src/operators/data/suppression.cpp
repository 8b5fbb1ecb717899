// NonMaxSuppression: for each batch and class the best boxes whose overlap with every better selected one is below a threshold.
#include <algorithm>

#include "core/work_vector.h"
#include "operators/data/data.h"

namespace walle {

namespace {

struct Box {
  double top, left, bottom, right;
};

// A box by its number. The score is a copy: a sort by numbers that another thread changes would leave its memory.
struct Candidate {
  float score;
  std::int64_t box;
};

Box box_of(const float* at, bool centred) {
  if (centred) return {at[1] - at[3] / 2.0, at[0] - at[2] / 2.0, at[1] + at[3] / 2.0, at[0] + at[2] / 2.0};
  const auto [top, bottom] = std::minmax(at[0], at[2]);
  const auto [left, right] = std::minmax(at[1], at[3]);
  return {top, left, bottom, right};
}

bool overlaps(const Box& a, const Box& b, double threshold) {
  const double height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top),
               width = std::min(a.right, b.right) - std::max(a.left, b.left);
  if (!(height > 0 && width > 0)) return false;
  const double area_a = (a.bottom - a.top) * (a.right - a.left), area_b = (b.bottom - b.top) * (b.right - b.left);
  const double both = height * width, either = area_a + area_b - both;
  return area_a > 0 && area_b > 0 && either > 0 && both / either > threshold;
}

}  // namespace

// Inputs: boxes [batch, boxes, 4], scores [batch, classes, boxes], the maximum number of boxes of a class (default 0), the
// overlap above which a box is dropped, the score that a box must exceed. Result: int64 [selected, 3], batch, class and box, best
// first within a class.
std::vector<Tensor> non_max_suppression(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const Tensor &boxes = inputs[0], &scores = inputs[1];
  if (boxes.dtype() != DType::f32 || scores.dtype() != DType::f32)
    throw Error(ErrorKind::dtype, "NonMaxSuppression takes float32 boxes and scores");
  if (boxes.ndim() != 3 || scores.ndim() != 3 || boxes.shape()[2] != 4 || boxes.shape()[0] != scores.shape()[0] ||
      boxes.shape()[1] != scores.shape()[2])
    throw Error(ErrorKind::shape,
                "NonMaxSuppression of boxes " + to_string(boxes.shape()) + " with scores " + to_string(scores.shape()));
  const auto given = [&](std::size_t i) { return i < inputs.size() && inputs[i].storage() != nullptr && inputs[i].size() > 0; };
  const auto number = [&](std::size_t i, double fallback) {
    if (!given(i)) return fallback;
    if (inputs[i].dtype() == DType::i64) return static_cast<double>(*inputs[i].data<std::int64_t>());
    if (inputs[i].dtype() == DType::f32) return static_cast<double>(*inputs[i].data<float>());
    throw Error(ErrorKind::dtype, "NonMaxSuppression takes an int64 count and float32 thresholds");
  };
  const double limit = number(2, 0), overlap = number(3, 0);
  const bool scored = given(4), centred = attributes.get_int("center_point_box", 0) != 0;
  const double least = number(4, 0);
  const std::int64_t batches = boxes.shape()[0], count = boxes.shape()[1], classes = scores.shape()[1];
  Dims selected;
  StopPoll poll;
  for (std::int64_t batch = 0; batch < batches; ++batch)
    for (std::int64_t kind = 0; kind < classes; ++kind) {
      const float* score = scores.data<float>() + (batch * classes + kind) * count;
      WorkVector<Candidate> order;
      run_stoppable(count, 4, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i)
          if (const float own = score[i]; own == own && (!scored || own > least)) order.push_back({own, i});
      });
      SortPoll sorting;
      std::stable_sort(order.begin(), order.end(), [&](const Candidate& a, const Candidate& b) {
        sorting.proceed(2);
        return a.score > b.score;
      });
      WorkVector<Box> kept;
      for (const auto& [own, i] : order) {
        if (static_cast<double>(kept.size()) >= limit) break;
        if (!poll.proceed(1 + 4 * static_cast<std::int64_t>(kept.size()))) throw_if_stopped();
        const Box box = box_of(boxes.data<float>() + (batch * count + i) * 4, centred);
        if (std::any_of(kept.begin(), kept.end(), [&](const Box& better) { return overlaps(box, better, overlap); })) continue;
        kept.push_back(box);
        selected.insert(selected.end(), {batch, kind, i});
      }
    }
  Tensor result = Tensor::empty(DType::i64, {static_cast<std::int64_t>(selected.size() / 3), 3});
  std::copy(selected.begin(), selected.end(), result.data<std::int64_t>());
  return {result};
}

}  // namespace walle
