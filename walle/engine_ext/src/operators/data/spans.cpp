// LineSpans, PolygonSpans and CircleSpans: figures as runs of pixels. A result is int32 [spans, 3]: y, the first x, and one past
// the last x, all within an image of `height` by `width`; geometry/span_fill.h fills them with a colour.
#include <algorithm>
#include <cmath>

#include "core/work_vector.h"
#include "operators/data/data.h"

namespace walle {

namespace {

class Spans {
 public:
  explicit Spans(const Attributes& attributes)
      : height_(attributes.get_int("height", 0)), width_(attributes.get_int("width", 0)) {
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    if (height_ < 0 || width_ < 0 || height_ > kMost || width_ > kMost)
      throw Error(ErrorKind::shape, "spans within an image of no size");
  }

  std::int64_t height() const { return height_; }
  std::int64_t width() const { return width_; }
  // Counts steps before they are taken. Throws WorkStopped once a stop was requested.
  void proceed(std::int64_t steps) { poll_.proceed(steps); }
  // Add from x to `last`, both included.
  void add(std::int64_t y, std::int64_t x, std::int64_t last) {
    proceed(4);
    if (y < 0 || y >= height_) return;
    x = std::max<std::int64_t>(x, 0);
    last = std::min(last, width_ - 1);
    if (x > last) return;
    numbers_.insert(numbers_.end(),
                    {static_cast<std::int32_t>(y), static_cast<std::int32_t>(x), static_cast<std::int32_t>(last + 1)});
  }
  Tensor tensor() const {
    Tensor result = Tensor::empty(DType::i32, {static_cast<std::int64_t>(numbers_.size() / 3), 3});
    run_stoppable(result.size(), 1, [&](std::int64_t first, std::int64_t last) {
      std::copy(numbers_.begin() + first, numbers_.begin() + last, result.data<std::int32_t>() + first);
    });
    return result;
  }

