// SeparableFilter and ImageFilter: correlation with a kernel, as in OpenCV. Both are depthwise convolutions on interleaved
// pixels; bytes with integer weights are summed exactly in 16 or 32 bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

// Types of the sums: 16-bit and 32-bit fixed point, int16, int32, float32.
enum class Arithmetic : std::uint8_t { fixed16, fixed32, int16, int32, float32 };

// Kernels of the two passes: from pixels to intermediate sums, and from those to the result.
struct Passes {
  Combine first = Combine::u8_f32, last = Combine::f32_f32;
  std::size_t sum_size = 4;  // bytes of an intermediate sum
};

Passes passes_of(std::string_view op, Arithmetic arithmetic, DType in, DType out) {
  Passes passes;
  const auto refuse = [&]() -> Error {
    return {ErrorKind::dtype, std::string(op) + " from " + std::string(dtype_name(in)) + " to " + std::string(dtype_name(out)) +
                                  " is not supported"};
  };
  if (arithmetic == Arithmetic::fixed16) return {Combine::u8_u16, Combine::u16_u8, 2};
  if (arithmetic == Arithmetic::fixed32) return {Combine::u16_u32, Combine::u32_u16, 4};
  if (arithmetic == Arithmetic::int16 || arithmetic == Arithmetic::int32) {
    const bool use_i16 = arithmetic == Arithmetic::int16;
    passes.first = use_i16 ? Combine::u8_i16 : Combine::u8_i32;
    passes.sum_size = use_i16 ? 2 : 4;
    if (out == DType::u8)
      passes.last = use_i16 ? Combine::i16_u8 : Combine::i32_u8;
    else if (out == DType::i16)
      passes.last = use_i16 ? Combine::i16_i16 : Combine::i32_i16;
    else if (out == DType::f32)
      passes.last = use_i16 ? Combine::i16_f32 : Combine::i32_f32;
    else
      throw refuse();
    return passes;
  }
  switch (in) {
    case DType::u8: passes.first = Combine::u8_f32; break;
    case DType::u16: passes.first = Combine::u16_f32; break;
    case DType::i16: passes.first = Combine::i16_f32_wide; break;
    case DType::f32: passes.first = Combine::f32_f32; break;
    default: throw refuse();
  }
  switch (out) {
    case DType::u8: passes.last = Combine::f32_u8; break;
    case DType::u16: passes.last = Combine::f32_u16; break;
    case DType::i16: passes.last = Combine::f32_i16; break;
    case DType::f32: passes.last = Combine::f32_f32; break;
    default: throw refuse();
  }
  return passes;
}

double absolute_sum(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum += std::abs(weight);
  return sum;
}
bool all_even(const std::vector<double>& weights) {
  return std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 2 * std::nearbyint(weight / 2); });
}
bool all_non_negative(const std::vector<double>& weights) {
  return std::all_of(weights.begin(), weights.end(), [](double weight) { return weight >= 0; });
}
bool all_integers(const std::vector<double>& weights) {
  return std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == std::nearbyint(weight); });
}

Arithmetic arithmetic_of(DType in, DType out, double max_sum, bool integer_weights) {
  if (in != DType::u8 || out == DType::u16 || !integer_weights || max_sum >= 2147483647.0) return Arithmetic::float32;
  return max_sum <= 32767 ? Arithmetic::int16 : Arithmetic::int32;
}

// Converts weights to the type of an arithmetic.
std::vector<std::byte> packed_weights(const std::vector<double>& weights, Arithmetic arithmetic) {
  const auto as = [&]<class T>(T) {
    std::vector<std::byte> bytes(weights.size() * sizeof(T));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const T weight = static_cast<T>(weights[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &weight, sizeof(T));
    }
    return bytes;
  };
  switch (arithmetic) {
    case Arithmetic::float32: return as(float{});
    case Arithmetic::fixed32:
    case Arithmetic::int32: return as(std::int32_t{});
    default: return as(std::int16_t{});
  }
}

