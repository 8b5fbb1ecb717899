// WarpAffine, WarpPerspective and Remap: an image sampled at source positions that a matrix or a map gives. They differ only in
// how the positions are computed.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

// Returns the number of taps of the attribute "interpolation" along each axis.
int taps_of(std::string_view op, const Attributes& attributes) {
  const std::string name = attributes.get_string("interpolation", "linear");
  if (name == "nearest") return 1;
  if (name == "linear") return 2;
  if (name == "cubic") return 4;
  if (name == "lanczos4") return 8;
  throw Error(ErrorKind::unsupported,
              std::string(op) + " does not support interpolation '" + name + "'; known are nearest, linear, cubic and lanczos4");
}

// Returns the Lanczos weights of 32 fractional positions; empty for the other interpolations.
std::vector<float> lanczos_weights(int taps) {
  std::vector<float> table;
  for (int position = 0; position < 32 && taps == 8; ++position) {
    const double fraction = position / 32.0;
    double weights[8], sum = 0;
    for (int i = 0; i < taps; ++i) {
      const double x = fraction + taps / 2 - 1 - i;
      constexpr double pi = 3.14159265358979323846;
      weights[i] = std::abs(x) < 1e-9 ? 1 : std::sin(pi * x) * std::sin(pi * x / 4) / (pi * x * pi * x / 4);
      sum += weights[i];
    }
    for (int i = 0; i < taps; ++i) table.push_back(static_cast<float>(weights[i] / sum));
  }
  return table;
}

class WarpStep : public HostStep {
 public:
  WarpStep(std::string_view op, const StepRequest& request)
      : input_(image_shape(op, request.inputs[0].shape)),
        output_(image_shape(op, request.result.shape)),
        item_(item_size(request.result.dtype)),
        sample_(request.table.image->sample[pixel_index(op, request.result.dtype)]),
        weights_(lanczos_weights(taps_of(op, request.attributes))) {
    args_.height = input_.height;
    args_.width = input_.width;
    args_.channels = static_cast<int>(input_.channels);
    args_.reach = taps_of(op, request.attributes);
    args_.border = static_cast<int>(border_of(op, request.attributes));
    const auto value = numbers_of(op, request.attributes, "value", {0, 0, 0, 0});
    std::copy(value.begin(), value.end(), args_.value);
    args_.weights = weights_.data();
    transparent_ = args_.border == static_cast<int>(Border::transparent);
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    SampleArgs args = args_;
    args.image = inputs[0];
    const std::size_t pixel = static_cast<std::size_t>(output_.channels) * item_;
    if (transparent_) std::memcpy(output, background(inputs), static_cast<std::size_t>(output_.pixels()) * pixel);
    float x[kSampleBlock], y[kSampleBlock];
    StopPoll poll;
    for (std::int64_t row = 0; row < output_.height; ++row)
      for (std::int64_t start = 0; start < output_.width; start += kSampleBlock) {
        const std::int64_t count = std::min(kSampleBlock, output_.width - start);
        if (!poll.proceed(8 * count * output_.channels)) return;
        positions(inputs, row, start, count, x, y);
        sample_(args, x, y, output + static_cast<std::size_t>(row * output_.width + start) * pixel, count);
      }
  }

 protected:
  // Computes the source positions of the pixels [row, start ...] of the result.
  virtual void positions(std::byte* const* inputs, std::int64_t row, std::int64_t start, std::int64_t count, float* x,
                         float* y) const noexcept = 0;
  // Returns the image that shows through a transparent border.
  virtual const std::byte* background(std::byte* const* inputs) const noexcept { return inputs[1]; }

  ImageShape input_, output_;
  SampleArgs args_;

 private:
  std::size_t item_;
  SampleFn sample_;
  std::vector<float> weights_;
  bool transparent_ = false;
};

// Returns the part of the mapping that a row of the result shares: for each row of the matrix its step and its start value.
PlaceArgs place_args(const std::vector<double>& matrix, std::int64_t row) noexcept {
  const auto number = [&](std::size_t i) { return i < matrix.size() ? static_cast<float>(matrix[i]) : 0.0F; };
  const auto down = static_cast<float>(row);
  return {number(0), number(1) * down + number(2), number(3), number(4) * down + number(5),
          number(6), number(7) * down + number(8)};
}

class AffineStep final : public WarpStep {
 public:
  explicit AffineStep(const StepRequest& request)
      : WarpStep("WarpAffine", request),
        m_(numbers_of("WarpAffine", request.attributes, "matrix", std::vector<double>(6, 0))),
        affine_(request.table.image->affine) {}

 protected:
  void positions(std::byte* const*, std::int64_t row, std::int64_t start, std::int64_t count, float* x,
                 float* y) const noexcept override {
    if (args_.reach != 8) return affine_(place_args(m_, row), start, x, y, count);
    const auto y_out = static_cast<double>(row);
    // OpenCV's fixed point: units of 1/1024 of a pixel, rounded to 1/32.
    const auto fixed = [](double v) {
      return static_cast<std::int64_t>(std::llrint(std::clamp(v * 1024, -2147483648.0, 2147483647.0)));
    };
    const std::int64_t x0 = fixed(m_[1] * y_out + m_[2]) + 16, y0 = fixed(m_[4] * y_out + m_[5]) + 16;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto column = static_cast<double>(start + i);
      x[i] = static_cast<float>((x0 + fixed(m_[0] * column)) >> 5) / 32.0f;
      y[i] = static_cast<float>((y0 + fixed(m_[3] * column)) >> 5) / 32.0f;
    }
  }

 private:
  std::vector<double> m_;
  PlacesFn affine_;
};

