// FindContours: the borders of the non-zero areas of an image, by Suzuki and Abe ("Topological structural analysis of digitized
// binary images by border following", 1985); comments give the paper's step numbers.
#include <algorithm>
#include <array>

#include "core/work_vector.h"
#include "operators/op.h"

namespace walle {

namespace {

struct ContourPoint {
  std::int32_t x, y;
};

struct Border {
  bool hole = false;
  std::int32_t parent = 0;  // number of the surrounding border; 1 is the frame, whose number 0 is here
  WorkVector<ContourPoint> points;
};

// The neighbours of a pixel, counter-clockwise as seen on the screen, starting at the right.
constexpr std::array<std::array<std::int32_t, 2>, 8> kAround{
    {{1, 0}, {1, -1}, {0, -1}, {-1, -1}, {-1, 0}, {-1, 1}, {0, 1}, {1, 1}}};

class Follower {
 public:
  Follower(const std::uint8_t* image, std::int64_t height, std::int64_t width, bool simple)
      : width_(width + 2), height_(height + 2), simple_(simple) {
    fill_stoppable(cells_, static_cast<std::size_t>(width_ * height_), 0);
    for (std::int64_t y = 0; y < height; ++y)
      for (std::int64_t x = 0; x < width && (x > 0 || proceed(width)); ++x)
        cells_[static_cast<std::size_t>((y + 1) * width_ + x + 1)] = image[y * width + x] != 0;
    for (std::size_t k = 0; k < 8; ++k) step_[k] = kAround[k][1] * width_ + kAround[k][0];
  }

  WorkVector<Border> run() {
    WorkVector<Border> borders(2);  // 0 and 1 are not border numbers: 1 marks pixels not followed yet
    borders[1].hole = true;         // the frame
    for (std::int64_t y = 1; y < height_ - 1; ++y) {
      proceed(width_);
      std::int32_t last = 1;  // LNBD
      for (std::int64_t x = 1; x < width_ - 1; ++x) {
        const std::int64_t at = y * width_ + x;
        const std::int32_t cell = cells_[static_cast<std::size_t>(at)];
        if (cell == 0) continue;
        const bool outer = cell == 1 && cells_[static_cast<std::size_t>(at - 1)] == 0;
        const bool hole = !outer && cell >= 1 && cells_[static_cast<std::size_t>(at + 1)] == 0;
        if (outer || hole) {
          if (hole && cell > 1) last = cell;
          Border border;
          border.hole = hole;
          const Border& before = borders[static_cast<std::size_t>(last)];
          border.parent = before.hole == hole ? before.parent : last;  // table 1
          if (border.parent < 1) border.parent = 1;
          const auto number = static_cast<std::int32_t>(borders.size());
          follow(at, hole ? 0 : 4, number, border.points);
          borders.push_back(std::move(border));
        }
        const std::int32_t now = cells_[static_cast<std::size_t>(at)];
        if (now != 1) last = std::abs(now);
      }
    }
    return borders;
  }

 private:
  // Step 3: follow the border from the pixel `start`, whose neighbour in direction `from` is 0.
  void follow(std::int64_t start, std::size_t from, std::int32_t number, WorkVector<ContourPoint>& points) {
    std::size_t direction = from;
    do {  // 3.1, clockwise
      direction = (direction + 7) % 8;
    } while (direction != from && cells_[static_cast<std::size_t>(start + step_[direction])] == 0);
    if (cells_[static_cast<std::size_t>(start + step_[direction])] == 0) {  // isolated pixel
      cells_[static_cast<std::size_t>(start)] = -number;
      points.push_back(point(start));
      return;
    }
    const std::int64_t second = start + step_[direction];
    std::int64_t at = start;
    std::size_t came = (direction + 4) % 8;  // direction from which the walk reached `at`
    for (;;) {
      proceed(8);
      bool right_is_zero = false;  // 3.3, counter-clockwise from the previous pixel
      std::size_t next = direction;
      do {
        next = (next + 1) % 8;
        if (cells_[static_cast<std::size_t>(at + step_[next])] != 0) break;
        if (next == 0) right_is_zero = true;
      } while (next != direction);
      std::int32_t& cell = cells_[static_cast<std::size_t>(at)];
      if (right_is_zero)  // 3.4
        cell = -number;
      else if (cell == 1)
        cell = number;
      if (!simple_ || next != came) points.push_back(point(at));
      const std::int64_t to = at + step_[next];
      if (to == start && at == second) return;  // 3.5
      at = to;
      came = next;
      direction = (next + 4) % 8;
    }
  }

