// DistanceTransform: the distance of each pixel from the nearest pixel that is 0, by two passes of a mask (Borgefors, 1986), or
// exactly (Felzenszwalb and Huttenlocher, 2012).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/work_vector.h"
#include "operators/op.h"

namespace walle {

namespace {

// A neighbour before the pixel in reading order, and its distance in 1/65536.
struct Neighbour {
  std::int64_t dx, dy;
  std::uint32_t far;
};

// Throw Error unless there is such a metric. `steps`: to a side, a corner, and a knight's move.
std::vector<Neighbour> neighbours(const std::string& metric, std::int64_t size) {
  std::array<double, 3> steps{};
  if (metric == "l1")
    steps = {1, 2, 3};
  else if (metric == "c")
    steps = {1, 1, 2};
  else if (metric == "l2")
    steps = size == 3 ? std::array{0.955, 1.3693, 0.0} : std::array{1.0, 1.4, 2.1969};
  else
    throw Error(ErrorKind::unsupported, "DistanceTransform has no metric '" + metric + "'; known are l1, l2 and c");
  const auto fixed = [](double step) { return static_cast<std::uint32_t>(std::lrint(static_cast<float>(step) * 65536.0F)); };
  const std::uint32_t side = fixed(steps[0]), corner = fixed(steps[1]), knight = fixed(steps[2]);
  std::vector<Neighbour> all{{-1, -1, corner}, {0, -1, side}, {1, -1, corner}, {-1, 0, side}};
  if (size == 5)
    for (const auto& [dx, dy] : {std::pair{-1, -2}, {1, -2}, {-2, -1}, {2, -1}}) all.push_back({dx, dy, knight});
  return all;
}

void by_mask(const std::uint8_t* image, float* out, std::int64_t height, std::int64_t width, const std::vector<Neighbour>& mask) {
  constexpr std::uint32_t far = std::numeric_limits<std::uint32_t>::max() / 2;
  constexpr std::int64_t edge = 2;
  const std::int64_t row = width + 2 * edge;
  WorkVector<std::uint32_t> least;
  fill_stoppable(least, static_cast<std::size_t>(row * (height + 2 * edge)), far);
  const auto at = [&](std::int64_t x, std::int64_t y) { return least.data() + (y + edge) * row + x + edge; };
  for (std::int64_t y = 0; y < height; ++y) {
    throw_if_stopped();
    for (std::int64_t x = 0; x < width; ++x) {
      std::uint32_t best = image[y * width + x] == 0 ? 0 : far;
      if (best != 0)
        for (const Neighbour& one : mask) best = std::min(best, at(x, y)[one.dy * row + one.dx] + one.far);
      *at(x, y) = std::min(best, far);
    }
  }
  for (std::int64_t y = height - 1; y >= 0; --y) {
    throw_if_stopped();
    for (std::int64_t x = width - 1; x >= 0; --x) {
      std::uint32_t best = *at(x, y);
      if (best != 0)
        for (const Neighbour& one : mask) best = std::min(best, at(x, y)[-one.dy * row - one.dx] + one.far);
      best = std::min(best, far);
      *at(x, y) = best;
      out[y * width + x] = best == far ? std::numeric_limits<float>::max() : static_cast<float>(best) * (1.0F / 65536.0F);
    }
  }
}

// Replace each value by the least of (distance along the line)^2 + value: the lower envelope of parabolas.
void lower_envelope(const double* values, double* out, std::int64_t count, WorkVector<std::int64_t>& tops,
                    WorkVector<double>& ends) {
  std::int64_t last = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) continue;
    double from = -std::numeric_limits<double>::infinity();
    while (last >= 0) {
      const std::int64_t top = tops[static_cast<std::size_t>(last)];
      const double squares = static_cast<double>(i * i - top * top);
      from = (values[i] - values[top] + squares) / (2.0 * static_cast<double>(i - top));
      if (from > ends[static_cast<std::size_t>(last)]) break;
      --last;
    }
    ++last;
    tops[static_cast<std::size_t>(last)] = i;
    ends[static_cast<std::size_t>(last)] = last == 0 ? -std::numeric_limits<double>::infinity() : from;
  }
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (last < 0) {
      out[i] = std::numeric_limits<double>::infinity();
      continue;
    }
    while (at < last && ends[static_cast<std::size_t>(at) + 1] < static_cast<double>(i)) ++at;
    const std::int64_t top = tops[static_cast<std::size_t>(at)];
    out[i] = static_cast<double>((i - top) * (i - top)) + values[top];
  }
}

float nearest(double square) {
  return std::isfinite(square) ? static_cast<float>(std::sqrt(square)) : std::numeric_limits<float>::max();
}

void exactly(const std::uint8_t* image, float* out, std::int64_t height, std::int64_t width) {
  const auto longest = static_cast<std::size_t>(std::max(height, width));
  WorkVector<double> squares, line(longest), result(longest), ends(longest);
  fill_stoppable(squares, static_cast<std::size_t>(height * width), 0.0);
  WorkVector<std::int64_t> tops(longest);
  for (std::int64_t x = 0; x < width; ++x) {
    throw_if_stopped();
    for (std::int64_t y = 0; y < height; ++y)
      line[static_cast<std::size_t>(y)] = image[y * width + x] == 0 ? 0 : std::numeric_limits<double>::infinity();
    lower_envelope(line.data(), result.data(), height, tops, ends);
    for (std::int64_t y = 0; y < height; ++y)
      squares[static_cast<std::size_t>(y * width + x)] = result[static_cast<std::size_t>(y)];
  }
  for (std::int64_t y = 0; y < height; ++y) {
    throw_if_stopped();
    lower_envelope(squares.data() + y * width, result.data(), width, tops, ends);
    for (std::int64_t x = 0; x < width; ++x) out[y * width + x] = nearest(result[static_cast<std::size_t>(x)]);
  }
}

}  // namespace

// Input: uint8 [height, width]. Attributes: metric ("l1", "l2", "c"), size of the mask (3, 5, or 0: exactly, l2 only). Result:
// float32 [height, width]; in an image without a 0 the greatest float32.
std::vector<Tensor> distance_transform(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const Tensor& image = inputs[0];
  const std::string metric = attributes.get_string("metric", "l2");
  const std::int64_t size = attributes.get_int("size", 3);
  if (image.dtype() != DType::u8 || image.ndim() != 2)
    throw Error(ErrorKind::shape, "DistanceTransform takes uint8 [height, width], not " + std::string(dtype_name(image.dtype())) +
                                      " of shape " + to_string(image.shape()));
  if ((size != 3 && size != 5 && size != 0) || (size == 0 && metric != "l2"))
    throw Error(ErrorKind::unsupported, "DistanceTransform with a mask of " + std::to_string(size) +
                                            "; use 3 or 5, or 0 for exact distances of metric l2");
  const std::int64_t height = image.shape()[0], width = image.shape()[1];
  Tensor result = Tensor::empty(DType::f32, image.shape());
  if (size == 0)
    exactly(image.data<std::uint8_t>(), result.data<float>(), height, width);
  else
    by_mask(image.data<std::uint8_t>(), result.data<float>(), height, width, neighbours(metric, size));
  return {result};
}

}  // namespace walle
