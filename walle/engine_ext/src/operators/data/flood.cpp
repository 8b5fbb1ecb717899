// FloodRegion: the pixels that are connected to a seed through pixels of nearly its colour.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/stop.h"
#include "core/work_vector.h"
#include "operators/data/data.h"

namespace walle {

// Inputs: an image [height, width, channels]; uint8 [height, width], whose pixels that are not 0 are closed. Attributes: x, y
// (the seed), low and high (for each channel: how far a pixel may be below and above), fixed (compared with the seed; else with
// the neighbour that was reached before), eight (neighbours, else four). Result: uint8 [height, width], 1 in the region.
std::vector<Tensor> flood_region(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const Tensor &image = inputs[0], &closed = inputs[1];
  if (image.ndim() != 3 || closed.ndim() != 2 || closed.dtype() != DType::u8 || closed.shape()[0] != image.shape()[0] ||
      closed.shape()[1] != image.shape()[1])
    throw Error(ErrorKind::shape, "FloodRegion takes an image [height, width, channels] and uint8 [height, width]");
  const std::int64_t height = image.shape()[0], width = image.shape()[1], channels = image.shape()[2];
  const std::int64_t x = attributes.get_int("x", 0), y = attributes.get_int("y", 0);
  const std::vector<double> low = attributes.get_floats("low").value_or(std::vector<double>{});
  const std::vector<double> high = attributes.get_floats("high").value_or(std::vector<double>{});
  if (x < 0 || x >= width || y < 0 || y >= height)
    throw Error(ErrorKind::shape, "FloodRegion from (" + std::to_string(x) + ", " + std::to_string(y) + "), outside the image");
  if (static_cast<std::int64_t>(low.size()) < channels || static_cast<std::int64_t>(high.size()) < channels)
    throw Error(ErrorKind::model, "FloodRegion needs low and high for each channel");
  const bool fixed = attributes.get_int("fixed", 0) != 0;
  const std::int64_t directions = attributes.get_int("eight", 0) != 0 ? 8 : 4;
  Tensor result = Tensor::empty(DType::u8, closed.shape());
  auto* reached = result.data<std::uint8_t>();
  run_stoppable(height * width, 1,
                [&](std::int64_t first, std::int64_t last) { std::fill(reached + first, reached + last, std::uint8_t{0}); });
  const auto* shut = closed.data<std::uint8_t>();
  const std::int64_t seed = y * width + x;
  if (shut[seed] != 0) return {result};
  with_elements(image, [&](const auto* pixels) {
    const auto near = [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const double base = static_cast<double>(pixels[from * channels + c]),
                     own = static_cast<double>(pixels[to * channels + c]);
        if (!(own >= base - low[static_cast<std::size_t>(c)] && own <= base + high[static_cast<std::size_t>(c)])) return false;
      }
      return true;
    };
    constexpr std::int64_t dx[] = {1, -1, 0, 0, 1, 1, -1, -1}, dy[] = {0, 0, 1, -1, 1, -1, 1, -1};
    WorkVector<std::int64_t> open{seed};
    reached[seed] = 1;
    for (std::int64_t taken = 0; !open.empty(); ++taken) {
      if (taken % 65536 == 0) throw_if_stopped();
      const std::int64_t here = open.back();
      open.pop_back();
      for (std::int64_t way = 0; way < directions; ++way) {
        const std::int64_t to_x = here % width + dx[way], to_y = here / width + dy[way], there = to_y * width + to_x;
        if (to_x < 0 || to_x >= width || to_y < 0 || to_y >= height || reached[there] != 0 || shut[there] != 0) continue;
        if (!near(fixed ? seed : here, there)) continue;
        reached[there] = 1;
        open.push_back(there);
      }
    }
  });
  return {result};
}

}  // namespace walle
