// ComponentStatistics: the bounding box, area and centre of every label in an image of labels.
#include <algorithm>
#include <limits>

#include "core/work_vector.h"
#include "operators/op.h"

namespace walle {

// Input: int32 [height, width] of labels from 0 on. Results: int32 [labels, 5] of left, top, width, height and area; float64
// [labels, 2] of the centres (x, y).
std::vector<Tensor> component_statistics(std::span<const Tensor> inputs, const Attributes&, int) {
  const Tensor& labels = inputs[0];
  if (labels.dtype() != DType::i32 || labels.ndim() != 2)
    throw Error(ErrorKind::shape, "ComponentStatistics takes int32 labels [height, width], not " + to_string(labels.shape()));
  const auto* at = labels.data<std::int32_t>();
  const std::int64_t width = labels.shape()[1], count = labels.size();
  std::int32_t most = 0;
  run_stoppable(count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int32_t label = at[i];
      if (label < 0 || label > count) throw Error(ErrorKind::shape, "ComponentStatistics of a label out of range");
      most = std::max(most, label);
    }
  });
  struct Box {
    std::int64_t left = std::numeric_limits<std::int64_t>::max(), top = left, right = -1, bottom = -1, area = 0, x = 0, y = 0;
  };
  WorkVector<Box> boxes;
  fill_stoppable(boxes, static_cast<std::size_t>(most) + 1, Box());
  run_stoppable(count, 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto label = static_cast<std::size_t>(at[i]);
      if (label >= boxes.size()) continue;  // another thread changed it after it was checked
      Box& box = boxes[label];
      const std::int64_t x = i % width, y = i / width;
      box.left = std::min(box.left, x);
      box.right = std::max(box.right, x);
      box.top = std::min(box.top, y);
      box.bottom = std::max(box.bottom, y);
      ++box.area;
      box.x += x;
      box.y += y;
    }
  });
  const auto rows = static_cast<std::int64_t>(boxes.size());
  Tensor statistics = Tensor::empty(DType::i32, {rows, 5}), centres = Tensor::empty(DType::f64, {rows, 2});
  auto* to = statistics.data<std::int32_t>();
  auto* centre = centres.data<double>();
  StopPoll poll;
  for (const Box& box : boxes) {
    if (!poll.proceed(16)) throw_if_stopped();
    const bool some = box.area > 0;
    const std::int64_t row[] = {some ? box.left : 0, some ? box.top : 0, some ? box.right - box.left + 1 : 0,
                                some ? box.bottom - box.top + 1 : 0, box.area};
    for (const std::int64_t number : row) *to++ = static_cast<std::int32_t>(number);
    const auto area = static_cast<double>(box.area);
    *centre++ = static_cast<double>(box.x) / area;
    *centre++ = static_cast<double>(box.y) / area;
  }
  return {statistics, centres};
}

}  // namespace walle