std::vector<double> kernel_of(std::string_view op, const Attributes& attributes, std::string_view name) {
  auto kernel = attributes.get_floats(name);
  constexpr std::size_t kMax = 4096;
  if (!kernel || kernel->empty() || kernel->size() > kMax)
    throw Error(ErrorKind::model,
                std::string(op) + " needs 1 to " + std::to_string(kMax) + " weights as '" + std::string(name) + "'");
  for (const double weight : *kernel)
    if (!std::isfinite(weight)) throw Error(ErrorKind::model, std::string(op) + ": the weights must be finite");
  return *std::move(kernel);
}

DType result_of(const Operand& operand, const Attributes& attributes) {
  return attributes.has("to") ? target_dtype(attributes) : operand.dtype;
}

constexpr std::array<std::byte, 4096> kBlack{};  // the pixel of the constant border

class SeparableStep final : public HostStep {
 public:
  explicit SeparableStep(const StepRequest& request)
      : input_(image_shape("SeparableFilter", request.inputs[0].shape)),
        output_(image_shape("SeparableFilter", request.result.shape)),
        images_(request.table.image) {
    const Attributes& attributes = request.attributes;
    auto kernel_x = kernel_of("SeparableFilter", attributes, "kernel_x"),
         kernel_y = kernel_of("SeparableFilter", attributes, "kernel_y");
    delta_ = static_cast<float>(attributes.get_float("delta", 0));
    shift_ = static_cast<int>(attributes.get_int("bits", 0));
    stride_ = attributes.get_int("stride", 1);
    const DType in = request.inputs[0].dtype, out = request.result.dtype;
    for (auto* kernel : {&kernel_x, &kernel_y})
      while (shift_ > 1 && all_even(*kernel)) {
        for (double& weight : *kernel) weight /= 2;
        --shift_;
      }
    const double max_sum = 255 * absolute_sum(kernel_x) * absolute_sum(kernel_y) + std::abs(static_cast<double>(delta_));
    const Arithmetic arithmetic = shift_ > 0 ? (in == DType::u8 ? Arithmetic::fixed16 : Arithmetic::fixed32)
                                             : arithmetic_of(in, out, max_sum,
                                                             all_integers(kernel_x) && all_integers(kernel_y) &&
                                                                 all_integers({static_cast<double>(delta_)}));
    passes_ = passes_of("SeparableFilter", arithmetic, in, out);
    if (arithmetic == Arithmetic::fixed16 && max_sum + std::ldexp(1.0, shift_ - 1) <= 65535 && all_non_negative(kernel_x) &&
        all_non_negative(kernel_y))
      passes_.last = Combine::u16_u8_short;
    weights_x_ = packed_weights(kernel_x, arithmetic);
    weights_y_ = packed_weights(kernel_y, arithmetic);
    count_x_ = static_cast<std::int64_t>(kernel_x.size());
    count_y_ = static_cast<std::int64_t>(kernel_y.size());
    anchor_y_ = anchor_of("SeparableFilter", attributes, "anchor_y", count_y_);
    frame_.border = border_of("SeparableFilter", attributes);
    frame_.width = input_.width;
    frame_.left = anchor_of("SeparableFilter", attributes, "anchor_x", count_x_);
    frame_.right = count_x_ - 1 - frame_.left;
    frame_.pixel = static_cast<std::size_t>(input_.channels) * item_size(in);
    out_item_ = item_size(out);
    row_bytes_ = cache_aligned(static_cast<std::size_t>(input_.row()) * passes_.sum_size);
    // Scratch: one padded row, a ring of intermediate rows and a row of zeros, a full result row if the stride is above 1, the
    // row in each slot of the ring, and pointers to taps.
    full_row_offset_ = cache_aligned(frame_.bytes()) + static_cast<std::size_t>(count_y_ + 1) * row_bytes_;
    slot_rows_offset_ = full_row_offset_ + (stride_ > 1 ? cache_aligned(static_cast<std::size_t>(input_.row()) * out_item_) : 0);
    scratch_bytes_ = slot_rows_offset_ + static_cast<std::size_t>(count_y_) * sizeof(std::int64_t) +
                     static_cast<std::size_t>(count_x_ + count_y_) * sizeof(void*);
    if (stride_ > 1)
      for (std::int64_t i = 0; i < output_.width; ++i) column_index_.push_back(static_cast<std::int32_t>(i * stride_));
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    std::byte *framed = scratch, *ring = scratch + cache_aligned(frame_.bytes()),
              *zeros = ring + static_cast<std::size_t>(count_y_) * row_bytes_;
    auto* slot_rows = reinterpret_cast<std::int64_t*>(scratch + slot_rows_offset_);
    auto** taps = reinterpret_cast<const void**>(slot_rows + count_y_);
    auto** rows = taps + count_x_;
    std::fill(slot_rows, slot_rows + count_y_, -1);
    std::memset(zeros, 0, row_bytes_);
    const std::size_t row_in =
        static_cast<std::size_t>(input_.row()) * (frame_.pixel / static_cast<std::size_t>(input_.channels));
    const auto first = images_->combine[static_cast<int>(passes_.first)], last = images_->combine[static_cast<int>(passes_.last)];
    const std::size_t row_out = static_cast<std::size_t>(output_.row()) * out_item_;
    for (std::int64_t k = 0; k < count_x_; ++k) taps[k] = framed + static_cast<std::size_t>(k) * frame_.pixel;
    StopPoll poll;
    for (std::int64_t y = 0; y < output_.height; ++y, output += row_out) {
      if (!poll.proceed(input_.row() * (count_x_ * stride_ + count_y_))) return;
      // New rows of the window replace those that it has left; a mirrored row that was replaced is computed again.
      const std::int64_t top = y * stride_ - anchor_y_;
      std::int64_t slot = ring_slot(top, count_y_);
      for (std::int64_t t = 0; t < count_y_; ++t, slot = slot + 1 == count_y_ ? 0 : slot + 1) {
        const std::int64_t row = border_source(frame_.border, top + t, input_.height);
        std::byte* row_sums = ring + static_cast<std::size_t>(slot) * row_bytes_;
        rows[t] = row < 0 ? zeros : row_sums;
        if (row < 0 || slot_rows[slot] == row) continue;
        slot_rows[slot] = row;
        frame_.make(inputs[0] + static_cast<std::size_t>(row) * row_in, kBlack.data(), framed);
        first(taps, weights_x_.data(), static_cast<int>(count_x_), 0, 0, row_sums, input_.row());
      }
      if (stride_ == 1) {
        last(rows, weights_y_.data(), static_cast<int>(count_y_), delta_, shift_, output, input_.row());
      } else {
        last(rows, weights_y_.data(), static_cast<int>(count_y_), delta_, shift_, scratch + full_row_offset_, input_.row());
        images_->pick_row(column_index_.data(), static_cast<std::int64_t>(out_item_) * input_.channels,
                          scratch + full_row_offset_, output, output_.width);
      }
    }
  }

