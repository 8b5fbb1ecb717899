// Operators on single pixels: ImagePointwise (saturating arithmetic, bitwise operations, thresholds), InRange, ImageSums,
// ImageLookup, ImageHistogram and ImageIntegral.
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Pointwise::kCount)> kNames{
    "add",      "subtract", "difference", "least",    "greatest", "bit_and",     "bit_or",         "bit_xor", "weighted",
    "multiply", "binary",   "binary_inv", "truncate", "to_zero",  "to_zero_inv", "absolute_scale", "above",   "not_above"};

Pointwise pointwise_of(const Attributes& attributes) {
  const std::string name = attributes.get_string("op", "");
  const auto* found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) throw Error(ErrorKind::unsupported, "ImagePointwise does not support op '" + name + "'");
  return static_cast<Pointwise>(found - kNames.begin());
}
bool is_unary(Pointwise op) { return op >= Pointwise::binary && op <= Pointwise::absolute_scale; }
bool returns_u8(Pointwise op) { return op >= Pointwise::absolute_scale; }

// A second operand of one pixel is repeated in a block of whole pixels.
class PointwiseStep final : public HostStep {
 public:
  explicit PointwiseStep(const StepRequest& request) {
    const Pointwise op = pointwise_of(request.attributes);
    kernel_ = request.table.image->pointwise[static_cast<int>(op)][signed_pixel_index("ImagePointwise", request.inputs[0].dtype)];
    const auto numbers = numbers_of("ImagePointwise", request.attributes, "numbers", {0, 0, 0});
    std::copy(numbers.begin(), numbers.end(), numbers_);
    length_ = element_count(request.result.shape);
    item_ = item_size(request.inputs[0].dtype);
    out_item_ = item_size(request.result.dtype);
    is_binary_ = !is_unary(op);
    if (is_binary_ && request.inputs[1].shape != request.inputs[0].shape) {
      pixel_ = element_count(request.inputs[1].shape);
      block_ = pixel_ * std::max<std::int64_t>(1, 1024 / pixel_);
      scratch_bytes_ = static_cast<std::size_t>(block_) * item_;
    }
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    StopPoll poll;
    if (pixel_ == 0) {
      const std::byte* second = is_binary_ ? inputs[1] : inputs[0];
      run_in_blocks(length_, 1, poll, [&](std::int64_t first, std::int64_t last) {
        const std::size_t from = static_cast<std::size_t>(first) * item_, to = static_cast<std::size_t>(first) * out_item_;
        kernel_(inputs[0] + from, second + from, numbers_, output + to, last - first);
      });
      return;
    }
    for (std::int64_t i = 0; i < block_; i += pixel_)
      std::memcpy(scratch + static_cast<std::size_t>(i) * item_, inputs[1], static_cast<std::size_t>(pixel_) * item_);
    for (std::int64_t i = 0; i < length_ && poll.proceed(block_); i += block_)
      kernel_(inputs[0] + static_cast<std::size_t>(i) * item_, scratch, numbers_,
              output + static_cast<std::size_t>(i) * out_item_, std::min(block_, length_ - i));
  }

 private:
  PointwiseFn kernel_;
  double numbers_[3];
  std::int64_t length_, pixel_ = 0, block_ = 0;
  std::size_t item_, out_item_;
  bool is_binary_;
};

class InRangeStep final : public HostStep {
 public:
  explicit InRangeStep(const StepRequest& request)
      : input_(image_shape("InRange", request.inputs[0].shape)), item_(item_size(request.inputs[0].dtype)) {
    low_ = numbers_of("InRange", request.attributes, "low", {0, 0, 0, 0});
    high_ = numbers_of("InRange", request.attributes, "high", {0, 0, 0, 0});
    kernel_ = request.table.image->in_range[signed_pixel_index("InRange", request.inputs[0].dtype)];
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    StopPoll poll;
    run_in_blocks(input_.pixels(), 4, poll, [&](std::int64_t first, std::int64_t last) {
      kernel_(inputs[0] + static_cast<std::size_t>(first * input_.channels) * item_, static_cast<int>(input_.channels),
              low_.data(), high_.data(), reinterpret_cast<std::uint8_t*>(output) + first, last - first);
    });
  }