 private:
  std::int64_t height_, width_;
  WorkVector<std::int32_t> numbers_;
  SortPoll poll_;
};

struct SpanPoint {
  std::int64_t x, y;
};

// Clip a line to the image; return false if it is entirely outside.
bool clip(const Spans& spans, SpanPoint& a, SpanPoint& b) {
  const std::int64_t right = spans.width() - 1, bottom = spans.height() - 1;
  if (right < 0 || bottom < 0) return false;
  const auto code = [&](const SpanPoint& p) { return (p.x < 0) + (p.x > right) * 2 + (p.y < 0) * 4 + (p.y > bottom) * 8; };
  int of_a = code(a), of_b = code(b);
  const auto to_rows = [&](SpanPoint& p, const SpanPoint& other, int& of) {
    const std::int64_t y = of < 8 ? 0 : bottom;
    p.x += static_cast<std::int64_t>(static_cast<double>(y - p.y) * static_cast<double>(other.x - p.x) /
                                     static_cast<double>(other.y - p.y));
    p.y = y;
    of = (p.x < 0) + (p.x > right) * 2;
  };
  const auto to_columns = [&](SpanPoint& p, const SpanPoint& other, int& of) {
    const std::int64_t x = of == 1 ? 0 : right;
    p.y += static_cast<std::int64_t>(static_cast<double>(x - p.x) * static_cast<double>(other.y - p.y) /
                                     static_cast<double>(other.x - p.x));
    p.x = x;
    of = 0;
  };
  if ((of_a & of_b) == 0 && (of_a | of_b) != 0) {
    if ((of_a & 12) != 0) to_rows(a, b, of_a);
    if ((of_b & 12) != 0) to_rows(b, a, of_b);
    if ((of_a & of_b) == 0 && (of_a | of_b) != 0) {
      if (of_a != 0) to_columns(a, b, of_a);
      if (of_b != 0) to_columns(b, a, of_b);
    }
  }
  return (of_a | of_b) == 0;
}

// Draw Bresenham's line, from left to right.
void thin_line(Spans& spans, SpanPoint a, SpanPoint b) {
  if (!clip(spans, a, b)) return;
  if (b.x < a.x) std::swap(a, b);
  const std::int64_t dx = b.x - a.x, dy = std::abs(b.y - a.y), down = b.y < a.y ? -1 : 1;
  const bool steep = dy > dx;
  const std::int64_t longer = steep ? dy : dx, shorter = steep ? dx : dy;
  std::int64_t error = longer - 2 * shorter, x = a.x, y = a.y, first = a.x;
  for (std::int64_t i = 0; i <= longer; ++i) {
    spans.proceed(1);
    const bool aside = error < 0;
    error += -2 * shorter + (aside ? 2 * longer : 0);
    if (steep) {
      spans.add(y, x, x);
      y += down;
      x += aside;
    } else {
      if (aside || i == longer) {
        spans.add(y, first, x);
        first = x + 1;
      }
      ++x;
      y += aside ? down : 0;
    }
  }
}

void disc(Spans& spans, SpanPoint centre, std::int64_t radius, bool filled) {
  std::int64_t error = 0, dx = radius, dy = 0, plus = 1, minus = 2 * radius - 1;
  while (dx >= dy) {
    for (const std::int64_t sign : {-1, 1}) {
      if (filled) {
        spans.add(centre.y + sign * dy, centre.x - dx, centre.x + dx);
        spans.add(centre.y + sign * dx, centre.x - dy, centre.x + dy);
      } else {
        spans.add(centre.y + sign * dy, centre.x - dx, centre.x - dx);
        spans.add(centre.y + sign * dy, centre.x + dx, centre.x + dx);
        spans.add(centre.y + sign * dx, centre.x - dy, centre.x - dy);
        spans.add(centre.y + sign * dx, centre.x + dy, centre.x + dy);
      }
    }
    ++dy;
    error += plus;
    plus += 2;
    if (error > 0) {
      error -= minus;
      --dx;
      minus -= 2;
    }
  }
}

struct Corner {
  double x, y;
};

// Fill closed polygons by the even-odd rule, sampled on the rows. `nearest`: edges are rounded, not drawn inward.
void inside(Spans& spans, const WorkVector<WorkVector<Corner>>& polygons, bool nearest) {
  struct Edge {
    double top, bottom, x, slope;
  };
  WorkVector<Edge> edges;
  double low = 1e18, high = -1e18;
  for (const auto& polygon : polygons)
    for (std::size_t i = 0; i < polygon.size(); ++i) {
      Corner a = polygon[i], b = polygon[(i + 1) % polygon.size()];
      if (a.y == b.y) continue;
      if (a.y > b.y) std::swap(a, b);
      edges.push_back({a.y, b.y, a.x, (b.x - a.x) / (b.y - a.y)});
      low = std::min(low, a.y);
      high = std::max(high, b.y);
    }
  std::sort(edges.begin(), edges.end(), [&](const Edge& a, const Edge& b) {
    spans.proceed(2);
    return a.top < b.top;
  });
  const auto first = static_cast<std::int64_t>(std::clamp(std::ceil(low), 0.0, static_cast<double>(spans.height())));
  const auto last = static_cast<std::int64_t>(std::clamp(std::floor(high), -1.0, static_cast<double>(spans.height() - 1)));
  WorkVector<Edge> active;
  std::size_t next = 0;
  WorkVector<double> cuts;
  for (std::int64_t y = first; y <= last; ++y) {
    const auto row = static_cast<double>(y);
    spans.proceed(16 + 4 * static_cast<std::int64_t>(active.size()));
    while (next < edges.size() && edges[next].top <= row) active.push_back(edges[next++]);
    std::erase_if(active, [&](const Edge& edge) { return edge.bottom <= row; });
    cuts.clear();
    for (const Edge& edge : active) cuts.push_back(edge.x + (row - edge.top) * edge.slope);
    std::sort(cuts.begin(), cuts.end(), [&](double a, double b) {
      spans.proceed(1);
      return a < b;
    });
    const auto bounded = [&](double x) {
      return static_cast<std::int64_t>(std::clamp(x, -1.0, static_cast<double>(spans.width())));
    };
    for (std::size_t i = 0; i + 1 < cuts.size(); i += 2) {
      const double left = nearest ? std::floor(cuts[i] + 0.5) : std::ceil(cuts[i] - 1e-9);
      const double right = nearest ? std::floor(cuts[i + 1] + 0.5) : std::floor(cuts[i + 1] + 1e-9);
      spans.add(y, bounded(left), bounded(right));
    }
  }
}

// Draw a rectangle along the line, with round ends.
void thick_line(Spans& spans, SpanPoint a, SpanPoint b, std::int64_t thickness) {
  const auto dx = static_cast<double>(a.x - b.x), dy = static_cast<double>(b.y - a.y);
  const double length = std::sqrt(dx * dx + dy * dy);
  if (length > 0) {
    const double r = (static_cast<double>(thickness) / 2 + (thickness % 2 != 0 ? 0.5 : 0.0)) / length, x = dy * r, y = dx * r;
    const auto ax = static_cast<double>(a.x), ay = static_cast<double>(a.y), bx = static_cast<double>(b.x),
               by = static_cast<double>(b.y);
    const WorkVector<Corner> corners{{ax + x, ay + y}, {ax - x, ay - y}, {bx - x, by - y}, {bx + x, by + y}};
    inside(spans, {corners}, true);
    for (std::size_t i = 0; i < corners.size(); ++i) {
      const Corner &from = corners[i], &to = corners[(i + 1) % corners.size()];
      thin_line(spans, {std::llround(from.x), std::llround(from.y)}, {std::llround(to.x), std::llround(to.y)});
    }
  }
  disc(spans, a, (thickness + 1) / 2, true);
  disc(spans, b, (thickness + 1) / 2, true);
}

const std::int32_t* span_points(std::string_view op, const Tensor& given, std::int64_t& count) {
  if (given.dtype() != DType::i32 || given.ndim() != 2 || given.shape()[1] != 2)
    throw Error(ErrorKind::shape, std::string(op) + " takes int32 points [count, 2], not " +
                                      std::string(dtype_name(given.dtype())) + " of shape " + to_string(given.shape()));
  count = given.shape()[0];
  const auto* at = given.data<std::int32_t>();
  run_stoppable(2 * count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      if (std::abs(std::int64_t{at[i]}) > (1 << 24)) throw Error(ErrorKind::shape, std::string(op) + " of a point too far away");
  });
  return at;
}

}  // namespace

