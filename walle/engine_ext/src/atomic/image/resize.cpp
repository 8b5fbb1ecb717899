// ImageResize: an image in another size, by OpenCV's interpolations. Each input row is resampled along x once and kept in a ring
// while result rows are interpolated from it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

enum class Interpolation : std::uint8_t { nearest, nearest_exact, linear, linear_exact, cubic, area, lanczos4, pyramid };

Interpolation interpolation_of(const Attributes& attributes) {
  const std::string name = attributes.get_string("interpolation", "linear");
  constexpr std::string_view names[] = {"nearest", "nearest_exact", "linear",   "linear_exact",
                                        "cubic",   "area",          "lanczos4", "pyramid"};
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) throw Error(ErrorKind::unsupported, "ImageResize does not support interpolation '" + name + "'");
  return static_cast<Interpolation>(found - std::begin(names));
}

// Taps of every position along one axis of the result: source indices and their weights, also in fixed point.
struct Axis {
  int taps = 1;
  std::vector<std::int32_t> sources;
  std::vector<float> weights;
  std::vector<std::int16_t> fixed_weights;

  AxisTaps view() const noexcept { return {sources.data(), weights.data(), fixed_weights.data(), taps}; }

  // Returns the same taps with the tap as the slow index, the order that kernels along a row take.
  Axis by_tap() const {
    Axis result{taps, sources, weights, fixed_weights};
    const std::size_t tap_count = static_cast<std::size_t>(taps), count = sources.size() / tap_count;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::size_t target = i % tap_count * count + i / tap_count;
      result.sources[target] = sources[i];
      result.weights[target] = weights[i];
      if (!fixed_weights.empty()) result.fixed_weights[target] = fixed_weights[i];
    }
    return result;
  }
};

// Sets the taps of one position: `axis.taps` consecutive sources from `first`, clamped to [0, size).
void set_taps(Axis& axis, std::int64_t position, std::int64_t first, const double* weights, std::int64_t size) {
  for (int t = 0; t < axis.taps; ++t) {
    const auto index = static_cast<std::size_t>(position * axis.taps + t);
    axis.sources[index] = static_cast<std::int32_t>(std::clamp<std::int64_t>(first + t, 0, size - 1));
    axis.weights[index] = static_cast<float>(weights[t]);
  }
}

// Computes the weights of 2 (linear), 4 (cubic) or 8 (Lanczos) taps for a position with the given fractional part.
void interpolation_weights(double fraction, int taps, double* weights) {
  if (taps == 2) {
    weights[0] = 1 - fraction;
    weights[1] = fraction;
  } else if (taps == 4) {
    constexpr double a = -0.75;
    weights[0] = ((a * (fraction + 1) - 5 * a) * (fraction + 1) + 8 * a) * (fraction + 1) - 4 * a;
    weights[1] = ((a + 2) * fraction - (a + 3)) * fraction * fraction + 1;
    weights[2] = ((a + 2) * (1 - fraction) - (a + 3)) * (1 - fraction) * (1 - fraction) + 1;
    weights[3] = 1 - weights[0] - weights[1] - weights[2];
  } else {
    double sum = 0;
    for (int i = 0; i < 8; ++i) {
      const double x = 3.14159265358979323846 * (fraction + 3 - i);
      weights[i] = std::abs(x) < 1e-6 ? 1 : std::sin(x) * std::sin(x / 4) / (x * x / 4);
      sum += weights[i];
    }
    for (int i = 0; i < 8; ++i) weights[i] /= sum;
  }
}

// Returns the taps of area interpolation when shrinking: the pixels that a result pixel covers, weighted by the covered part.
Axis area_axis(std::int64_t in_size, std::int64_t out_size, double scale) {
  Axis axis;
  axis.taps = static_cast<int>(std::ceil(scale)) + 1;
  axis.sources.assign(static_cast<std::size_t>(out_size * axis.taps), 0);
  axis.weights.assign(static_cast<std::size_t>(out_size * axis.taps), 0.0f);
  for (std::int64_t i = 0; i < out_size; ++i) {
    const double begin = std::min(static_cast<double>(i) * scale, static_cast<double>(in_size - 1)), end = begin + scale;
    const double cell = std::min(scale, static_cast<double>(in_size) - begin);
    std::int64_t first = static_cast<std::int64_t>(std::ceil(begin)), last = static_cast<std::int64_t>(std::floor(end));
    last = std::min(last, in_size - 1);
    first = std::min(first, last);
    auto slot = static_cast<std::size_t>(i * axis.taps);
    const auto put = [&](std::int64_t source, double weight) {
      if (slot >= static_cast<std::size_t>((i + 1) * axis.taps)) return;
      axis.sources[slot] = static_cast<std::int32_t>(source);
      axis.weights[slot++] = static_cast<float>(weight);
    };
    if (static_cast<double>(first) - begin > 1e-3) put(first - 1, (static_cast<double>(first) - begin) / cell);
    for (std::int64_t source = first; source < last; ++source) put(source, 1 / cell);
    if (end - static_cast<double>(last) > 1e-3) put(last, std::min(std::min(end - static_cast<double>(last), 1.0), cell) / cell);
    // The remaining taps have weight 0 and repeat a valid source.
    for (const auto used = slot; slot < static_cast<std::size_t>((i + 1) * axis.taps); ++slot)
      axis.sources[slot] = axis.sources[used - 1];
  }
  return axis;
}

