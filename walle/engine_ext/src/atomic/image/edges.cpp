// CannyEdges: edge pixels of int16 gradients, by magnitude, non-maximum suppression and hysteresis.
// ConnectedComponents: labels of the connected areas of non-zero pixels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

class CannyStep final : public HostStep {
 public:
  explicit CannyStep(const StepRequest& request)
      : input_(image_shape("CannyEdges", request.inputs[0].shape)), images_(request.table.image) {
    squared_ = request.attributes.get_int("squared", 0) != 0;
    const auto bound = [&](const char* name) {
      double value = request.attributes.get_float(name, 0);
      if (squared_) value = std::min(32767.0, value) * std::max(0.0, std::min(32767.0, value));
      return static_cast<std::int32_t>(std::clamp(std::floor(value), -2147483648.0, 2147483647.0));
    };
    low_ = bound("low");
    high_ = bound("high");
    row_bytes_ = cache_aligned(static_cast<std::size_t>(input_.width + 2) * 4);
    const std::size_t gradient = cache_aligned(static_cast<std::size_t>(input_.pixels()) * 2);
    // Scratch: magnitudes of three rows, of one row of all channels, the gradients of the strongest channel, the edge map, and
    // the stack of the hysteresis.
    channels_offset_ = 3 * row_bytes_;
    gradients_offset_ = channels_offset_ + cache_aligned(static_cast<std::size_t>(input_.row()) * 4);
    map_offset_ = gradients_offset_ + (input_.channels > 1 ? 2 * gradient : 0);
    map_bytes_ = cache_aligned(static_cast<std::size_t>((input_.width + 2) * (input_.height + 2)));
    stack_offset_ = map_offset_ + map_bytes_;
    scratch_bytes_ = stack_offset_ + static_cast<std::size_t>(input_.pixels()) * 4;
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto* dx = reinterpret_cast<const std::int16_t*>(inputs[0]);
    const auto* dy = reinterpret_cast<const std::int16_t*>(inputs[1]);
    auto* out = reinterpret_cast<std::uint8_t*>(output);
    const std::int64_t width = input_.width, height = input_.height;
    std::memset(scratch, 0, 3 * row_bytes_);
    const auto row = [&](std::int64_t y) {
      return reinterpret_cast<std::int32_t*>(scratch + static_cast<std::size_t>((y + 3) % 3) * row_bytes_) + 1;
    };
    auto* chosen_x = reinterpret_cast<std::int16_t*>(scratch + gradients_offset_);
    auto* chosen_y = chosen_x + cache_aligned(static_cast<std::size_t>(input_.pixels()) * 2) / 2;
    const bool single_channel = input_.channels == 1;
    auto* map = reinterpret_cast<std::uint8_t*>(scratch + map_offset_);
    StopPoll poll;
    run_in_blocks(static_cast<std::int64_t>(map_bytes_), 1, poll, [&](std::int64_t first, std::int64_t last) {
      std::memset(map + first, 0, static_cast<std::size_t>(last - first));
    });
    for (std::int64_t y = 0; y <= height; ++y) {
      if (!poll.proceed(2 * input_.row())) return;
      if (y < height)
        magnitudes(dx + y * input_.row(), dy + y * input_.row(), row(y), chosen_x + y * width, chosen_y + y * width, scratch);
      else
        std::fill(row(y), row(y) + width, 0);
      if (y == 0) continue;
      const std::int64_t start = (y - 1) * width;
      images_->thin((single_channel ? dx : chosen_x) + start, (single_channel ? dy : chosen_y) + start, row(y - 2), row(y - 1),
                    row(y), low_, high_, map + y * (width + 2) + 1, width);
    }
    apply_hysteresis(map, reinterpret_cast<std::int32_t*>(scratch + stack_offset_), poll);
    for (std::int64_t y = 0; y < height && poll.proceed(width); ++y, out += width) {
      const std::uint8_t* marks = map + (y + 1) * (width + 2) + 1;
      for (std::int64_t x = 0; x < width; ++x) out[x] = static_cast<std::uint8_t>(-(marks[x] >> 1));
    }
  }

 private:
  // Computes the magnitudes of a row. Of several channels the one with the greatest magnitude is used.
  void magnitudes(const std::int16_t* dx, const std::int16_t* dy, std::int32_t* result, std::int16_t* chosen_x,
                  std::int16_t* chosen_y, std::byte* scratch) const noexcept {
    if (input_.channels == 1) return images_->magnitude(dx, dy, squared_, result, input_.width);
    auto* all_channels = reinterpret_cast<std::int32_t*>(scratch + channels_offset_);
    images_->magnitude(dx, dy, squared_, all_channels, input_.row());
    for (std::int64_t x = 0; x < input_.width; ++x) {
      std::int64_t best = x * input_.channels;
      for (std::int64_t c = best + 1; c < (x + 1) * input_.channels; ++c)
        if (all_channels[c] > all_channels[best]) best = c;
      result[x] = all_channels[best];
      chosen_x[x] = dx[best];
      chosen_y[x] = dy[best];
    }
  }