class PerspectiveStep final : public WarpStep {
 public:
  explicit PerspectiveStep(const StepRequest& request)
      : WarpStep("WarpPerspective", request),
        m_(numbers_of("WarpPerspective", request.attributes, "matrix", std::vector<double>(9, 0))),
        perspective_(request.table.image->perspective) {}

 protected:
  void positions(std::byte* const*, std::int64_t row, std::int64_t start, std::int64_t count, float* x,
                 float* y) const noexcept override {
    perspective_(place_args(m_, row), start, x, y, count);
  }

 private:
  std::vector<double> m_;
  PlacesFn perspective_;
};

class RemapStep final : public WarpStep {
 public:
  explicit RemapStep(const StepRequest& request)
      : WarpStep("Remap", request), interleaved_(request.inputs.size() < 3 || request.inputs[2].absent) {}

 protected:
  void positions(std::byte* const* inputs, std::int64_t row, std::int64_t start, std::int64_t count, float* x,
                 float* y) const noexcept override {
    const std::int64_t offset = row * output_.width + start;
    const auto* first = reinterpret_cast<const float*>(inputs[1]);
    if (interleaved_) {
      for (std::int64_t i = 0; i < count; ++i) x[i] = first[2 * (offset + i)], y[i] = first[2 * (offset + i) + 1];
      return;
    }
    const auto* second = reinterpret_cast<const float*>(inputs[2]);
    for (std::int64_t i = 0; i < count; ++i) x[i] = first[offset + i], y[i] = second[offset + i];
  }
  const std::byte* background(std::byte* const* inputs) const noexcept override { return inputs[3]; }

 private:
  bool interleaved_;
};

TensorType infer_warp(std::string_view op, std::span<const Operand> operands, const Attributes& attributes, std::size_t numbers) {
  image_shape(op, operands[0].shape);
  pixel_index(op, operands[0].dtype);
  taps_of(op, attributes);
  for (const double number : numbers_of(op, attributes, "matrix", std::vector<double>(numbers, 0)))
    if (!std::isfinite(number)) throw Error(ErrorKind::model, std::string(op) + ": the numbers of the matrix must be finite");
  numbers_of(op, attributes, "value", {0, 0, 0, 0});
  const Dims shape = resized_shape(operands[0].shape, attributes.get_int("height", 0), attributes.get_int("width", 0));
  image_shape(op, shape);
  const bool transparent = border_of(op, attributes) == Border::transparent;
  if (transparent && (operands.size() < 2 || operands[1].shape != shape || operands[1].dtype != operands[0].dtype))
    throw Error(ErrorKind::shape, std::string(op) + " with a transparent border needs a background image of shape " +
                                      to_string(shape) + " and the image's dtype");
  return {operands[0].dtype, shape};
}

}  // namespace

// Attributes of all three operators: interpolation, border and its value. Those of the first two: height, width and the matrix
// that maps a pixel (x, y) of the result to its position in the input. The second operand is the background of a transparent
// border.
TensorType infer_warp_affine(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_warp("WarpAffine", operands, attributes, 6);
}
std::unique_ptr<HostStep> make_warp_affine(const StepRequest& request) { return std::make_unique<AffineStep>(request); }

TensorType infer_warp_perspective(std::span<const Operand> operands, const Attributes& attributes) {
  return infer_warp("WarpPerspective", operands, attributes, 9);
}
std::unique_ptr<HostStep> make_warp_perspective(const StepRequest& request) { return std::make_unique<PerspectiveStep>(request); }

// Operands: the image; positions [height, width, 2] of (x, y), or x and y as two maps; the background of a transparent border.
TensorType infer_remap(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("Remap", operands[0].shape);
  pixel_index("Remap", operands[0].dtype);
  taps_of("Remap", attributes);
  numbers_of("Remap", attributes, "value", {0, 0, 0, 0});
  const Dims& map = operands[1].shape;
  const bool two_maps = operands.size() > 2 && !operands[2].absent;
  const bool fits =
      two_maps ? map.size() == 2 && operands[2].shape == map && operands[2].dtype == DType::f32 : map.size() == 3 && map[2] == 2;
  if (!fits || operands[1].dtype != DType::f32)
    throw Error(ErrorKind::shape,
                "Remap takes a float32 map [height, width, 2], or two of [height, width], not shape " + to_string(map));
  const Dims shape = resized_shape(operands[0].shape, map[0], map[1]);
  image_shape("Remap", shape);
  if (border_of("Remap", attributes) == Border::transparent &&
      (operands.size() < 4 || operands[3].shape != shape || operands[3].dtype != operands[0].dtype))
    throw Error(ErrorKind::shape, "Remap with a transparent border needs a background image of shape " + to_string(shape) +
                                      " and the image's dtype");
  return {operands[0].dtype, shape};
}
std::unique_ptr<HostStep> make_remap(const StepRequest& request) { return std::make_unique<RemapStep>(request); }

}  // namespace walle
