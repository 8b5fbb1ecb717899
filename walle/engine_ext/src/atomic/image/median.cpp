// MedianFilter: the median of a square window around every pixel.
#include <algorithm>
#include <cstring>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

// Windows of 3 and 5: the padded rows in a ring, their columns sorted, then the median of each window.
class SmallMedianStep final : public HostStep {
 public:
  explicit SmallMedianStep(const StepRequest& request)
      : input_(image_shape("MedianFilter", request.inputs[0].shape)), size_(request.attributes.get_int("size", 3)) {
    const std::size_t index = signed_pixel_index("MedianFilter", request.result.dtype);
    const ImageTable& images = *request.table.image;
    sort_ = size_ == 3 ? images.sort3[index] : images.sort5[index];
    kernel_ = size_ == 3 ? images.median9[index] : images.median25[index];
    item_ = item_size(request.result.dtype);
    frame_ = {Border::replicate, input_.width, size_ / 2, size_ / 2, static_cast<std::size_t>(input_.channels) * item_};
    ring_bytes_ = cache_aligned(frame_.bytes());
    scratch_bytes_ = static_cast<std::size_t>(2 * size_) * ring_bytes_;
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::size_t row_bytes = static_cast<std::size_t>(input_.row()) * item_;
    std::int64_t slot_rows[5] = {-9, -9, -9, -9, -9};
    const void *rows[5], *taps[25];
    void* ranks[5];
    for (std::int64_t t = 0; t < size_; ++t) {
      std::byte* rank = scratch + static_cast<std::size_t>(size_ + t) * ring_bytes_;
      ranks[t] = rank;
      for (std::int64_t k = 0; k < size_; ++k) taps[t * size_ + k] = rank + static_cast<std::size_t>(k) * frame_.pixel;
    }
    StopPoll poll;
    for (std::int64_t y = 0; y < input_.height; ++y, output += row_bytes) {
      if (!poll.proceed(input_.row() * size_)) return;
      for (std::int64_t t = 0; t < size_; ++t) {
        const std::int64_t image_row = y + t - size_ / 2, slot = (image_row + size_) % size_;
        std::byte* row = scratch + static_cast<std::size_t>(slot) * ring_bytes_;
        rows[t] = row;
        if (slot_rows[slot] == image_row) continue;
        slot_rows[slot] = image_row;
        const std::int64_t source = border_source(Border::replicate, image_row, input_.height);
        frame_.make(inputs[0] + static_cast<std::size_t>(source) * row_bytes, nullptr, row);
      }
      sort_(rows, ranks, static_cast<std::int64_t>(frame_.bytes() / item_));
      kernel_(taps, output, input_.row());
    }
  }

 private:
  ImageShape input_;
  std::int64_t size_;
  SortRowsFn sort_;
  MedianFn kernel_;
  RowFrame frame_;
  std::size_t item_ = 1, ring_bytes_ = 0;
};

// Windows of any size on bytes: column histograms slide down and the window's histogram slides along the row (the methods of
// Huang and of Perreault combined). A histogram has 16 coarse bins over 256 fine ones.
class HistogramMedianStep final : public HostStep {
 public:
  explicit HistogramMedianStep(const StepRequest& request)
      : input_(image_shape("MedianFilter", request.inputs[0].shape)), radius_(request.attributes.get_int("size", 3) / 2) {
    scratch_bytes_ = static_cast<std::size_t>(input_.width) * sizeof(Histogram);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    for (std::int64_t c = 0; c < input_.channels; ++c)
      run_channel(reinterpret_cast<const std::uint8_t*>(inputs[0]) + c, reinterpret_cast<std::uint8_t*>(output) + c,
                  reinterpret_cast<Histogram*>(scratch));
  }

 private:
  static constexpr std::int64_t kPixelWork = 64;  // in elements of other loops

  struct Histogram {
    std::uint16_t coarse[16], fine[256];

    void count(std::uint8_t value, std::uint16_t change) noexcept {
      coarse[value >> 4] = static_cast<std::uint16_t>(coarse[value >> 4] + change);
      fine[value] = static_cast<std::uint16_t>(fine[value] + change);
    }
  };