  // Hysteresis: marks the weak pixels (1) that are connected to strong ones (2) with 3. The map has a margin of non-edge pixels,
  // so that every pixel has eight neighbours.
  void apply_hysteresis(std::uint8_t* map, std::int32_t* stack, StopPoll& poll) const noexcept {
    const std::int64_t stride = input_.width + 2, pixels = stride * (input_.height + 2);
    const std::int64_t neighbours[8] = {-stride - 1, -stride, -stride + 1, -1, 1, stride - 1, stride, stride + 1};
    std::int64_t depth = 0;
    const auto visit = [&](std::int64_t pixel) {
      for (const std::int64_t offset : neighbours)
        if (map[pixel + offset] == 1) {
          map[pixel + offset] = 3;
          stack[depth++] = static_cast<std::int32_t>(pixel + offset);
        }
    };
    constexpr std::int64_t kWord = 8;
    for (std::int64_t start = 0; start < pixels && poll.proceed(kWord); start += kWord) {
      std::uint64_t word;  // the map is padded to whole words
      std::memcpy(&word, map + start, kWord);
      if ((word & 0x0202020202020202ull) == 0) continue;
      for (std::int64_t i = start; i < start + kWord; ++i) {
        if (map[i] != 2) continue;
        visit(i);
        while (depth > 0 && poll.proceed(8)) visit(stack[--depth]);
        if (poll.stopped()) return;
      }
    }
  }

  ImageShape input_;
  const ImageTable* images_;
  bool squared_ = false;
  std::int32_t low_ = 0, high_ = 0;
  std::size_t row_bytes_ = 0, channels_offset_ = 0, gradients_offset_ = 0, map_offset_ = 0, map_bytes_ = 0, stack_offset_ = 0;
};

// Two passes: provisional labels joined by union-find, then final labels in order of first appearance.
class ComponentsStep final : public HostStep {
 public:
  explicit ComponentsStep(const StepRequest& request)
      : input_(image_shape("ConnectedComponents", request.inputs[0].shape)),
        eight_(request.attributes.get_int("connectivity", 8) == 8) {
    scratch_bytes_ = (static_cast<std::size_t>(input_.pixels()) / 2 + 2 + static_cast<std::size_t>(input_.width)) * 4;
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto* in = reinterpret_cast<const std::uint8_t*>(inputs[0]);
    auto* labels = reinterpret_cast<std::int32_t*>(output);
    auto* parent = reinterpret_cast<std::int32_t*>(scratch);
    const std::int64_t width = input_.width;
    const auto root = [&](std::int32_t label) {
      while (parent[label] != label) label = parent[label] = parent[parent[label]];
      return label;
    };
    const auto join = [&](std::int32_t a, std::int32_t b) {
      const std::int32_t x = root(a), y = root(b);
      parent[std::max(x, y)] = std::min(x, y);
      return std::min(x, y);
    };
    std::int32_t next = 1;
    parent[0] = 0;
    StopPoll poll;
    for (std::int64_t y = 0; y < input_.height && poll.proceed(4 * width); ++y)
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t pixel = y * width + x;
        std::int32_t label = 0;
        if (in[pixel] != 0) {
          const auto merge = [&](std::int32_t other) {
            if (other != 0 && other != label) label = label == 0 ? other : join(label, other);
          };
          if (y > 0) merge(labels[pixel - width]);
          if (x > 0) merge(labels[pixel - 1]);
          if (eight_ && y > 0 && x > 0) merge(labels[pixel - width - 1]);
          if (eight_ && y > 0 && x + 1 < width) merge(labels[pixel - width + 1]);
          if (label == 0) {
            label = next++;
            parent[label] = label;
          }
        }
        labels[pixel] = label;
      }
    if (poll.stopped()) return;  // labels were not all written
    std::int32_t count = 0;
    run_in_blocks(next, 2, poll, [=, &count](std::int64_t first, std::int64_t last) {
      for (std::int64_t label = std::max<std::int64_t>(first, 1); label < last; ++label)
        // A parent is less than its child, so it has its final label already.
        parent[label] = parent[label] == label ? ++count : parent[parent[label]];
    });
    run_in_blocks(input_.pixels(), 1, poll, [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) labels[i] = parent[labels[i]];
    });
  }

 private:
  ImageShape input_;
  bool eight_;
};

}  // namespace

// Operands: the derivatives along x and along y, int16. Attributes: low, high, squared (Euclidean magnitude).
TensorType infer_canny_edges(std::span<const Operand> operands, const Attributes& attributes) {
  const ImageShape shape = image_shape("CannyEdges", operands[0].shape);
  if (operands[0].dtype != DType::i16 || operands[1].dtype != DType::i16 || operands[0].shape != operands[1].shape)
    throw Error(ErrorKind::dtype, "CannyEdges takes two int16 gradients of the same shape");
  if (shape.pixels() > (std::int64_t{1} << 31) - 1)
    throw Error(ErrorKind::shape, "CannyEdges of an image of more than 2^31 - 1 pixels");
  if (!std::isfinite(attributes.get_float("low", 0)) || !std::isfinite(attributes.get_float("high", 0)))
    throw Error(ErrorKind::model, "CannyEdges: low and high must be finite");
  return {DType::u8, {shape.height, shape.width}};
}
std::unique_ptr<HostStep> make_canny_edges(const StepRequest& request) { return std::make_unique<CannyStep>(request); }

TensorType infer_connected_components(std::span<const Operand> operands, const Attributes& attributes) {
  const ImageShape shape = image_shape("ConnectedComponents", operands[0].shape);
  const std::int64_t connectivity = attributes.get_int("connectivity", 8);
  if (operands[0].dtype != DType::u8 || shape.channels != 1 || (connectivity != 4 && connectivity != 8))
    throw Error(ErrorKind::shape, "ConnectedComponents takes one channel of uint8 and a connectivity of 4 or 8");
  if (shape.pixels() > (std::int64_t{1} << 31) - 1)
    throw Error(ErrorKind::shape, "ConnectedComponents of an image of more than 2^31 - 1 pixels");
  return {DType::i32, {shape.height, shape.width}};
}
std::unique_ptr<HostStep> make_connected_components(const StepRequest& request) {
  return std::make_unique<ComponentsStep>(request);
}

}  // namespace walle