// Returns the taps of pyramid upsampling, which inserts a pixel after each one: weights (1, 6, 1) / 8 and (4, 4) / 8. OpenCV
// mirrors the image about its first pixel and repeats the last.
Axis pyramid_axis(std::int64_t in_size) {
  Axis axis;
  axis.taps = 3;
  for (std::int64_t i = 0; i < in_size; ++i)
    for (const auto& weights : {std::array{1.0F, 6.0F, 1.0F}, std::array{0.0F, 4.0F, 4.0F}})
      for (int t = 0; t < 3; ++t) {
        const std::int64_t source = i + t - 1, mirrored = std::min<std::int64_t>(1, in_size - 1);
        axis.sources.push_back(static_cast<std::int32_t>(source < 0 ? mirrored : std::min(source, in_size - 1)));
        axis.weights.push_back(weights[static_cast<std::size_t>(t)] / 8);
        axis.fixed_weights.push_back(static_cast<std::int16_t>(weights[static_cast<std::size_t>(t)]));
      }
  return axis;
}

// Returns the taps of one axis. Columns beyond the first and last pixel use that pixel alone; rows keep two weights on the same
// pixel, whose products are rounded separately, as in OpenCV.
Axis make_axis(Interpolation interpolation, std::int64_t in_size, std::int64_t out_size, double scale, bool shrinks, bool is_rows,
               bool bytes) {
  if (interpolation == Interpolation::area && shrinks) return area_axis(in_size, out_size, scale);
  if (interpolation == Interpolation::pyramid) return pyramid_axis(in_size);
  const double ratio = static_cast<double>(out_size) / static_cast<double>(in_size),
               inverse = scale == 1 / ratio ? ratio : 1 / scale;
  Axis axis;
  axis.taps = interpolation == Interpolation::cubic ? 4 : interpolation == Interpolation::lanczos4 ? 8 : 2;
  axis.sources.resize(static_cast<std::size_t>(out_size * axis.taps));
  axis.weights.resize(static_cast<std::size_t>(out_size * axis.taps));
  for (std::int64_t i = 0; i < out_size; ++i) {
    double weights[8];
    std::int64_t first;
    double fraction;
    if (interpolation == Interpolation::area) {
      first = static_cast<std::int64_t>(std::floor(static_cast<double>(i) * scale));
      // In OpenCV's float precision, so that a fraction just below 1 becomes 0 as there.
      fraction = static_cast<double>(static_cast<float>(static_cast<double>(i + 1) - static_cast<double>(first + 1) * inverse));
      fraction = fraction <= 0 ? 0 : fraction - std::floor(fraction);
    } else {
      const double exact = (static_cast<double>(i) + 0.5) * scale - 0.5;
      const double centre = bytes && interpolation == Interpolation::linear ? static_cast<double>(static_cast<float>(exact))
                                                                            : exact;  // OpenCV's precision
      first = static_cast<std::int64_t>(std::floor(centre));
      fraction = centre - static_cast<double>(first);
    }
    if (axis.taps == 2 && !(is_rows && interpolation == Interpolation::linear)) {
      if (first < 0) first = 0, fraction = 0;
      if (first >= in_size - 1) first = in_size - 1, fraction = 0;
    }
    interpolation_weights(fraction, axis.taps, weights);
    set_taps(axis, i, first - axis.taps / 2 + 1, weights, in_size);
  }
  const double one = interpolation == Interpolation::linear_exact ? 256 : 2048;
  axis.fixed_weights.resize(axis.weights.size());
  for (std::size_t i = 0; i < axis.weights.size(); ++i)
    axis.fixed_weights[i] = static_cast<std::int16_t>(std::lrint(static_cast<double>(axis.weights[i]) * one));
  if (interpolation == Interpolation::linear_exact)
    for (std::size_t i = 0; i < axis.fixed_weights.size(); i += 2)
      axis.fixed_weights[i] = static_cast<std::int16_t>(256 - axis.fixed_weights[i + 1]);
  return axis;
}

