// Lists of indices as few evenly spaced runs, and movements made of them: how a Gather with known indices, a Pad by reflection or
// a nearest Resize become regions.
#pragma once
#include <span>
#include <vector>

#include "geometry/transform/transform.h"

namespace walle {

// Positions begin, begin + 1, ... of the result take elements first, first + step, ..., each `repeat` times over.
struct Run {
  std::int64_t begin, first, step, count, repeat;
};

// The runs of a list, ascending and without gaps; at most `limit` of them, else nothing.
std::optional<std::vector<Run>> runs_of(std::span<const std::int64_t> indices, std::size_t limit);

// Every element of a tensor of `from` that the runs of all axes choose, one list of runs per axis. One region for each
// combination.
std::vector<Region> regions_of(int source, const Dims& from, const std::vector<std::vector<Run>>& runs, const Dims& to);
// One run: the whole axis.
std::vector<Run> whole_axis(std::int64_t dim);

}  // namespace walle
