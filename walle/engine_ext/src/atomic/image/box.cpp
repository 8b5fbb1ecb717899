// BoxFilter: the sum or mean of a window around every pixel, by sliding sums whose cost hardly depends on the window size.
#include <cmath>
#include <cstring>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

class BoxStep final : public HostStep {
 public:
  explicit BoxStep(const StepRequest& request)
      : input_(image_shape("BoxFilter", request.inputs[0].shape)), images_(request.table.image) {
    const Attributes& attributes = request.attributes;
    width_ = attributes.get_int("width", 1);
    height_ = attributes.get_int("height", 1);
    scale_ = attributes.get_int("normalize", 1) != 0 ? 1.0 / static_cast<double>(width_ * height_) : 1.0;
    squared_ = attributes.get_int("squared", 0) != 0;
    pixel_ = pixel_index("BoxFilter", request.inputs[0].dtype);
    floats_ = pixel_ == 2;
    const bool to_floats = request.result.dtype == DType::f32;
    const bool words = pixel_ == 0 && !squared_ && width_ * height_ <= 256;
    box_row_ = words ? images_->box_row_words : images_->box_row[pixel_];
    slide_ = words ? images_->slide_words : images_->slide[floats_ ? 1 : 0];
    finish_ = words       ? images_->scale_words[to_floats ? 1 : 0]
              : to_floats ? images_->float_sums[floats_ ? 1 : 0]
                          : images_->scale_sums[pixel_];
    anchor_y_ = anchor_of("BoxFilter", attributes, "anchor_y", height_);
    frame_.border = border_of("BoxFilter", attributes);
    frame_.width = input_.width;
    frame_.left = anchor_of("BoxFilter", attributes, "anchor_x", width_);
    frame_.right = width_ - 1 - frame_.left;
    frame_.pixel = static_cast<std::size_t>(input_.channels) * item_size(request.inputs[0].dtype);
    out_item_ = item_size(request.result.dtype);
    const std::size_t sum = floats_ ? 8 : words ? 2 : 4;
    row_bytes_ = cache_aligned(static_cast<std::size_t>(input_.row()) * sum);
    work_bytes_ = cache_aligned(static_cast<std::size_t>((input_.width + width_) * input_.channels) * sum);
    // Scratch: a padded row, work space, the column sums, and a ring of the row sums in the window.
    scratch_bytes_ = cache_aligned(frame_.bytes()) + work_bytes_ + static_cast<std::size_t>(height_ + 2) * row_bytes_;
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    std::byte *framed = scratch, *work = framed + cache_aligned(frame_.bytes()), *sums = work + work_bytes_,
              *ring = sums + row_bytes_;
    const std::size_t row_in = static_cast<std::size_t>(input_.width) * frame_.pixel;
    std::memset(sums, 0, row_bytes_);
    constexpr std::byte black[4096]{};
    StopPoll poll;
    for (std::int64_t t = 0; t < input_.height + height_ - 1 && poll.proceed(input_.row()); ++t) {
      std::byte* enters = ring + static_cast<std::size_t>(t % (height_ + 1)) * row_bytes_;
      const std::byte* leaves = t >= height_ ? ring + static_cast<std::size_t>((t + 1) % (height_ + 1)) * row_bytes_ : nullptr;
      const std::int64_t row = border_source(frame_.border, t - anchor_y_, input_.height);
      if (row < 0) {
        std::memset(enters, 0, row_bytes_);
      } else {
        frame_.make(inputs[0] + static_cast<std::size_t>(row) * row_in, black, framed);
        box_row_(framed, squared_, input_.channels, width_, enters, work, input_.row());
      }
      slide_(enters, leaves, sums, input_.row());
      if (t < height_ - 1) continue;
      finish_(sums, scale_, output, input_.row());
      output += static_cast<std::size_t>(input_.row()) * out_item_;
    }
  }

 private:
  ImageShape input_;
  const ImageTable* images_;
  RowFrame frame_;
  std::int64_t width_ = 1, height_ = 1, anchor_y_ = 0;
  double scale_ = 1;
  bool squared_ = false, floats_ = false;
  std::size_t pixel_ = 0, out_item_ = 1, row_bytes_ = 0, work_bytes_ = 0;
  BoxRowFn box_row_ = nullptr;
  SlideFn slide_ = nullptr;
  ScaleFn finish_ = nullptr;
};

}  // namespace

// Attributes: width, height, anchor_x, anchor_y (-1: centre), normalize, squared, border, to (float32 or the image's dtype).
TensorType infer_box_filter(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("BoxFilter", operands[0].shape);
  const std::size_t pixel = pixel_index("BoxFilter", operands[0].dtype);
  const std::int64_t width = attributes.get_int("width", 1), height = attributes.get_int("height", 1);
  constexpr std::int64_t kMax = 4096;
  if (width < 1 || height < 1 || width > kMax || height > kMax)
    throw Error(ErrorKind::model, "BoxFilter: a window of " + std::to_string(width) + " by " + std::to_string(height) +
                                      " pixels is not in 1 to 4096");
  anchor_of("BoxFilter", attributes, "anchor_x", width);
  anchor_of("BoxFilter", attributes, "anchor_y", height);
  const Border border = border_of("BoxFilter", attributes);
  if (border == Border::wrap || border == Border::transparent)
    throw Error(ErrorKind::unsupported, "BoxFilter supports the borders constant, replicate, reflect and reflect101");
  const bool squared = attributes.get_int("squared", 0) != 0;
  const double max_sum = static_cast<double>(width * height) * (pixel == 0   ? (squared ? 65025.0 : 255.0)
                                                                : pixel == 1 ? (squared ? 4.3e9 : 65535.0)
                                                                             : 0.0);
  if (max_sum > 2147483647.0)
    throw Error(ErrorKind::dtype, "BoxFilter: sums of a window of " + std::to_string(width) + " by " + std::to_string(height) +
                                      " " + std::string(dtype_name(operands[0].dtype)) +
                                      " pixels overflow 32 bits; convert to float32");
  const DType out = attributes.has("to") ? target_dtype(attributes) : operands[0].dtype;
  if (out != DType::f32 && out != operands[0].dtype)
    throw Error(ErrorKind::dtype, "BoxFilter returns float32 or the image's dtype, not " + std::string(dtype_name(out)));
  return {out, operands[0].shape};
}
std::unique_ptr<HostStep> make_box_filter(const StepRequest& request) { return std::make_unique<BoxStep>(request); }

}  // namespace walle