class NearestStep final : public HostStep {
 public:
  NearestStep(const StepRequest& request, bool exact)
      : input_(image_shape("ImageResize", request.inputs[0].shape)), output_(image_shape("ImageResize", request.result.shape)) {
    size_ = static_cast<std::int64_t>(item_size(request.result.dtype)) * input_.channels;
    pick_ = request.table.image->pick_row;
    columns_ = nearest_sources(input_.width, output_.width, exact, request.attributes.get_float("scale_x", 0));
    rows_ = nearest_sources(input_.height, output_.height, exact, request.attributes.get_float("scale_y", 0));
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::int64_t row = output_.width * size_;
    StopPoll poll;
    for (std::int64_t y = 0; y < output_.height; ++y, output += row) {
      if (!poll.proceed(output_.row())) return;
      const auto row_index = static_cast<std::size_t>(y);
      if (y > 0 && rows_[row_index] == rows_[row_index - 1])
        std::memcpy(output, output - row, static_cast<std::size_t>(row));
      else
        pick_(columns_.data(), size_, inputs[0] + rows_[row_index] * input_.width * size_, output, output_.width);
    }
  }

 private:
  static std::vector<std::int32_t> nearest_sources(std::int64_t in_size, std::int64_t out_size, bool exact, double scale) {
    std::vector<std::int32_t> result(static_cast<std::size_t>(out_size));
    if (scale <= 0) scale = 1 / (static_cast<double>(out_size) / static_cast<double>(in_size));  // OpenCV's rounding
    for (std::int64_t i = 0; i < out_size; ++i) {
      const std::int64_t source =
          exact ? (2 * i + 1) * in_size / (2 * out_size) : static_cast<std::int64_t>(std::floor(static_cast<double>(i) * scale));
      result[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(std::clamp<std::int64_t>(source, 0, in_size - 1));
    }
    return result;
  }

  ImageShape input_, output_;
  std::int64_t size_;
  std::vector<std::int32_t> columns_, rows_;
  PickRowFn pick_;
};

// Exactly half the height and width: the mean of four pixels.
class HalfStep final : public HostStep {
 public:
  explicit HalfStep(const StepRequest& request)
      : input_(image_shape("ImageResize", request.inputs[0].shape)), item_(item_size(request.result.dtype)) {
    halve_ = request.table.image->halve_rows[pixel_index("ImageResize", request.result.dtype)];
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::size_t row = static_cast<std::size_t>(input_.row()) * item_;
    for (std::int64_t y = 0; y < input_.height / 2; ++y)
      halve_(inputs[0] + static_cast<std::size_t>(2 * y) * row, inputs[0] + static_cast<std::size_t>(2 * y + 1) * row,
             static_cast<int>(input_.channels), output + static_cast<std::size_t>(y) * (row / 2), input_.width / 2);
  }