  void run_channel(const std::uint8_t* in, std::uint8_t* out, Histogram* columns) const noexcept {
    const std::int64_t width = input_.width, height = input_.height, pixel = input_.channels, row = input_.row();
    const auto clamp = [](std::int64_t index, std::int64_t size) { return std::clamp<std::int64_t>(index, 0, size - 1); };
    constexpr std::uint16_t minus = 0xffff;
    std::memset(columns, 0, static_cast<std::size_t>(width) * sizeof(Histogram));
    for (std::int64_t t = -radius_ - 1; t < radius_; ++t)
      for (std::int64_t x = 0; x < width; ++x) columns[x].count(in[clamp(t, height) * row + x * pixel], 1);
    const std::uint32_t half = static_cast<std::uint32_t>((2 * radius_ + 1) * (2 * radius_ + 1) / 2);
    StopPoll poll;
    for (std::int64_t y = 0; y < height; ++y) {
      if (!poll.proceed(width * kPixelWork)) return;
      const std::uint8_t *leaves = in + clamp(y - radius_ - 1, height) * row, *enters = in + clamp(y + radius_, height) * row;
      for (std::int64_t x = 0; x < width; ++x) {
        columns[x].count(leaves[x * pixel], minus);
        columns[x].count(enters[x * pixel], 1);
      }
      std::uint32_t coarse[16] = {}, fine[16][16] = {};
      std::int64_t updated[16];  // column at which the fine bins of each coarse bin were last updated
      std::fill(updated, updated + 16, -radius_ - 1);
      for (std::int64_t t = -radius_ - 1; t < radius_; ++t)
        for (int k = 0; k < 16; ++k) coarse[k] += columns[clamp(t, width)].coarse[k];
      for (std::int64_t x = 0; x < width; ++x) {
        const Histogram &leaving = columns[clamp(x - radius_ - 1, width)], &entering = columns[clamp(x + radius_, width)];
        for (int k = 0; k < 16; ++k) coarse[k] += std::uint32_t{entering.coarse[k]} - leaving.coarse[k];
        std::uint32_t below = 0;
        int bin = 0;
        while (below + coarse[bin] <= half) below += coarse[bin++];
        std::uint32_t* part = fine[bin];
        if (x - updated[bin] > radius_) {  // too far to update step by step
          std::fill(part, part + 16, 0u);
          for (std::int64_t t = x - radius_; t <= x + radius_; ++t)
            for (int k = 0; k < 16; ++k) part[k] += columns[clamp(t, width)].fine[bin * 16 + k];
        } else {
          for (std::int64_t t = updated[bin] + 1; t <= x; ++t) {
            const Histogram &left = columns[clamp(t - radius_ - 1, width)], &right = columns[clamp(t + radius_, width)];
            for (int k = 0; k < 16; ++k) part[k] += std::uint32_t{right.fine[bin * 16 + k]} - left.fine[bin * 16 + k];
          }
        }
        updated[bin] = x;
        int k = 0;
        while (below + part[k] <= half) below += part[k++];
        out[y * row + x * pixel] = static_cast<std::uint8_t>(bin * 16 + k);
      }
    }
  }

  ImageShape input_;
  std::int64_t radius_;
};

}  // namespace

// Attribute: size, odd; sizes above 5 for uint8 only.
TensorType infer_median_filter(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("MedianFilter", operands[0].shape);
  signed_pixel_index("MedianFilter", operands[0].dtype);
  const std::int64_t size = attributes.get_int("size", 3);
  if (size < 3 || size % 2 == 0 || size > 255)
    throw Error(ErrorKind::model, "MedianFilter: size " + std::to_string(size) + " is not an odd number in 3 to 255");
  if (size > 5 && operands[0].dtype != DType::u8)
    throw Error(ErrorKind::dtype,
                "MedianFilter with a size above 5 takes uint8, not " + std::string(dtype_name(operands[0].dtype)));
  return {operands[0].dtype, operands[0].shape};
}
std::unique_ptr<HostStep> make_median_filter(const StepRequest& request) {
  if (request.attributes.get_int("size", 3) <= 5) return std::make_unique<SmallMedianStep>(request);
  return std::make_unique<HistogramMedianStep>(request);
}

}  // namespace walle
