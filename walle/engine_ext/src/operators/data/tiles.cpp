// EqualizeTiles: contrast-limited adaptive histogram equalization (Zuiderveld, 1994).
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/stop.h"
#include "operators/op.h"

namespace walle {

namespace {

constexpr std::int64_t kTones = 256;

// Write the tones that equalize the histogram of a tile; no tone counts more than `bound` (0: any number).
void equalizing_tones(std::vector<std::int64_t>& counts, std::int64_t pixels, std::int64_t bound, std::uint8_t* tones) {
  if (bound > 0) {
    std::int64_t cut = 0;
    for (std::int64_t& count : counts)
      if (count > bound) cut += count - bound, count = bound;
    const std::int64_t each = cut / kTones, rest = cut - each * kTones;
    for (std::int64_t& count : counts) count += each;
    if (rest > 0) {
      const std::int64_t step = std::max<std::int64_t>(kTones / rest, 1);
      std::int64_t left = rest;
      for (std::int64_t tone = 0; tone < kTones && left > 0; tone += step, --left) ++counts[static_cast<std::size_t>(tone)];
    }
  }
  const float scale = static_cast<float>(kTones - 1) / static_cast<float>(pixels);
  std::int64_t below = 0;
  for (std::int64_t tone = 0; tone < kTones; ++tone) {
    below += counts[static_cast<std::size_t>(tone)];
    tones[tone] = static_cast<std::uint8_t>(std::clamp(std::lrint(static_cast<float>(below) * scale), 0L, 255L));
  }
}

// Tiles before and after a pixel, and the share of the one after.
struct Between {
  std::int64_t before, after;
  float share;
};

Between between(std::int64_t at, std::int64_t size, std::int64_t tiles) {
  const float middle = static_cast<float>(at) * (1.0F / static_cast<float>(size)) - 0.5F;
  const auto first = static_cast<std::int64_t>(std::floor(middle));  // float32 rounds up past the last tile of a wide image
  return {std::clamp<std::int64_t>(first, 0, tiles - 1), std::min(first + 1, tiles - 1), middle - static_cast<float>(first)};
}

}  // namespace

// Inputs: uint8 [height, width], and the same with borders that make its size a multiple of the tiles'. Attributes: rows, columns
// (tiles), limit (of a tone's count, in parts of the mean; 0: none). Result: uint8 [height, width].
std::vector<Tensor> equalize_tiles(std::span<const Tensor> inputs, const Attributes& attributes, int) {
  const Tensor &image = inputs[0], &padded = inputs[1];
  const std::int64_t rows = attributes.get_int("rows", 8), columns = attributes.get_int("columns", 8);
  const double limit = attributes.get_float("limit", 0);
  if (image.dtype() != DType::u8 || image.ndim() != 2 || padded.dtype() != DType::u8 || padded.ndim() != 2)
    throw Error(ErrorKind::shape, "EqualizeTiles takes uint8 [height, width], not " + std::string(dtype_name(image.dtype())) +
                                      " of shape " + to_string(image.shape()));
  const std::int64_t height = image.shape()[0], width = image.shape()[1];
  if (rows < 1 || columns < 1 || padded.shape()[0] < height || padded.shape()[1] < width || padded.shape()[0] % rows != 0 ||
      padded.shape()[1] % columns != 0 || padded.size() == 0)
    throw Error(ErrorKind::shape, "EqualizeTiles of " + to_string(padded.shape()) + " in " + std::to_string(rows) + " by " +
                                      std::to_string(columns) + " tiles; the size must be a multiple of theirs");
  if (!std::isfinite(limit) || limit < 0) throw Error(ErrorKind::model, "EqualizeTiles: the limit must be 0 or more");
  const std::int64_t tile_height = padded.shape()[0] / rows, tile_width = padded.shape()[1] / columns;
  const std::int64_t pixels = tile_height * tile_width;
  const double counted = std::min(limit * static_cast<double>(pixels) / kTones, static_cast<double>(pixels));
  const std::int64_t bound = limit > 0 ? std::max<std::int64_t>(static_cast<std::int64_t>(counted), 1) : 0;
  const Tensor tone_table = Tensor::empty(DType::u8, {rows * columns, kTones});  // counts as the task's memory
  auto* tones = tone_table.data<std::uint8_t>();
  std::vector<std::int64_t> counts(kTones);
  StopPoll poll;
  for (std::int64_t tile = 0; tile < rows * columns; ++tile) {
    const auto* at = padded.data<std::uint8_t>() + tile / columns * tile_height * padded.shape()[1] + tile % columns * tile_width;
    std::fill(counts.begin(), counts.end(), 0);
    for (std::int64_t y = 0; y < tile_height; ++y) {
      if (!poll.proceed(kTones + 2 * tile_width)) throw_if_stopped();
      for (std::int64_t x = 0; x < tile_width; ++x) ++counts[at[y * padded.shape()[1] + x]];
    }
    equalizing_tones(counts, pixels, bound, tones + tile * kTones);
  }
  std::vector<Between> across;
  for (std::int64_t x = 0; x < width; ++x) across.push_back(between(x, tile_width, columns));
  Tensor result = Tensor::empty(DType::u8, image.shape());
  const auto* from = image.data<std::uint8_t>();
  auto* to = result.data<std::uint8_t>();
  for (std::int64_t y = 0; y < height; ++y) {
    throw_if_stopped();
    const Between down = between(y, tile_height, rows);
    const auto* above = tones + down.before * columns * kTones;
    const auto* below = tones + down.after * columns * kTones;
    for (std::int64_t x = 0; x < width; ++x) {
      const Between& side = across[static_cast<std::size_t>(x)];
      const std::int64_t tone = from[y * width + x], left = side.before * kTones + tone, right = side.after * kTones + tone;
      const auto mixed = [&](const std::uint8_t* tile_row) {
        return static_cast<float>(tile_row[left]) * (1 - side.share) + static_cast<float>(tile_row[right]) * side.share;
      };
      const float value = mixed(above) * (1 - down.share) + mixed(below) * down.share;
      to[y * width + x] = static_cast<std::uint8_t>(std::clamp(std::lrintf(value), 0L, 255L));
    }
  }
  return {result};
}

}  // namespace walle
