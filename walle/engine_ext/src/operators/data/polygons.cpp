// Operators on polygons: ConvexHull, ApproximatePolygon (Douglas and Peucker) and PolygonMoments.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/work_vector.h"
#include "operators/data/data.h"

namespace walle {

namespace {

struct PolygonPoint {
  double x, y;
};

WorkVector<PolygonPoint> polygon_points(std::string_view op, const Tensor& given) {
  if (given.ndim() != 2 || given.shape()[1] != 2 || given.dtype() != DType::f64)
    throw Error(ErrorKind::shape, std::string(op) + " takes float64 points [count, 2], not " +
                                      std::string(dtype_name(given.dtype())) + " of shape " + to_string(given.shape()));
  WorkVector<PolygonPoint> points;
  StopPoll poll;
  for (std::int64_t i = 0; i < given.shape()[0]; ++i) {
    if (!poll.proceed(4)) throw_if_stopped();
    points.push_back({given.data<double>()[2 * i], given.data<double>()[2 * i + 1]});
    if (!std::isfinite(points.back().x) || !std::isfinite(points.back().y))
      throw Error(ErrorKind::model, std::string(op) + " of a point that is not finite");
  }
  return points;
}

Tensor indices(const WorkVector<std::int64_t>& kept) {
  Tensor result = Tensor::empty(DType::i64, {static_cast<std::int64_t>(kept.size())});
  std::copy(kept.begin(), kept.end(), result.data<std::int64_t>());
  return result;
}

double turn(const PolygonPoint& a, const PolygonPoint& b, const PolygonPoint& c) {
  return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
}

// Mark the points to keep between two kept points, without recursion.
void reduce(const WorkVector<PolygonPoint>& points, WorkVector<bool>& stays, std::size_t first, std::size_t last, double bound) {
  WorkVector<std::pair<std::size_t, std::size_t>> open{{first, last}};
  const std::size_t count = points.size();
  StopPoll poll;
  while (!open.empty()) {
    const auto [from, to] = open.back();
    open.pop_back();
    const PolygonPoint &a = points[from], &b = points[to];
    const double dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
    double most = -1;
    std::size_t farthest = from;
    if (!poll.proceed(2 * static_cast<std::int64_t>((to + count - from) % count))) throw_if_stopped();
    for (std::size_t i = (from + 1) % count; i != to; i = (i + 1) % count) {
      const double px = points[i].x - a.x, py = points[i].y - a.y;
      const double far = length > 0 ? std::abs(py * dx - px * dy) : px * px + py * py;
      if (far > most) most = far, farthest = i;
    }
    if (most < 0) continue;
    const bool near = length > 0 ? most * most <= bound * bound * length : most <= bound * bound;
    if (near) continue;
    stays[farthest] = true;
    open.emplace_back(farthest, to);
    open.emplace_back(from, farthest);
  }
}

}  // namespace

// Input: float64 [count, 2]. Attribute: clockwise, as seen with y upwards. Result: int64, the indices of the hull's corners.
std::vector<Tensor> convex_hull(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const auto points = polygon_points("ConvexHull", inputs[0]);
  WorkVector<std::int64_t> order(points.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::int64_t i) -> const PolygonPoint& { return points[static_cast<std::size_t>(i)]; };
  SortPoll poll;
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    poll.proceed(2);
    return at(a).x != at(b).x ? at(a).x < at(b).x : at(a).y != at(b).y ? at(a).y < at(b).y : a < b;
  });
  order.erase(std::unique(order.begin(), order.end(), [&](auto a, auto b) { return at(a).x == at(b).x && at(a).y == at(b).y; }),
              order.end());
  WorkVector<std::int64_t> hull;
  if (order.size() < 3) {
    hull = order;
  } else {
    for (int side = 0; side < 2; ++side) {  // lower and upper chain
      const std::size_t start = hull.size();
      for (const std::int64_t i : order) {
        poll.proceed(4);
        while (hull.size() >= start + 2 && turn(at(hull[hull.size() - 2]), at(hull.back()), at(i)) <= 0) hull.pop_back();
        hull.push_back(i);
      }
      hull.pop_back();
      std::reverse(order.begin(), order.end());
    }
  }
  if (hull.size() < 3) {
    if (attributes.get_int("clockwise", 0) == 0) std::reverse(hull.begin(), hull.end());
    return {indices(hull)};
  }
  // The first corner is OpenCV's: clockwise (with y upwards) at the leftmost corner, else at the rightmost one.
  const std::int64_t rightmost = *std::max_element(hull.begin(), hull.end(), [&](std::int64_t a, std::int64_t b) {
    return at(a).x != at(b).x ? at(a).x < at(b).x : at(a).y < at(b).y;
  });
  if (attributes.get_int("clockwise", 0) != 0)
    std::reverse(hull.begin() + 1, hull.end());
  else
    std::rotate(hull.begin(), std::find(hull.begin(), hull.end(), rightmost), hull.end());
  // Indices in ascending cyclic order begin with the smallest, in descending order with the largest.
  std::size_t rises = 0;
  for (std::size_t i = 0; i < hull.size(); ++i) rises += hull[i] < hull[(i + 1) % hull.size()];
  if (rises == hull.size() - 1)
    std::rotate(hull.begin(), std::min_element(hull.begin(), hull.end()), hull.end());
  else if (rises == 1)
    std::rotate(hull.begin(), std::max_element(hull.begin(), hull.end()), hull.end());
  return {indices(hull)};
}