 private:
  ImageShape input_, output_;
  const ImageTable* images_;
  Passes passes_;
  RowFrame frame_;
  std::vector<std::byte> weights_x_, weights_y_;
  std::vector<std::int32_t> column_index_;
  std::int64_t count_x_ = 0, count_y_ = 0, anchor_y_ = 0, stride_ = 1;
  float delta_ = 0;
  int shift_ = 0;
  std::size_t out_item_ = 1, row_bytes_ = 0, full_row_offset_ = 0, slot_rows_offset_ = 0;
};

class FilterStep final : public HostStep {
 public:
  explicit FilterStep(const StepRequest& request)
      : input_(image_shape("ImageFilter", request.inputs[0].shape)), images_(request.table.image) {
    const Attributes& attributes = request.attributes;
    const auto kernel = kernel_of("ImageFilter", attributes, "kernel");
    width_ = attributes.get_int("kernel_width", 0);
    height_ = static_cast<std::int64_t>(kernel.size()) / width_;
    delta_ = static_cast<float>(attributes.get_float("delta", 0));
    const DType in = request.inputs[0].dtype, out = request.result.dtype;
    const double max_sum = 255 * absolute_sum(kernel) + std::abs(static_cast<double>(delta_));
    const Arithmetic arithmetic =
        arithmetic_of(in, out, max_sum, all_integers(kernel) && all_integers({static_cast<double>(delta_)}));
    use_floats_ = arithmetic == Arithmetic::float32;
    passes_ = passes_of("ImageFilter", arithmetic, in, out);
    std::vector<double> used;
    for (std::size_t i = 0; i < kernel.size(); ++i)
      if (kernel[i] != 0) {
        used.push_back(kernel[i]);
        taps_.push_back({static_cast<std::int64_t>(i) / width_, static_cast<std::int64_t>(i) % width_});
      }
    if (used.empty()) {
      used.push_back(0);
      taps_.push_back({0, 0});
    }
    weights_ = packed_weights(used, arithmetic);
    unit_weight_ = packed_weights({1}, arithmetic);
    anchor_y_ = anchor_of("ImageFilter", attributes, "anchor_y", height_);
    frame_.border = border_of("ImageFilter", attributes);
    frame_.width = input_.width;
    frame_.left = anchor_of("ImageFilter", attributes, "anchor_x", width_);
    frame_.right = width_ - 1 - frame_.left;
    frame_.pixel = static_cast<std::size_t>(input_.channels) * item_size(in);
    out_item_ = item_size(out);
    // The ring holds padded rows: pixels where sums are integers, floats otherwise.
    framed_ = (frame_.left + frame_.width + frame_.right) * input_.channels;
    ring_item_ = use_floats_ ? 4 : 1;
    ring_bytes_ = cache_aligned(static_cast<std::size_t>(framed_) * ring_item_);
    sums_offset_ = cache_aligned(frame_.bytes()) + static_cast<std::size_t>(height_ + 1) * ring_bytes_;
    slot_rows_offset_ = sums_offset_ + cache_aligned(static_cast<std::size_t>(input_.row()) * 4);
    scratch_bytes_ = slot_rows_offset_ + static_cast<std::size_t>(height_) * (sizeof(std::int64_t) + sizeof(void*)) +
                     taps_.size() * sizeof(void*);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    std::byte *framed = scratch, *ring = scratch + cache_aligned(frame_.bytes()),
              *zeros = ring + static_cast<std::size_t>(height_) * ring_bytes_;
    auto* slot_rows = reinterpret_cast<std::int64_t*>(scratch + slot_rows_offset_);
    auto** taps = reinterpret_cast<const void**>(slot_rows + height_);
    auto** rows = taps + taps_.size();
    std::fill(slot_rows, slot_rows + height_, -1);
    std::memset(zeros, 0, ring_bytes_);
    const std::size_t row_in = static_cast<std::size_t>(input_.width) * frame_.pixel;
    const auto first = images_->combine[static_cast<int>(passes_.first)], last = images_->combine[static_cast<int>(passes_.last)];
    const int count = static_cast<int>(taps_.size());
    StopPoll poll;
    for (std::int64_t y = 0; y < input_.height; ++y, output += static_cast<std::size_t>(input_.row()) * out_item_) {
      if (!poll.proceed(input_.row() * count)) return;
      std::int64_t slot = ring_slot(y - anchor_y_, height_);
      for (std::int64_t t = 0; t < height_; ++t, slot = slot + 1 == height_ ? 0 : slot + 1) {
        const std::int64_t row = border_source(frame_.border, y + t - anchor_y_, input_.height);
        std::byte* ring_row = ring + static_cast<std::size_t>(slot) * ring_bytes_;
        rows[t] = row < 0 ? zeros : ring_row;
        if (row < 0 || slot_rows[slot] == row) continue;
        slot_rows[slot] = row;
        frame_.make(inputs[0] + static_cast<std::size_t>(row) * row_in, kBlack.data(), use_floats_ ? framed : ring_row);
        if (use_floats_) {
          taps[0] = framed;
          first(taps, unit_weight_.data(), 1, 0, 0, ring_row, framed_);
        }
      }
      for (int i = 0; i < count; ++i) {
        const auto [dy, dx] = taps_[static_cast<std::size_t>(i)];
        taps[i] = static_cast<const std::byte*>(rows[dy]) + static_cast<std::size_t>(dx * input_.channels) * ring_item_;
      }
      if (use_floats_) {
        last(taps, weights_.data(), count, delta_, 0, output, input_.row());
      } else {
        first(taps, weights_.data(), count, delta_, 0, scratch + sums_offset_, input_.row());
        taps[0] = scratch + sums_offset_;
        last(taps, unit_weight_.data(), 1, 0, 0, output, input_.row());
      }
    }
  }