// Input: line endpoints, two points each. Attributes: height, width, thickness.
std::vector<Tensor> line_spans(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  Spans spans(attributes);
  std::int64_t count = 0;
  const std::int32_t* at = span_points("LineSpans", inputs[0], count);
  const std::int64_t thickness = attributes.get_int("thickness", 1);
  if (thickness > 32767) throw Error(ErrorKind::model, "LineSpans with a thickness of " + std::to_string(thickness));
  for (std::int64_t i = 0; i + 1 < count; i += 2, at += 4) {
    const SpanPoint a{at[0], at[1]}, b{at[2], at[3]};
    if (thickness <= 1)
      thin_line(spans, a, b);
    else
      thick_line(spans, a, b, thickness);
  }
  return {spans.tensor()};
}

// Inputs: points, and int64, the end of each polygon's points. Attributes: height, width. Edges belong to the figure.
std::vector<Tensor> polygon_spans(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  Spans spans(attributes);
  std::int64_t count = 0, begin = 0;
  const std::int32_t* at = span_points("PolygonSpans", inputs[0], count);
  if (inputs[1].dtype() != DType::i64 || inputs[1].ndim() != 1) throw Error(ErrorKind::dtype, "PolygonSpans takes int64 ends");
  WorkVector<WorkVector<Corner>> polygons;
  for (std::int64_t i = 0; i < inputs[1].size(); ++i) {
    const std::int64_t end = inputs[1].data<std::int64_t>()[i];
    if (end < begin || end > count) throw Error(ErrorKind::shape, "PolygonSpans with ends that do not ascend within its points");
    auto& polygon = polygons.emplace_back();
    for (std::int64_t k = begin; k < end; ++k) {
      polygon.push_back({static_cast<double>(at[2 * k]), static_cast<double>(at[2 * k + 1])});
      const std::int64_t next = k + 1 < end ? k + 1 : begin;
      thin_line(spans, {at[2 * k], at[2 * k + 1]}, {at[2 * next], at[2 * next + 1]});
    }
    begin = end;
  }
  inside(spans, polygons, false);
  return {spans.tensor()};
}

// Attributes: height, width, x, y, radius, filled.
std::vector<Tensor> circle_spans(std::span<const Tensor>, const Attributes& attributes, int) {
  Spans spans(attributes);
  const std::int64_t x = attributes.get_int("x", 0), y = attributes.get_int("y", 0), radius = attributes.get_int("radius", 0);
  if (radius < 0 || radius > (1 << 24) || std::abs(x) > (1 << 24) || std::abs(y) > (1 << 24))
    throw Error(ErrorKind::model, "CircleSpans with a radius of " + std::to_string(radius) + " about a point (" +
                                      std::to_string(x) + ", " + std::to_string(y) + ")");
  disc(spans, {x, y}, radius, attributes.get_int("filled", 0) != 0);
  return {spans.tensor()};
}

}  // namespace walle
