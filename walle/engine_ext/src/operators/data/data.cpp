// The list of operators whose output shapes depend on data; each is defined in the file of its family. A plan cannot contain
// them: a module computes them between plans.
#include <algorithm>
#include <array>

#include "operators/op.h"

namespace walle {

// clang-format off
#define WALLE_DATA(name) std::vector<Tensor> name(std::span<const Tensor> inputs, const Attributes& attributes, int outputs)
WALLE_DATA(approximate_polygon);
WALLE_DATA(bin_count);
WALLE_DATA(circle_spans);
WALLE_DATA(component_statistics);
WALLE_DATA(compress);
WALLE_DATA(convex_hull);
WALLE_DATA(distance_transform);
WALLE_DATA(equalize_tiles);
WALLE_DATA(equalizing_table);
WALLE_DATA(find_contours);
WALLE_DATA(flood_region);
WALLE_DATA(histogram_bound);
WALLE_DATA(hough_lines);
WALLE_DATA(hough_segments);
WALLE_DATA(line_spans);
WALLE_DATA(non_max_suppression);
WALLE_DATA(non_zero);
WALLE_DATA(polygon_moments);
WALLE_DATA(polygon_spans);
WALLE_DATA(unique);
#undef WALLE_DATA
// clang-format on

std::span<const DataOp> data_operators() noexcept {
  static constexpr std::array<DataOp, 20> table{{
      {"ApproximatePolygon", 1, 1, &approximate_polygon},
      {"BinCount", 1, 2, &bin_count},
      {"CircleSpans", 0, 0, &circle_spans},
      {"ComponentStatistics", 1, 1, &component_statistics},
      {"Compress", 2, 2, &compress},
      {"ConvexHull", 1, 1, &convex_hull},
      {"DistanceTransform", 1, 1, &distance_transform},
      {"EqualizeTiles", 2, 2, &equalize_tiles},
      {"EqualizingTable", 1, 1, &equalizing_table},
      {"FindContours", 1, 1, &find_contours},
      {"FloodRegion", 2, 2, &flood_region},
      {"HistogramBound", 1, 1, &histogram_bound},
      {"HoughLines", 1, 1, &hough_lines},
      {"HoughSegments", 1, 1, &hough_segments},
      {"LineSpans", 1, 1, &line_spans},
      {"NonMaxSuppression", 2, 5, &non_max_suppression},
      {"NonZero", 1, 1, &non_zero},
      {"PolygonMoments", 1, 1, &polygon_moments},
      {"PolygonSpans", 2, 2, &polygon_spans},
      {"Unique", 1, 1, &unique},
  }};
  static_assert(std::ranges::is_sorted(table, {}, &DataOp::name));
  return table;
}

}  // namespace walle
