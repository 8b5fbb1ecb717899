// BoxFilter: the sum or the mean of a window about every pixel, at a cost that hardly grows with the window.
#include <cmath>
#include <cstring>

#include "atomic/image/image.h"

namespace walle {

namespace {

class BoxStep final : public Step {
 public:
  explicit BoxStep(const StepRequest& request)
      : from_(image_shape("BoxFilter", request.inputs[0].shape)), images_(request.table.image) {
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
    frame_.width = from_.width;
    frame_.left = anchor_of("BoxFilter", attributes, "anchor_x", width_);
    frame_.right = width_ - 1 - frame_.left;
    frame_.pixel = static_cast<std::size_t>(from_.channels) * item_size(request.inputs[0].dtype);
    out_item_ = item_size(request.result.dtype);
    const std::size_t sum = floats_ ? 8 : words ? 2 : 4;
    row_bytes_ = lines(static_cast<std::size_t>(from_.row()) * sum);
    spare_bytes_ = lines(static_cast<std::size_t>((from_.width + width_) * from_.channels) * sum);
    // A framed row, room to work, sums of columns, and the sums of the rows in the window.
    scratch_bytes_ = lines(frame_.bytes()) + spare_bytes_ + static_cast<std::size_t>(height_ + 2) * row_bytes_;
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    std::byte *framed = scratch, *spare = framed + lines(frame_.bytes()), *sums = spare + spare_bytes_, *ring = sums + row_bytes_;
    const std::size_t row_in = static_cast<std::size_t>(from_.width) * frame_.pixel;
    std::memset(sums, 0, row_bytes_);
    constexpr std::byte black[4096]{};
    for (std::int64_t at = 0; at < from_.height + height_ - 1; ++at) {
      std::byte* enters = ring + static_cast<std::size_t>(at % (height_ + 1)) * row_bytes_;
      const std::byte* leaves = at >= height_ ? ring + static_cast<std::size_t>((at + 1) % (height_ + 1)) * row_bytes_ : nullptr;
      const std::int64_t row = border_source(frame_.border, at - anchor_y_, from_.height);
      if (row < 0) {
        std::memset(enters, 0, row_bytes_);
      } else {
        frame_.make(inputs[0] + static_cast<std::size_t>(row) * row_in, black, framed);
        box_row_(framed, squared_, from_.channels, width_, enters, spare, from_.row());
      }
      slide_(enters, leaves, sums, from_.row());
      if (at < height_ - 1) continue;
      finish_(sums, scale_, output, from_.row());
      output += static_cast<std::size_t>(from_.row()) * out_item_;
    }
  }

 private:
  ImageShape from_;
  const ImageTable* images_;
  RowFrame frame_;
  std::int64_t width_ = 1, height_ = 1, anchor_y_ = 0;
  double scale_ = 1;
  bool squared_ = false, floats_ = false;
  std::size_t pixel_ = 0, out_item_ = 1, row_bytes_ = 0, spare_bytes_ = 0;
  BoxRowFn box_row_ = nullptr;
  SlideFn slide_ = nullptr;
  ScaleFn finish_ = nullptr;
};

}  // namespace

// Attributes: width, height, anchor_x, anchor_y (-1: the middle), normalize, squared, border, to (float32 or the image's dtype).
TensorType infer_box_filter(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("BoxFilter", operands[0].shape);
  const std::size_t pixel = pixel_index("BoxFilter", operands[0].dtype);
  const std::int64_t width = attributes.get_int("width", 1), height = attributes.get_int("height", 1);
  constexpr std::int64_t kMost = 4096;
  if (width < 1 || height < 1 || width > kMost || height > kMost)
    throw Error(ErrorKind::model, "BoxFilter with a window of " + std::to_string(width) + " by " + std::to_string(height));
  anchor_of("BoxFilter", attributes, "anchor_x", width);
  anchor_of("BoxFilter", attributes, "anchor_y", height);
  const Border border = border_of("BoxFilter", attributes);
  if (border == Border::wrap || border == Border::transparent)
    throw Error(ErrorKind::unsupported, "BoxFilter takes the borders constant, replicate, reflect and reflect101");
  const bool squared = attributes.get_int("squared", 0) != 0;
  const double most = static_cast<double>(width * height) * (pixel == 0   ? (squared ? 65025.0 : 255.0)
                                                             : pixel == 1 ? (squared ? 4.3e9 : 65535.0)
                                                                          : 0.0);
  if (most > 2147483647.0)
    throw Error(ErrorKind::dtype,
                "BoxFilter of so large a window and " + std::string(dtype_name(operands[0].dtype)) + "; convert to float32");
  const DType out = attributes.has("to") ? target_dtype(attributes) : operands[0].dtype;
  if (out != DType::f32 && out != operands[0].dtype)
    throw Error(ErrorKind::dtype, "BoxFilter gives float32 or the image's dtype, not " + std::string(dtype_name(out)));
  return {out, operands[0].shape};
}
std::unique_ptr<Step> make_box_filter(const StepRequest& request) { return std::make_unique<BoxStep>(request); }

}  // namespace walle