// Input: float64 [count, 2]. Attributes: epsilon, closed. Result: int64, the indices of the kept points. A closed polygon is
// split at two points that are far apart: three times, take the point farthest from the last one found.
std::vector<Tensor> approximate_polygon(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const auto points = polygon_points("ApproximatePolygon", inputs[0]);
  const double bound = attributes.get_float("epsilon", 0);
  const std::size_t count = points.size();
  if (!(bound >= 0)) throw Error(ErrorKind::model, "ApproximatePolygon needs an epsilon of at least 0");
  WorkVector<bool> stays(count, false);
  if (count > 0 && attributes.get_int("closed", 1) != 0) {
    std::size_t from = 0, to = 0;
    double most = 0;
    for (int turnabout = 0; turnabout < 3; ++turnabout) {
      from = to;
      most = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const double dx = points[i].x - points[from].x, dy = points[i].y - points[from].y;
        if (dx * dx + dy * dy > most) most = dx * dx + dy * dy, to = i;
      }
    }
    stays[from] = true;
    if (most > bound * bound) {
      stays[to] = true;
      reduce(points, stays, from, to, bound);
      reduce(points, stays, to, from, bound);
    }
  } else if (count > 0) {
    stays[0] = stays[count - 1] = true;
    if (count > 2) reduce(points, stays, 0, count - 1, bound);
  }
  WorkVector<std::int64_t> kept;
  for (std::size_t i = 0; i < count; ++i)
    if (stays[i]) kept.push_back(static_cast<std::int64_t>(i));
  return {indices(kept)};
}

// Input: float64 [count, 2]. Result: float64 [4, 4], at [p, q] the integral of x^p y^q over the enclosed area, for either
// orientation, for p + q up to 3; 0 elsewhere, and everywhere for an empty area (Steger, 1996).
std::vector<Tensor> polygon_moments(std::span<const Tensor> inputs, const Attributes&, int) {
  const auto points = polygon_points("PolygonMoments", inputs[0]);
  constexpr std::size_t kOrders = 4;
  constexpr std::array<std::array<double, kOrders>, kOrders> choose{{{1, 0, 0, 0}, {1, 1, 0, 0}, {1, 2, 1, 0}, {1, 3, 3, 1}}};
  using Powers = std::array<double, kOrders>;
  const auto powers = [](double x) { return Powers{1, x, x * x, x * x * x}; };
  double sums[kOrders][kOrders] = {};
  StopPoll poll;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!poll.proceed(100)) throw_if_stopped();
    const PolygonPoint &a = points[i == 0 ? points.size() - 1 : i - 1], &b = points[i];
    const Powers ax = powers(a.x), ay = powers(a.y), bx = powers(b.x), by = powers(b.y);
    const double cross = a.x * b.y - b.x * a.y;
    for (std::size_t p = 0; p < kOrders; ++p)
      for (std::size_t q = 0; p + q < kOrders; ++q) {
        double part = 0;
        for (std::size_t k = 0; k <= p; ++k)
          for (std::size_t l = 0; l <= q; ++l)
            part += choose[k + l][l] * choose[p + q - k - l][q - l] * bx[k] * ax[p - k] * by[l] * ay[q - l];
        sums[p][q] += cross * part;
      }
  }
  Tensor result = Tensor::empty(DType::f64, {kOrders, kOrders});
  auto* out = result.data<double>();
  const bool encloses = std::abs(sums[0][0]) > std::numeric_limits<float>::epsilon();
  for (std::size_t p = 0; p < kOrders; ++p)
    for (std::size_t q = 0; q < kOrders; ++q) {
      const double scale = p + q < kOrders ? static_cast<double>((p + q + 2) * (p + q + 1)) * choose[p + q][p] : 1;
      *out++ = encloses ? sums[p][q] / std::copysign(scale, sums[0][0]) : 0;
    }
  return {result};
}

}  // namespace walle
