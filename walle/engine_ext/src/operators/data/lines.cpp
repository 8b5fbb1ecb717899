// HoughLines and HoughSegments: straight lines through the pixels of an image that are not 0, by votes (Duda and Hart, 1972;
// Matas, Galambos and Kittler, 2000).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/work_vector.h"
#include "operators/data/data.h"

namespace walle {

namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr std::int64_t kMaxCells = std::int64_t{1} << 26;
constexpr double kMaxAngle = 1000;  // a float32 has no angle that is much greater, and no cosine of infinity
constexpr double kMaxRho = 65536;   // longer than any image; steps along a line stay above 0 in float32

// Votes for lines x cos(angle) + y sin(angle) = distance: a cell for each angle and each step of the distance.
struct Votes {
  std::int64_t height, width, angles, distances;
  double rho, theta, first_angle;
  Tensor angle_table, cell_table;  // count as the task's memory
  float *cosines, *sines;
  std::int32_t* cells;

  std::int64_t cell(std::int64_t angle, std::int64_t x, std::int64_t y) const {
    const float far = static_cast<float>(x) * cosines[angle] + static_cast<float>(y) * sines[angle];
    return angle * distances + std::lrintf(far) + (distances - 1) / 2;
  }
};

// `summed`: the angles are sums of float32 steps, as OpenCV's of whole lines are, not multiples of the step.
Votes empty_votes(std::string_view op, const Tensor& image, const Attributes& attributes, bool summed) {
  if (image.dtype() != DType::u8 || image.ndim() != 2 || image.shape()[0] > 32767 || image.shape()[1] > 32767)
    throw Error(ErrorKind::shape, std::string(op) + " takes uint8 [height, width], not " +
                                      std::string(dtype_name(image.dtype())) + " of shape " + to_string(image.shape()));
  Votes votes{};
  votes.height = image.shape()[0], votes.width = image.shape()[1];
  // In float32 as OpenCV's, whose votes else differ where rounding is close.
  votes.rho = static_cast<float>(attributes.get_float("rho", 1));
  votes.theta = static_cast<float>(attributes.get_float("theta", kPi / 180));
  votes.first_angle = attributes.get_float("min_theta", 0);
  const double last = attributes.get_float("max_theta", kPi);
  const bool finite =
      std::isfinite(votes.rho) && std::isfinite(votes.theta) && std::isfinite(votes.first_angle) && std::isfinite(last);
  if (!finite || votes.rho <= 0 || votes.rho > kMaxRho || votes.theta <= 0 || last < votes.first_angle)
    throw Error(ErrorKind::model,
                std::string(op) + ": rho and theta must be above 0, rho at most 65536, and max_theta not below min_theta");
  if (votes.first_angle < -kMaxAngle || last > kMaxAngle)
    throw Error(ErrorKind::model, std::string(op) + ": min_theta and max_theta must be between -1000 and 1000");
  const double steps = std::floor((last - votes.first_angle) / votes.theta) + 1;
  // As many steps on both sides of 0.
  const double lengths = 2 * std::ceil(static_cast<double>(votes.width + votes.height) / votes.rho) + 1;
  if (steps * lengths > static_cast<double>(kMaxCells))
    throw Error(ErrorKind::shape, std::string(op) + " with more than 2^26 cells for votes; use a larger rho or theta");
  votes.angles = static_cast<std::int64_t>(steps);
  // The line of the last angle is that of the first one where they are half a turn apart.
  const double span = static_cast<double>(votes.angles - 1) * votes.theta;
  if (votes.angles > 1 && std::abs(kPi - span) < votes.theta / 2) --votes.angles;
  votes.distances = static_cast<std::int64_t>(lengths);
  auto sum = static_cast<float>(votes.first_angle);
  votes.angle_table = Tensor::empty(DType::f32, {2, votes.angles});
  votes.cosines = votes.angle_table.data<float>(), votes.sines = votes.cosines + votes.angles;
  const auto per_step = static_cast<double>(1 / static_cast<float>(votes.rho));
  for (std::int64_t n = 0; n < votes.angles; ++n, sum += static_cast<float>(votes.theta)) {
    const double angle = summed ? static_cast<double>(sum) : votes.first_angle + static_cast<double>(n) * votes.theta;
    votes.cosines[n] = static_cast<float>(std::cos(angle) * per_step);
    votes.sines[n] = static_cast<float>(std::sin(angle) * per_step);
  }
  votes.cell_table = Tensor::empty(DType::i32, {votes.angles, votes.distances});
  votes.cells = votes.cell_table.data<std::int32_t>();
  run_stoppable(votes.cell_table.size(), 1,
                [&](std::int64_t first, std::int64_t past) { std::fill(votes.cells + first, votes.cells + past, 0); });
  return votes;
}

// Throw WorkStopped once a stop was requested, about every million votes; a pixel that is read counts as one, too.
class VoteCount {
 public:
  void add(std::int64_t votes) {
    if ((votes_ += votes) < (1 << 20)) return;
    votes_ = 0;
    throw_if_stopped();
  }