 private:
  ImageShape input_;
  std::size_t item_;
  std::vector<double> low_, high_;
  InRangeFn kernel_;
};

class SumsStep final : public HostStep {
 public:
  explicit SumsStep(const StepRequest& request)
      : input_(image_shape("ImageSums", request.inputs[0].shape)),
        masked_(request.inputs.size() > 1 && !request.inputs[1].absent),
        squares_(request.attributes.get_int("squares", 1) != 0),
        pixel_(static_cast<std::size_t>(input_.channels) * item_size(request.inputs[0].dtype)) {
    kernel_ = request.table.image->sum[signed_pixel_index("ImageSums", request.inputs[0].dtype)];
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    auto* sums = reinterpret_cast<double*>(output);
    std::fill(sums, sums + 2 * input_.channels, 0.0);
    constexpr std::int64_t kWeight = 4;  // blocks are whole ones of the kernel: sums are rounded the same
    StopPoll poll;
    run_in_blocks(input_.pixels(), kWeight, poll, [&](std::int64_t first, std::int64_t last) {
      kernel_(inputs[0] + static_cast<std::size_t>(first) * pixel_, static_cast<int>(input_.channels),
              masked_ ? reinterpret_cast<const std::uint8_t*>(inputs[1]) + first : nullptr, sums,
              squares_ ? sums + input_.channels : nullptr, last - first);
    });
  }

 private:
  ImageShape input_;
  bool masked_, squares_;
  std::size_t pixel_;
  SumFn kernel_;
};

class LookupStep final : public HostStep {
 public:
  explicit LookupStep(const StepRequest& request)
      : pixels_(image_shape("ImageLookup", request.inputs[0].shape).pixels()),
        channels_(image_shape("ImageLookup", request.inputs[0].shape).channels),
        columns_(element_count(request.inputs[1].shape) / 256),
        item_(item_size(request.result.dtype)) {}
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const auto* in = reinterpret_cast<const std::uint8_t*>(inputs[0]);
    StopPoll poll;
    run_in_blocks(pixels_, channels_, poll, [&](std::int64_t first, std::int64_t last) {
      const std::uint8_t* from = in + first * channels_;
      std::byte* to = output + static_cast<std::size_t>(first * channels_) * item_;
      if (item_ == 1) return look_up<std::uint8_t>(from, last - first, inputs[1], to);
      if (item_ == 2) return look_up<std::uint16_t>(from, last - first, inputs[1], to);
      if (item_ == 4) return look_up<std::uint32_t>(from, last - first, inputs[1], to);
      look_up<std::uint64_t>(from, last - first, inputs[1], to);
    });
  }

 private:
  template <class T>
  void look_up(const std::uint8_t* in, std::int64_t pixels, const std::byte* entries, std::byte* output) const noexcept {
    const T* table = reinterpret_cast<const T*>(entries);
    T* out = reinterpret_cast<T*>(output);
    if (columns_ == 1) {
#pragma GCC unroll 8
      for (std::int64_t i = 0, count = pixels * channels_; i < count; ++i) out[i] = table[in[i]];
      return;
    }
    for (std::int64_t i = 0; i < pixels; ++i)
      for (std::int64_t c = 0; c < channels_; ++c) out[i * channels_ + c] = table[in[i * channels_ + c] * channels_ + c];
  }

  std::int64_t pixels_, channels_, columns_;
  std::size_t item_;
};

// Counts one channel of bytes in four tables, so that increments of equal neighbours do not depend on each other.
class HistogramStep final : public HostStep {
 public:
  explicit HistogramStep(const StepRequest& request)
      : input_(image_shape("ImageHistogram", request.inputs[0].shape)),
        channel_(request.attributes.get_int("channel", 0)),
        masked_(request.inputs.size() > 1 && !request.inputs[1].absent) {}
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const auto* in = reinterpret_cast<const std::uint8_t*>(inputs[0]) + channel_;
    auto* counts = reinterpret_cast<std::int32_t*>(output);
    std::int32_t part[4][256] = {};
    const std::int64_t step = input_.channels;
    StopPoll poll;
    run_in_blocks(input_.pixels(), 1, poll, [&](std::int64_t i, std::int64_t last) {
      if (masked_) {
        const auto* mask = reinterpret_cast<const std::uint8_t*>(inputs[1]);
        for (; i < last; ++i) part[0][in[i * step]] += mask[i] != 0;
        return;
      }
      for (; i + 4 <= last; i += 4)
        for (int k = 0; k < 4; ++k) ++part[k][in[(i + k) * step]];
      for (; i < last; ++i) ++part[0][in[i * step]];
    });
    for (int k = 0; k < 256; ++k) counts[k] = part[0][k] + part[1][k] + part[2][k] + part[3][k];
  }

 private:
  ImageShape input_;
  std::int64_t channel_;
  bool masked_;
};

