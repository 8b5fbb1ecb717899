// BilateralFilter: the mean over a disc around every pixel, weighted by distance in space and in colour.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

class BilateralStep final : public HostStep {
 public:
  explicit BilateralStep(const StepRequest& request)
      : input_(image_shape("BilateralFilter", request.inputs[0].shape)), images_(request.table.image) {
    const Attributes& attributes = request.attributes;
    pixel_ = pixel_index("BilateralFilter", request.result.dtype);
    const double sigma_color = attributes.get_float("sigma_color", 1), sigma_space = attributes.get_float("sigma_space", 1);
    border_ = border_of("BilateralFilter", attributes);
    radius_ = attributes.get_int("radius", 1);
    stride_ = static_cast<std::int64_t>(cache_aligned(static_cast<std::size_t>(input_.width + 2 * radius_) * 4)) / 4;
    for (std::int64_t y = -radius_; y <= radius_; ++y)
      for (std::int64_t x = -radius_; x <= radius_; ++x) {
        const double distance = std::sqrt(static_cast<double>(y * y + x * x));
        if (distance > static_cast<double>(radius_)) continue;
        offsets_.push_back(y * stride_ + x);
        weights_.push_back(static_cast<float>(std::exp(-distance * distance / (2 * sigma_space * sigma_space))));
      }
    // Weights by colour difference: a table over the integers for bytes, in fine steps up to a negligible weight for floats.
    const double last = pixel_ == 0 ? 255.0 * static_cast<double>(input_.channels) : 8.6 * sigma_color;
    entries_ = pixel_ == 0 ? static_cast<std::int32_t>(last) : 1 << 16;
    tone_scale_ = pixel_ == 0 ? 1.0f : static_cast<float>(entries_ / last);
    for (std::int32_t i = 0; i <= entries_; ++i) {
      const double difference = (i + (pixel_ == 0 ? 0.0 : 0.5)) / static_cast<double>(tone_scale_);
      tones_.push_back(static_cast<float>(std::exp(-difference * difference / (2 * sigma_color * sigma_color))));
    }
    plane_ = (input_.height + 2 * radius_) * stride_;
    const auto channels = static_cast<std::size_t>(input_.channels);
    scratch_bytes_ = channels * (static_cast<std::size_t>(plane_) + static_cast<std::size_t>(stride_)) * sizeof(float);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    auto* planes = reinterpret_cast<float*>(scratch);
    const std::int64_t channels = input_.channels;
    float *rows[4], *result[4];
    const float* packed[4];
    const float* centres[4];
    const std::size_t row_bytes = static_cast<std::size_t>(input_.row()) * (pixel_ == 0 ? 1 : pixel_ == 1 ? 2 : 4);
    for (std::int64_t y = -radius_; y < input_.height + radius_; ++y) {
      const std::int64_t source = border_source(border_, y, input_.height);
      for (std::int64_t c = 0; c < channels; ++c) {
        rows[c] = planes + c * plane_ + (y + radius_) * stride_ + radius_;
        if (source < 0) std::fill(rows[c] - radius_, rows[c] + input_.width + radius_, 0.0f);
      }
      if (source < 0) continue;
      images_->unpack[pixel_](inputs[0] + static_cast<std::size_t>(source) * row_bytes, static_cast<int>(channels), rows,
                              input_.width);
      for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t k = 0; k < radius_; ++k) {
          const std::int64_t before = border_source(border_, k - radius_, input_.width),
                             after = border_source(border_, input_.width + k, input_.width);
          rows[c][k - radius_] = before < 0 ? 0.0f : rows[c][before];
          rows[c][input_.width + k] = after < 0 ? 0.0f : rows[c][after];
        }
    }
    for (std::int64_t c = 0; c < channels; ++c) packed[c] = result[c] = planes + channels * plane_ + c * stride_;
    StopPoll poll;
    for (std::int64_t y = 0; y < input_.height; ++y, output += row_bytes) {
      if (!poll.proceed(input_.row() * static_cast<std::int64_t>(offsets_.size()))) return;
      for (std::int64_t c = 0; c < channels; ++c) centres[c] = planes + c * plane_ + (y + radius_) * stride_ + radius_;
      images_->bilateral({centres, static_cast<int>(channels), offsets_.data(), weights_.data(),
                          static_cast<int>(offsets_.size()), tones_.data(), tone_scale_, entries_},
                         result, input_.width);
      images_->pack[pixel_](packed, static_cast<int>(channels), output, input_.width);
    }
  }

 private:
  ImageShape input_;
  const ImageTable* images_;
  std::size_t pixel_;
  Border border_;
  std::int64_t radius_ = 1, stride_ = 0, plane_ = 0;
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
  if (radius < 1 || radius > 256)
    throw Error(ErrorKind::model, "BilateralFilter: radius " + std::to_string(radius) + " is not in 1 to 256");
  if (!(attributes.get_float("sigma_color", 1) > 0) || !(attributes.get_float("sigma_space", 1) > 0))
    throw Error(ErrorKind::model, "BilateralFilter: sigma_color and sigma_space must be greater than 0");
  if (border_of("BilateralFilter", attributes) == Border::transparent)
    throw Error(ErrorKind::unsupported, "BilateralFilter does not support a transparent border");
  return {operands[0].dtype, operands[0].shape};
}
std::unique_ptr<HostStep> make_bilateral_filter(const StepRequest& request) { return std::make_unique<BilateralStep>(request); }

}  // namespace walle