 private:
  std::int64_t votes_ = 0;
};

struct Place {
  std::int32_t x, y;
  bool operator==(const Place&) const = default;
};

// A walk from a pixel along a line, in 1/65536 of a pixel on the lesser axis.
struct Walk {
  Walk(Place from, float cosine, float sine, bool forward) {
    const float a = -sine, b = cosine;
    along_x_ = std::abs(a) > std::abs(b);
    const float lead = along_x_ ? a : b, side = along_x_ ? b : a;
    step_ = lead > 0 ? 1 : -1;
    side_step_ = std::lrintf(side * 65536.0F / std::abs(lead));
    at_ = along_x_ ? from.x : from.y;
    side_at_ = (static_cast<std::int64_t>(along_x_ ? from.y : from.x) << 16) + (1 << 15);
    if (!forward) step_ = -step_, side_step_ = -side_step_;
  }
  Place place() const {
    const auto side = static_cast<std::int32_t>(side_at_ >> 16), lead = static_cast<std::int32_t>(at_);
    return along_x_ ? Place{lead, side} : Place{side, lead};
  }
  void advance() { at_ += step_, side_at_ += side_step_; }

 private:
  bool along_x_;
  std::int64_t at_, side_at_, step_, side_step_;
};

// Multiply with carry, seeded as OpenCV seeds the order in which it takes the pixels, so that the segments are the same.
class PixelOrder {
 public:
  std::size_t below(std::size_t count) {
    state_ = (state_ & 0xFFFFFFFFU) * 4164903690U + (state_ >> 32);
    return static_cast<std::size_t>(static_cast<std::uint32_t>(state_)) % count;
  }

 private:
  std::uint64_t state_ = ~std::uint64_t{0};
};

}  // namespace

// Input: uint8 [height, width]. Attributes: rho, theta (the steps), threshold, min_theta, max_theta. Results: float32 [lines, 2]
// of distance and angle, and int32 [lines] of votes; most votes first.
std::vector<Tensor> hough_lines(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  Votes votes = empty_votes("HoughLines", inputs[0], attributes, true);
  const std::int64_t threshold = attributes.get_int("threshold", 0);
  const auto* pixels = inputs[0].data<std::uint8_t>();
  VoteCount count;
  for (std::int64_t y = 0; y < votes.height; ++y) {
    count.add(votes.width);
    for (std::int64_t x = 0; x < votes.width; ++x)
      if (pixels[y * votes.width + x] != 0) {
        count.add(votes.angles);
        for (std::int64_t n = 0; n < votes.angles; ++n) ++votes.cells[votes.cell(n, x, y)];
      }
  }
  // A line is a cell with more votes than its neighbours; of equal ones the first.
  const auto at = [&](std::int64_t angle, std::int64_t distance) {
    const bool outside = angle < 0 || angle >= votes.angles || distance < 0 || distance >= votes.distances;
    return outside ? 0 : votes.cells[angle * votes.distances + distance];
  };
  WorkVector<std::pair<std::int64_t, std::int64_t>> found;  // distance, angle
  for (std::int64_t r = 0; r < votes.distances; ++r) {
    count.add(votes.angles);
    for (std::int64_t n = 0; n < votes.angles; ++n) {
      const std::int32_t own = at(n, r);
      if (own > threshold && own > at(n, r - 1) && own >= at(n, r + 1) && own > at(n - 1, r) && own >= at(n + 1, r))
        found.emplace_back(r, n);
    }
  }
  SortPoll sorting;
  std::sort(found.begin(), found.end(), [&](const auto& one, const auto& other) {
    sorting.proceed(4);
    const std::int32_t a = at(one.second, one.first), b = at(other.second, other.first);
    return a != b ? a > b : std::pair(one.second, one.first) < std::pair(other.second, other.first);
  });
  const auto lines = static_cast<std::int64_t>(found.size());
  Tensor result = Tensor::empty(DType::f32, {lines, 2}), counts = Tensor::empty(DType::i32, {lines});
  for (std::int64_t i = 0; i < lines; ++i) {
    const auto [distance, angle] = found[static_cast<std::size_t>(i)];
    const double middle = static_cast<double>(votes.distances - 1) * 0.5;
    result.data<float>()[2 * i] = static_cast<float>((static_cast<double>(distance) - middle) * votes.rho);
    result.data<float>()[2 * i + 1] = static_cast<float>(votes.first_angle + static_cast<double>(angle) * votes.theta);
    counts.data<std::int32_t>()[i] = at(angle, distance);
  }
  return {result, counts};
}