template <class In, class Sum>
class IntegralStep final : public HostStep {
 public:
  explicit IntegralStep(const StepRequest& request)
      : input_(image_shape("ImageIntegral", request.inputs[0].shape)),
        squared_(request.attributes.get_int("squared", 0) != 0),
        row_(request.table.image->integral_row) {}
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const In* in = reinterpret_cast<const In*>(inputs[0]);
    Sum* out = reinterpret_cast<Sum*>(output);
    const std::int64_t channels = input_.channels, row = input_.row() + channels;
    std::fill(out, out + row, Sum{});
    StopPoll poll;
    for (std::int64_t y = 0; y < input_.height && poll.proceed(row); ++y, in += input_.row()) {
      const Sum* above = out;
      out += row;
      if constexpr (std::is_same_v<Sum, std::int32_t>)
        if (channels == 1) {
          out[0] = 0;
          row_(in, above + 1, out + 1, input_.width);
          continue;
        }
      for (std::int64_t c = 0; c < channels; ++c) {
        Sum sum{};
        out[c] = Sum{};
        for (std::int64_t i = c; i < input_.row(); i += channels) {
          const Sum value = static_cast<Sum>(in[i]);
          sum += squared_ ? value * value : value;
          out[channels + i] = above[channels + i] + sum;
        }
      }
    }
  }

 private:
  ImageShape input_;
  bool squared_;
  IntegralRowFn row_;
};

}  // namespace

// Attributes: op, numbers. The second operand has the shape of the first, or is one pixel.
TensorType infer_image_pointwise(std::span<const Operand> operands, const Attributes& attributes) {
  const Pointwise op = pointwise_of(attributes);
  signed_pixel_index("ImagePointwise", operands[0].dtype);
  numbers_of("ImagePointwise", attributes, "numbers", {0, 0, 0});
  if (!is_unary(op)) {
    if (operands.size() < 2 || operands[1].dtype != operands[0].dtype)
      throw Error(ErrorKind::dtype,
                  "ImagePointwise '" + attributes.get_string("op", "") + "' takes two operands of the same dtype");
    const Dims &a = operands[0].shape, &b = operands[1].shape;
    const bool pixel = b.size() <= 1 && (b.empty() || b[0] == 1 || (a.size() == 3 && b[0] == a[2]));
    if (a != b && !pixel)
      throw Error(ErrorKind::shape, "ImagePointwise of shapes " + to_string(a) + " and " + to_string(b) +
                                        "; the second must equal the first or be one pixel");
  }
  return {returns_u8(op) ? DType::u8 : operands[0].dtype, operands[0].shape};
}
std::unique_ptr<HostStep> make_image_pointwise(const StepRequest& request) { return std::make_unique<PointwiseStep>(request); }

TensorType infer_in_range(std::span<const Operand> operands, const Attributes& attributes) {
  const ImageShape shape = image_shape("InRange", operands[0].shape);
  signed_pixel_index("InRange", operands[0].dtype);
  if (shape.channels > 4) throw Error(ErrorKind::shape, "InRange takes up to four channels, not " + to_string(operands[0].shape));
  numbers_of("InRange", attributes, "low", {0, 0, 0, 0});
  numbers_of("InRange", attributes, "high", {0, 0, 0, 0});
  return {DType::u8, {shape.height, shape.width}};
}
std::unique_ptr<HostStep> make_in_range(const StepRequest& request) { return std::make_unique<InRangeStep>(request); }