 private:
  ImageShape input_;
  const ImageTable* images_;
  Passes passes_;
  RowFrame frame_;
  std::vector<std::byte> weights_, unit_weight_;
  std::vector<std::array<std::int64_t, 2>> taps_;
  std::int64_t width_ = 0, height_ = 0, anchor_y_ = 0, framed_ = 0;
  float delta_ = 0;
  bool use_floats_ = true;
  std::size_t out_item_ = 1, ring_item_ = 4, ring_bytes_ = 0, sums_offset_ = 0, slot_rows_offset_ = 0;
};

void check_border(std::string_view op, const Attributes& attributes) {
  const Border border = border_of(op, attributes);
  if (border == Border::wrap || border == Border::transparent)
    throw Error(ErrorKind::unsupported, std::string(op) + " supports the borders constant, replicate, reflect and reflect101");
}

}  // namespace

// Attributes: kernel_x, kernel_y, anchor_x, anchor_y (-1: centre), delta, border, to (a dtype). `bits`: fixed point for uint8 and
// uint16; both kernels have integer weights, whose product has that many fraction bits. `stride`: step between the pixels and
// rows that are computed.
TensorType infer_separable_filter(std::span<const Operand> operands, const Attributes& attributes) {
  const ImageShape shape = image_shape("SeparableFilter", operands[0].shape);
  const auto kernel_x = kernel_of("SeparableFilter", attributes, "kernel_x"),
             kernel_y = kernel_of("SeparableFilter", attributes, "kernel_y");
  anchor_of("SeparableFilter", attributes, "anchor_x", static_cast<std::int64_t>(kernel_x.size()));
  anchor_of("SeparableFilter", attributes, "anchor_y", static_cast<std::int64_t>(kernel_y.size()));
  check_border("SeparableFilter", attributes);
  const DType in = operands[0].dtype, out = result_of(operands[0], attributes);
  const std::int64_t bits = attributes.get_int("bits", 0), stride = attributes.get_int("stride", 1);
  if (bits != 0) {
    const bool fits =
        out == in && (in == DType::u8 || (in == DType::u16 && all_non_negative(kernel_x) && all_non_negative(kernel_y)));
    const double max_weight = in == DType::u8 ? 256 : 65536;
    if (!fits || bits < 0 || bits > (in == DType::u8 ? 24 : 32) || absolute_sum(kernel_x) > max_weight ||
        absolute_sum(kernel_y) > max_weight)
      throw Error(
          ErrorKind::model,
          "SeparableFilter in fixed point takes uint8 with weights whose absolute values sum up to 256 at most, or uint16 with "
          "non-negative weights that sum up to 65536 at most");
  }
  if (stride < 1 || stride > 16)
    throw Error(ErrorKind::model, "SeparableFilter: stride " + std::to_string(stride) + " is not in 1 to 16");
  passes_of("SeparableFilter", Arithmetic::float32, in, out);
  return {out, resized_shape(operands[0].shape, (shape.height + stride - 1) / stride, (shape.width + stride - 1) / stride)};
}
std::unique_ptr<HostStep> make_separable_filter(const StepRequest& request) { return std::make_unique<SeparableStep>(request); }

// Attributes: kernel (row by row), kernel_width, anchor_x, anchor_y, delta, border, to.
TensorType infer_image_filter(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("ImageFilter", operands[0].shape);
  const auto kernel = kernel_of("ImageFilter", attributes, "kernel");
  const std::int64_t width = attributes.get_int("kernel_width", 0), size = static_cast<std::int64_t>(kernel.size());
  if (width < 1 || size % width != 0)
    throw Error(ErrorKind::model, "ImageFilter: a kernel of " + std::to_string(size) +
                                      " weights does not have whole rows of kernel_width = " + std::to_string(width));
  anchor_of("ImageFilter", attributes, "anchor_x", width);
  anchor_of("ImageFilter", attributes, "anchor_y", size / width);
  check_border("ImageFilter", attributes);
  const DType out = result_of(operands[0], attributes);
  passes_of("ImageFilter", Arithmetic::float32, operands[0].dtype, out);
  return {out, operands[0].shape};
}
std::unique_ptr<HostStep> make_image_filter(const StepRequest& request) { return std::make_unique<FilterStep>(request); }

}  // namespace walle