// Input: uint8 [height, width]. Attributes: rho, theta (the steps), threshold, length (at least), gap (within a segment, at
// most). Result: int32 [segments, 4] of the ends x, y, x, y.
std::vector<Tensor> hough_segments(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  Votes votes = empty_votes("HoughSegments", inputs[0], attributes, false);
  const std::int64_t threshold = attributes.get_int("threshold", 0), least = attributes.get_int("length", 0);
  const std::int64_t most_gap = attributes.get_int("gap", 0);
  const auto* pixels = inputs[0].data<std::uint8_t>();
  WorkVector<std::uint8_t> left;  // pixels that no segment has
  left.reserve(static_cast<std::size_t>(inputs[0].size()));
  run_stoppable(inputs[0].size(), 1,
                [&](std::int64_t first, std::int64_t past) { left.insert(left.end(), pixels + first, pixels + past); });
  std::size_t set = 0;
  run_stoppable(inputs[0].size(), 1, [&](std::int64_t first, std::int64_t past) {
    set += static_cast<std::size_t>(past - first - std::count(left.begin() + first, left.begin() + past, 0));
  });
  WorkVector<Place> places;
  places.reserve(set);
  run_stoppable(inputs[0].size(), 4, [&](std::int64_t first, std::int64_t past) {
    for (std::int64_t i = first; i < past; ++i)
      if (left[static_cast<std::size_t>(i)] != 0)
        places.push_back({static_cast<std::int32_t>(i % votes.width), static_cast<std::int32_t>(i / votes.width)});
  });
  const auto inside = [&](Place p) { return p.x >= 0 && p.x < votes.width && p.y >= 0 && p.y < votes.height; };
  const auto pixel = [&](Place p) -> std::uint8_t& { return left[static_cast<std::size_t>(p.y * votes.width + p.x)]; };
  WorkVector<std::int32_t> segments;
  PixelOrder order;
  VoteCount count;
  while (!places.empty()) {
    count.add(16);
    const std::size_t index = order.below(places.size());
    const Place from = places[index];
    places[index] = places.back();
    places.pop_back();
    if (pixel(from) == 0) continue;
    count.add(votes.angles);
    std::int64_t most = threshold - 1, best = 0;
    for (std::int64_t n = 0; n < votes.angles; ++n) {
      const std::int32_t own = ++votes.cells[votes.cell(n, from.x, from.y)];
      if (own > most) most = own, best = n;
    }
    if (most < threshold) continue;
    const float cosine = votes.cosines[best], sine = votes.sines[best];
    Place ends[2] = {from, from};
    for (int way = 0; way < 2; ++way) {
      std::int64_t gap = 0;
      for (Walk walk(from, cosine, sine, way == 0); inside(walk.place()); walk.advance()) {
        count.add(1);
        if (pixel(walk.place()) != 0)
          gap = 0, ends[way] = walk.place();
        else if (++gap > most_gap)
          break;
      }
    }
    const bool good = std::abs(ends[1].x - ends[0].x) >= least || std::abs(ends[1].y - ends[0].y) >= least;
    for (int way = 0; way < 2; ++way)
      for (Walk walk(from, cosine, sine, way == 0); inside(walk.place()); walk.advance()) {
        count.add(1);
        const Place here = walk.place();
        if (pixel(here) != 0 && good) {
          count.add(votes.angles);
          for (std::int64_t n = 0; n < votes.angles; ++n) --votes.cells[votes.cell(n, here.x, here.y)];
        }
        pixel(here) = 0;
        if (here == ends[way]) break;
      }
    if (good) segments.insert(segments.end(), {ends[0].x, ends[0].y, ends[1].x, ends[1].y});
  }
  Tensor result = Tensor::empty(DType::i32, {static_cast<std::int64_t>(segments.size() / 4), 4});
  std::copy(segments.begin(), segments.end(), result.data<std::int32_t>());
  return {result};
}

}  // namespace walle
