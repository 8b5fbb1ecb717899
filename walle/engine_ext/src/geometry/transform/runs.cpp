#include "geometry/transform/runs.h"

#include "core/stop.h"

namespace walle {

std::optional<std::vector<Run>> runs_of(std::span<const std::int64_t> indices, std::size_t limit) {
  std::vector<Run> runs;
  StopPoll poll;
  const auto same = [&](std::size_t at) {  // length of the run of elements equal to the one at `at`
    std::size_t end = at + 1;
    while (end < indices.size() && indices[end] == indices[at] && poll.proceed(1)) ++end;
    if (!poll.proceed(1)) throw_if_stopped();
    return end - at;
  };
  for (std::size_t at = 0; at < indices.size();) {
    const std::size_t repeat = same(at);
    Run run{static_cast<std::int64_t>(at), indices[at], 0, 1, static_cast<std::int64_t>(repeat)};
    std::size_t next = at + repeat;
    while (next < indices.size() && same(next) == repeat &&
           (run.count == 1 || indices[next] - indices[next - repeat] == run.step)) {
      run.step = indices[next] - indices[next - repeat];
      ++run.count;
      next += repeat;
    }
    if (runs.size() == limit) return std::nullopt;
    runs.push_back(run);
    at = next;
  }
  return runs;
}

std::vector<Run> whole_axis(std::int64_t dim) { return {{0, 0, 1, dim, 1}}; }

std::vector<Region> regions_of(int source, const Dims& from, const std::vector<std::vector<Run>>& runs, const Dims& to) {
  std::vector<Region> regions;
  if (element_count(to) == 0) return regions;
  const Dims src = contiguous_strides(from), dst = contiguous_strides(to);
  std::size_t count = 1;
  constexpr std::size_t kMaxRegions = 1 << 16;
  for (const auto& axis : runs)
    if (__builtin_mul_overflow(count, axis.size(), &count) || count > kMaxRegions)
      throw Error(ErrorKind::shape, "a movement from " + to_string(from) + " to " + to_string(to) + " takes too many regions");
  std::vector<std::size_t> at(runs.size(), 0);
  for (;;) {
    Dims size, src_stride, dst_stride;
    std::int64_t src_offset = 0, dst_offset = 0;
    for (std::size_t axis = 0; axis < runs.size(); ++axis) {
      const Run& run = runs[axis][at[axis]];
      src_offset += run.first * src[axis];
      dst_offset += run.begin * dst[axis];
      size.insert(size.end(), {run.count, run.repeat});
      src_stride.insert(src_stride.end(), {run.step * src[axis], 0});
      dst_stride.insert(dst_stride.end(), {run.repeat * dst[axis], dst[axis]});
    }
    add_regions(regions, source, size, src_stride, src_offset, dst_stride, dst_offset, from, to);
    std::size_t axis = runs.size();
    for (;;) {
      if (axis == 0) return regions;
      --axis;
      if (++at[axis] < runs[axis].size()) break;
      at[axis] = 0;
    }
  }
}

}  // namespace walle