  // Throws WorkStopped once a stop was requested.
  bool proceed(std::int64_t elements) {
    if (!poll_.proceed(elements)) throw_if_stopped();
    return true;
  }

  ContourPoint point(std::int64_t at) const {
    return {static_cast<std::int32_t>(at % width_ - 1), static_cast<std::int32_t>(at / width_ - 1)};
  }

  std::int64_t width_, height_;
  bool simple_;
  StopPoll poll_;
  WorkVector<std::int32_t> cells_;
  std::array<std::int64_t, 8> step_;
};

}  // namespace

// Input: uint8 [height, width]. Attributes: mode ("external", "list", "ccomp", "tree"), simple (only points where the direction
// changes). Results: int32 [points, 2] (x, y); int64 [contours], the end of each contour's points; int32 [contours, 4], each
// one's next and previous on its level, first child and parent, -1 for none.
std::vector<Tensor> find_contours(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const Tensor& image = inputs[0];
  if (image.dtype() != DType::u8 || image.ndim() != 2 || image.size() > (std::int64_t{1} << 30))
    throw Error(ErrorKind::shape, "FindContours takes one channel of uint8, not " + std::string(dtype_name(image.dtype())) +
                                      " of shape " + to_string(image.shape()));
  const std::string mode = attributes.get_string("mode", "list");
  if (mode != "external" && mode != "list" && mode != "ccomp" && mode != "tree")
    throw Error(ErrorKind::unsupported, "FindContours mode '" + mode + "'; known are external, list, ccomp and tree");
  WorkVector<Border> borders;
  if (image.size() > 0)
    borders =
        Follower(image.data<std::uint8_t>(), image.shape()[0], image.shape()[1], attributes.get_int("simple", 0) != 0).run();
  // OpenCV's order: each contour before its children, those of one level from the last found to the first.
  const auto related = [&](std::size_t i) {
    const auto parent = static_cast<std::size_t>(borders[i].parent);
    return parent > 1 && (mode == "tree" || (mode == "ccomp" && borders[i].hole)) ? parent : std::size_t{0};
  };
  StopPoll poll;
  const auto proceed = [&](std::int64_t elements) {
    if (!poll.proceed(elements)) throw_if_stopped();
  };
  WorkVector<WorkVector<std::size_t>> inner(borders.size());
  for (std::size_t i = 2; i < borders.size(); ++i) {
    proceed(8);
    if (mode != "external" || (!borders[i].hole && borders[i].parent == 1)) inner[related(i)].push_back(i);
  }
  WorkVector<std::size_t> kept, open;
  if (!inner.empty()) open = inner[0];
  WorkVector<std::int32_t> place(borders.size(), -1), parents;
  while (!open.empty()) {
    proceed(8);
    const std::size_t i = open.back();
    open.pop_back();
    place[i] = static_cast<std::int32_t>(kept.size());
    parents.push_back(related(i) == 0 ? -1 : place[related(i)]);
    kept.push_back(i);
    open.insert(open.end(), inner[i].begin(), inner[i].end());
  }
  std::int64_t total = 0;
  for (const std::size_t i : kept) total += static_cast<std::int64_t>(borders[i].points.size());
  const auto count = static_cast<std::int64_t>(kept.size());
  Tensor points = Tensor::empty(DType::i32, {total, 2}), ends = Tensor::empty(DType::i64, {count}),
         tree = Tensor::empty(DType::i32, {count, 4});
  auto* to = points.data<std::int32_t>();
  auto* links = tree.data<std::int32_t>();
  std::fill(links, links + 4 * count, -1);
  std::int64_t end = 0;
  WorkVector<std::int32_t> latest(kept.size() + 1, -1);  // indexed by parent + 1
  for (std::size_t i = 0; i < kept.size(); ++i) {
    proceed(8 + static_cast<std::int64_t>(borders[kept[i]].points.size()));
    for (const ContourPoint& point : borders[kept[i]].points) {
      *to++ = point.x;
      *to++ = point.y;
      ++end;
    }
    ends.data<std::int64_t>()[i] = end;
    const std::int32_t parent = parents[i], own = static_cast<std::int32_t>(i);
    std::int32_t& previous = latest[static_cast<std::size_t>(parent + 1)];
    if (previous >= 0) {
      links[4 * previous] = own;
      links[4 * own + 1] = previous;
    } else if (parent >= 0) {
      links[4 * parent + 2] = own;
    }
    links[4 * own + 3] = parent;
    previous = own;
  }
  return {points, ends, tree};
}

}  // namespace walle
