// BilateralFilter: the mean of a disc about every pixel, weighted by distance in place and in colour.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "atomic/image/image.h"

namespace walle {

namespace {

class BilateralStep final : public Step {
 public:
  explicit BilateralStep(const StepRequest& request)
      : from_(image_shape("BilateralFilter", request.inputs[0].shape)), images_(request.table.image) {
    const Attributes& attributes = request.attributes;
    pixel_ = pixel_index("BilateralFilter", request.result.dtype);
    const double colour = attributes.get_float("sigma_color", 1), space = attributes.get_float("sigma_space", 1);
    border_ = border_of("BilateralFilter", attributes);
    reach_ = attributes.get_int("radius", 1);
    stride_ = static_cast<std::int64_t>(lines(static_cast<std::size_t>(from_.width + 2 * reach_) * 4)) / 4;
    for (std::int64_t y = -reach_; y <= reach_; ++y)
      for (std::int64_t x = -reach_; x <= reach_; ++x) {
        const double far = std::sqrt(static_cast<double>(y * y + x * x));
        if (far > static_cast<double>(reach_)) continue;
        offsets_.push_back(y * stride_ + x);
        weights_.push_back(static_cast<float>(std::exp(-far * far / (2 * space * space))));
      }
    // Differences of bytes are whole numbers; those of floats are looked up in fine steps, up to where the weight is nothing.
    const double last = pixel_ == 0 ? 255.0 * static_cast<double>(from_.channels) : 8.6 * colour;
    entries_ = pixel_ == 0 ? static_cast<std::int32_t>(last) : 1 << 16;
    tone_scale_ = pixel_ == 0 ? 1.0f : static_cast<float>(entries_ / last);
    for (std::int32_t i = 0; i <= entries_; ++i) {
      const double far = (i + (pixel_ == 0 ? 0.0 : 0.5)) / static_cast<double>(tone_scale_);
      tones_.push_back(static_cast<float>(std::exp(-far * far / (2 * colour * colour))));
    }
    plane_ = (from_.height + 2 * reach_) * stride_;
    const auto channels = static_cast<std::size_t>(from_.channels);
    scratch_bytes_ = channels * (static_cast<std::size_t>(plane_) + static_cast<std::size_t>(stride_)) * sizeof(float);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    auto* planes = reinterpret_cast<float*>(scratch);
    const std::int64_t channels = from_.channels;
    float *rows[4], *result[4];
    const float* packed[4];
    const float* at[4];
    const std::size_t row_bytes = static_cast<std::size_t>(from_.row()) * (pixel_ == 0 ? 1 : pixel_ == 1 ? 2 : 4);
    for (std::int64_t y = -reach_; y < from_.height + reach_; ++y) {
      const std::int64_t from = border_source(border_, y, from_.height);
      for (std::int64_t c = 0; c < channels; ++c) {
        rows[c] = planes + c * plane_ + (y + reach_) * stride_ + reach_;
        if (from < 0) std::fill(rows[c] - reach_, rows[c] + from_.width + reach_, 0.0f);
      }
      if (from < 0) continue;
      images_->unpack[pixel_](inputs[0] + static_cast<std::size_t>(from) * row_bytes, static_cast<int>(channels), rows,
                              from_.width);
      for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t k = 0; k < reach_; ++k) {
          const std::int64_t before = border_source(border_, k - reach_, from_.width),
                             after = border_source(border_, from_.width + k, from_.width);
          rows[c][k - reach_] = before < 0 ? 0.0f : rows[c][before];
          rows[c][from_.width + k] = after < 0 ? 0.0f : rows[c][after];
        }
    }
    for (std::int64_t c = 0; c < channels; ++c) packed[c] = result[c] = planes + channels * plane_ + c * stride_;
    for (std::int64_t y = 0; y < from_.height; ++y, output += row_bytes) {
      for (std::int64_t c = 0; c < channels; ++c) at[c] = planes + c * plane_ + (y + reach_) * stride_ + reach_;
      images_->bilateral({at, static_cast<int>(channels), offsets_.data(), weights_.data(), static_cast<int>(offsets_.size()),
                          tones_.data(), tone_scale_, entries_},
                         result, from_.width);
      images_->pack[pixel_](packed, static_cast<int>(channels), output, from_.width);
    }
  }

 private:
  ImageShape from_;
  const ImageTable* images_;
  std::size_t pixel_;
  Border border_;
  std::int64_t reach_ = 1, stride_ = 0, plane_ = 0;
  std::vector<std::int64_t> offsets_;
  std::vector<float> weights_, tones_;
  std::int32_t entries_ = 0;
  float tone_scale_ = 1;
};

}  // namespace

// Attributes: radius, sigma_color, sigma_space, border. One or three channels of uint8 or float32.
TensorType infer_bilateral_filter(std::span<const Operand> operands, const Attributes& attributes) {
  const ImageShape shape = image_shape("BilateralFilter", operands[0].shape);
  if ((shape.channels != 1 && shape.channels != 3) || pixel_index("BilateralFilter", operands[0].dtype) == 1)
    throw Error(ErrorKind::shape,
                "BilateralFilter takes one or three channels of uint8 or float32, not " + to_string(operands[0].shape));
  const std::int64_t radius = attributes.get_int("radius", 1);
  if (radius < 1 || radius > 256) throw Error(ErrorKind::model, "BilateralFilter with a radius of " + std::to_string(radius));
  if (!(attributes.get_float("sigma_color", 1) > 0) || !(attributes.get_float("sigma_space", 1) > 0))
    throw Error(ErrorKind::model, "BilateralFilter needs sigmas greater than 0");
  if (border_of("BilateralFilter", attributes) == Border::transparent)
    throw Error(ErrorKind::unsupported, "BilateralFilter with a transparent border");
  return {operands[0].dtype, operands[0].shape};
}
std::unique_ptr<Step> make_bilateral_filter(const StepRequest& request) { return std::make_unique<BilateralStep>(request); }

}  // namespace walle