// Output: float64 [2, channels], sums and sums of squares (0 if the attribute `squares` is 0) over the pixels where the mask (the
// second operand, uint8) is not 0.
TensorType infer_image_sums(std::span<const Operand> operands, const Attributes&) {
  const ImageShape shape = image_shape("ImageSums", operands[0].shape);
  signed_pixel_index("ImageSums", operands[0].dtype);
  if (shape.channels > 4)
    throw Error(ErrorKind::shape, "ImageSums takes up to four channels, not " + to_string(operands[0].shape));
  if (operands.size() > 1 && !operands[1].absent &&
      (operands[1].dtype != DType::u8 || operands[1].shape != Dims{shape.height, shape.width}))
    throw Error(ErrorKind::shape,
                "a mask must be uint8 of the image's height and width, not of shape " + to_string(operands[1].shape));
  return {DType::f64, {2, shape.channels}};
}
std::unique_ptr<HostStep> make_image_sums(const StepRequest& request) { return std::make_unique<SumsStep>(request); }

// The table has 256 entries, or 256 for every channel, with the channels interleaved.
TensorType infer_image_lookup(std::span<const Operand> operands, const Attributes&) {
  const ImageShape shape = image_shape("ImageLookup", operands[0].shape);
  const std::int64_t entries = element_count(operands[1].shape);
  if (operands[0].dtype != DType::u8)
    throw Error(ErrorKind::dtype, "ImageLookup takes uint8, not " + std::string(dtype_name(operands[0].dtype)));
  if (entries != 256 && entries != 256 * shape.channels)
    throw Error(ErrorKind::shape, "ImageLookup takes a table of 256 entries, or of 256 for every channel, not of shape " +
                                      to_string(operands[1].shape));
  return {operands[1].dtype, operands[0].shape};
}
std::unique_ptr<HostStep> make_image_lookup(const StepRequest& request) { return std::make_unique<LookupStep>(request); }

TensorType infer_image_histogram(std::span<const Operand> operands, const Attributes& attributes) {
  const ImageShape shape = image_shape("ImageHistogram", operands[0].shape);
  const std::int64_t channel = attributes.get_int("channel", 0);
  if (operands[0].dtype != DType::u8)
    throw Error(ErrorKind::dtype, "ImageHistogram takes uint8, not " + std::string(dtype_name(operands[0].dtype)));
  if (channel < 0 || channel >= shape.channels)
    throw Error(ErrorKind::shape, "ImageHistogram: channel " + std::to_string(channel) + " does not exist in an image of shape " +
                                      to_string(operands[0].shape));
  if (operands.size() > 1 && !operands[1].absent &&
      (operands[1].dtype != DType::u8 || operands[1].shape != Dims{shape.height, shape.width}))
    throw Error(ErrorKind::shape,
                "a mask must be uint8 of the image's height and width, not of shape " + to_string(operands[1].shape));
  return {DType::i32, {256}};
}
std::unique_ptr<HostStep> make_image_histogram(const StepRequest& request) { return std::make_unique<HistogramStep>(request); }

// Output: the sums of all pixels above and to the left, one row and one column larger than the image; int32 for uint8, float64
// for float32 and for squares.
TensorType infer_image_integral(std::span<const Operand> operands, const Attributes& attributes) {
  const ImageShape shape = image_shape("ImageIntegral", operands[0].shape);
  const DType in = operands[0].dtype;
  if (in != DType::u8 && in != DType::f32)
    throw Error(ErrorKind::dtype, "ImageIntegral takes uint8 and float32, not " + std::string(dtype_name(in)));
  const bool integers = in == DType::u8 && attributes.get_int("squared", 0) == 0;
  if (integers && shape.pixels() > (std::int64_t{1} << 31) / 255)
    throw Error(ErrorKind::shape, "ImageIntegral of an image whose sums may overflow int32; convert it to float32");
  return {integers ? DType::i32 : DType::f64, resized_shape(operands[0].shape, shape.height + 1, shape.width + 1)};
}
std::unique_ptr<HostStep> make_image_integral(const StepRequest& request) {
  if (request.inputs[0].dtype == DType::f32) return std::make_unique<IntegralStep<float, double>>(request);
  if (request.result.dtype == DType::i32) return std::make_unique<IntegralStep<std::uint8_t, std::int32_t>>(request);
  return std::make_unique<IntegralStep<std::uint8_t, double>>(request);
}

}  // namespace walle
