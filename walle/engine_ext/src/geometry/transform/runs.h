// Lists of indices as few evenly spaced runs, and movements made from them: regions for a Gather with constant indices, a Pad by
// reflection or a nearest Resize.
#pragma once
#include <span>
#include <vector>

#include "geometry/transform/transform.h"

namespace walle {

// Positions begin, begin + 1, ... of the result take elements first, first + step, ..., each repeated `repeat` times.
struct Run {
  std::int64_t begin, first, step, count, repeat;
};

// Return the runs of a list, ascending and without gaps; nothing if there are more than `limit`.
std::optional<std::vector<Run>> runs_of(std::span<const std::int64_t> indices, std::size_t limit);

// Move every element of a tensor of `from` that the runs of all axes select, one list of runs per axis. One region for each
// combination.
std::vector<Region> regions_of(int source, const Dims& from, const std::vector<std::vector<Run>>& runs, const Dims& to);
// Return one run: the whole axis.
std::vector<Run> whole_axis(std::int64_t dim);

}  // namespace walle