 private:
  ImageShape input_;
  std::size_t item_;
  HalveRowsFn halve_;
};

class ResizeStep final : public HostStep {
 public:
  ResizeStep(const StepRequest& request, Interpolation interpolation)
      : input_(image_shape("ImageResize", request.inputs[0].shape)),
        output_(image_shape("ImageResize", request.result.shape)),
        images_(request.table.image),
        pixel_(pixel_index("ImageResize", request.result.dtype)),
        item_(item_size(request.result.dtype)) {
    const auto scale = [&](const char* name, std::int64_t in_size, std::int64_t out_size) {
      const double given = request.attributes.get_float(name, 0);
      return given > 0 ? given : 1 / (static_cast<double>(out_size) / static_cast<double>(in_size));
    };
    const double scale_x = scale("scale_x", input_.width, output_.width),
                 scale_y = scale("scale_y", input_.height, output_.height);
    const bool shrinks = scale_x >= 1 && scale_y >= 1;
    columns_ = make_axis(interpolation, input_.width, output_.width, scale_x, shrinks, false, pixel_ == 0).by_tap();
    rows_ = make_axis(interpolation, input_.height, output_.height, scale_y, shrinks, true, pixel_ == 0);
    fixed_point_ = pixel_ == 0 && !(interpolation == Interpolation::area && shrinks) && interpolation != Interpolation::lanczos4;
    const bool linear = interpolation == Interpolation::linear || interpolation == Interpolation::area;
    bits_ = interpolation == Interpolation::linear_exact ? 16 : interpolation == Interpolation::pyramid ? 6 : 22;
    resample_ = !fixed_point_ ? images_->resample_row[pixel_] : linear ? images_->resample_short : images_->resample_bytes;
    join_ = linear ? images_->join_linear_bytes : images_->join_bytes;
    // Fixed-point rows are planar by channel; they are interleaved last.
    planar_ = fixed_point_ && output_.channels > 1 && output_.channels <= 4;
    row_bytes_ = cache_aligned(static_cast<std::size_t>(output_.row()) * (fixed_point_ && linear ? 2 : 4));
    plane_bytes_ = planar_ ? cache_aligned(static_cast<std::size_t>(output_.row())) : 0;
    // The row in each slot of the ring is stored after the rows.
    scratch_bytes_ =
        plane_bytes_ + static_cast<std::size_t>(rows_.taps) * (row_bytes_ + sizeof(std::int64_t) + 2 * sizeof(void*));
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto taps = static_cast<std::size_t>(rows_.taps);
    std::byte* planar_row = scratch;
    scratch += plane_bytes_;
    auto* slot_rows = reinterpret_cast<std::int64_t*>(scratch + taps * row_bytes_);
    auto** rows = reinterpret_cast<const void**>(slot_rows + taps);
    std::fill(slot_rows, slot_rows + taps, -1);
    const std::size_t row_in = static_cast<std::size_t>(input_.row()) * item_,
                      row_out = static_cast<std::size_t>(output_.row()) * item_;
    StopPoll poll;
    for (std::int64_t y = 0; y < output_.height; ++y, output += row_out) {
      if (!poll.proceed(output_.row() * static_cast<std::int64_t>(taps))) return;
      const std::int32_t* sources = rows_.sources.data() + y * rows_.taps;
      for (std::size_t t = 0; t < taps; ++t) {
        // The source rows of one result row are consecutive, so that a ring of as many rows as taps holds all of them.
        const std::size_t slot = static_cast<std::size_t>(sources[t]) % taps;
        std::byte* row = scratch + slot * row_bytes_;
        rows[t] = row;
        if (slot_rows[slot] == sources[t]) continue;
        slot_rows[slot] = sources[t];
        resample_(columns_.view(), static_cast<int>(input_.channels), inputs[0] + static_cast<std::size_t>(sources[t]) * row_in,
                  row, output_.width);
      }
      if (fixed_point_)
        join_(rows, rows_.fixed_weights.data() + y * rows_.taps, rows_.taps, bits_, planar_ ? planar_row : output, output_.row());
      else
        images_->join_rows[pixel_](reinterpret_cast<const float* const*>(rows), rows_.weights.data() + y * rows_.taps, rows_.taps,
                                   output, output_.row());
      if (planar_) images_->weave(planar_row, output_.width, static_cast<int>(output_.channels), output, output_.width);
    }
  }

 private:
  ImageShape input_, output_;
  const ImageTable* images_;
  std::size_t pixel_, item_, row_bytes_ = 0, plane_bytes_ = 0;
  Axis columns_, rows_;
  bool fixed_point_ = false, planar_ = false;
  int bits_ = 22;
  ResampleRowFn resample_ = nullptr;
  JoinWholeRowsFn join_ = nullptr;
};

}  // namespace

// Attributes: height, width; interpolation; scale_x and scale_y, input pixels per result pixel, by default the ratio of the
// sizes.
TensorType infer_image_resize(std::span<const Operand> operands, const Attributes& attributes) {
  image_shape("ImageResize", operands[0].shape);
  const std::int64_t height = attributes.get_int("height", 0), width = attributes.get_int("width", 0);
  if (height < 1 || width < 1)
    throw Error(ErrorKind::shape,
                "ImageResize: height " + std::to_string(height) + " and width " + std::to_string(width) + " must be at least 1");
  const Interpolation interpolation = interpolation_of(attributes);
  if (interpolation != Interpolation::nearest && interpolation != Interpolation::nearest_exact)
    pixel_index("ImageResize", operands[0].dtype);
  if (interpolation == Interpolation::pyramid && (height != 2 * operands[0].shape[0] || width != 2 * operands[0].shape[1]))
    throw Error(ErrorKind::shape, "ImageResize by pyramid must double the height and the width");
  const Dims shape = resized_shape(operands[0].shape, height, width);
  image_shape("ImageResize", shape);
  return {operands[0].dtype, shape};
}

std::unique_ptr<HostStep> make_image_resize(const StepRequest& request) {
  const Interpolation interpolation = interpolation_of(request.attributes);
  if (interpolation == Interpolation::nearest || interpolation == Interpolation::nearest_exact)
    return std::make_unique<NearestStep>(request, interpolation == Interpolation::nearest_exact);
  const Dims &input = request.inputs[0].shape, &result = request.result.shape;
  const bool half = input[0] == 2 * result[0] && input[1] == 2 * result[1] && request.attributes.get_float("scale_x", 2) == 2 &&
                    request.attributes.get_float("scale_y", 2) == 2;
  if (half && (interpolation == Interpolation::area || interpolation == Interpolation::linear))
    return std::make_unique<HalfStep>(request);
  return std::make_unique<ResizeStep>(request, interpolation);
}

}  // namespace walle
