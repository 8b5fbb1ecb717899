// RoiAlign and MaxRoiPool: boxes of an image joined to a fixed number of bins.
#include <algorithm>
#include <cmath>

#include "atomic/conversion.h"
#include "core/stop.h"
#include "core/truncate.h"

namespace walle {

namespace {

// Of one bin. A box far larger than its image would sample nothing but zeros, for hours.
constexpr std::int64_t kMaxSamples = std::int64_t{1} << 20;

struct Bins {
  std::int64_t channels, height, width, batch, rows, columns, rois;
  double scale;
};

template <class T>
class RoiAlignStep final : public HostStep {
 public:
  RoiAlignStep(const StepRequest& request, const Bins& bins)
      : bins_(bins),
        ratio_(request.attributes.get_int("sampling_ratio", 0)),
        greatest_(request.attributes.get_string("mode", "avg") == "max"),
        half_(request.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel"),
        wide_(request.inputs[2].dtype == DType::i64) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    const T* roi = reinterpret_cast<const T*>(inputs[1]);
    T* out = reinterpret_cast<T*>(output);
    StopPoll poll;
    for (std::int64_t r = 0; r < bins_.rois; ++r, roi += 4) {
      const std::int64_t image =
          wide_ ? reinterpret_cast<const std::int64_t*>(inputs[2])[r] : reinterpret_cast<const std::int32_t*>(inputs[2])[r];
      if (image < 0 || image >= bins_.batch) return fail("a batch index is out of range");
      const T scale = static_cast<T>(bins_.scale), shift = half_ ? T(0.5) : T{0};
      const T left = roi[0] * scale - shift, top = roi[1] * scale - shift;
      T width = roi[2] * scale - shift - left, height = roi[3] * scale - shift - top;
      if (!(std::fabs(left) < T(1e9) && std::fabs(top) < T(1e9) && std::fabs(width) < T(1e6) && std::fabs(height) < T(1e6)))
        return fail("a box lies nowhere");
      if (!half_) {
        width = std::max(width, T{1});
        height = std::max(height, T{1});
      }
      const T bin_height = height / static_cast<T>(bins_.rows), bin_width = width / static_cast<T>(bins_.columns);
      const std::int64_t samples_y = ratio_ > 0 ? ratio_ : static_cast<std::int64_t>(std::ceil(bin_height));
      const std::int64_t samples_x = ratio_ > 0 ? ratio_ : static_cast<std::int64_t>(std::ceil(bin_width));
      if (samples_y * samples_x > kMaxSamples) return fail("a box has too many samples");
      for (std::int64_t c = 0; c < bins_.channels; ++c) {
        if (!poll.proceed(8 * bins_.rows * bins_.columns * samples_y * samples_x)) return;
        const T* plane = x + (image * bins_.channels + c) * bins_.height * bins_.width;
        for (std::int64_t row = 0; row < bins_.rows; ++row)
          for (std::int64_t column = 0; column < bins_.columns; ++column)
            *out++ = bin(plane, top + static_cast<T>(row) * bin_height, left + static_cast<T>(column) * bin_width, bin_height,
                         bin_width, samples_y, samples_x);
      }
    }
  }

 private:
  T bin(const T* plane, T top, T left, T height, T width, std::int64_t samples_y, std::int64_t samples_x) const noexcept {
    T total{};
    bool first = true;
    for (std::int64_t i = 0; i < samples_y; ++i)
      for (std::int64_t j = 0; j < samples_x; ++j) {
        const T y = top + (static_cast<T>(i) + T(0.5)) * height / static_cast<T>(samples_y);
        const T x = left + (static_cast<T>(j) + T(0.5)) * width / static_cast<T>(samples_x);
        const T value = sample(plane, y, x);
        total = !greatest_ ? total + value : first ? value : std::max(total, value);
        first = false;
      }
    return greatest_ ? total : total / static_cast<T>(std::max<std::int64_t>(samples_y * samples_x, 1));
  }

  // The four neighbours with their weights: added up, or (mode max, as ONNX has it) the greatest of the weighted ones.
  T sample(const T* plane, T y, T x) const noexcept {
    if (y < -1 || y > static_cast<T>(bins_.height) || x < -1 || x > static_cast<T>(bins_.width)) return T{};
    y = std::max(y, T{0});
    x = std::max(x, T{0});
    std::int64_t row = static_cast<std::int64_t>(y), column = static_cast<std::int64_t>(x), below, right;
    if (row >= bins_.height - 1) {
      row = below = bins_.height - 1;
      y = static_cast<T>(row);
    } else {
      below = row + 1;
    }
    if (column >= bins_.width - 1) {
      column = right = bins_.width - 1;
      x = static_cast<T>(column);
    } else {
      right = column + 1;
    }
    const T dy = y - static_cast<T>(row), dx = x - static_cast<T>(column);
    const T a = (1 - dy) * (1 - dx) * plane[row * bins_.width + column], b = (1 - dy) * dx * plane[row * bins_.width + right];
    const T c = dy * (1 - dx) * plane[below * bins_.width + column], d = dy * dx * plane[below * bins_.width + right];
    return greatest_ ? std::max(std::max(a, b), std::max(c, d)) : a + b + c + d;
  }

  Bins bins_;
  std::int64_t ratio_;
  bool greatest_, half_, wide_;
};

template <class T>
class MaxRoiPoolStep final : public HostStep {
 public:
  explicit MaxRoiPoolStep(const Bins& bins) : bins_(bins) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    const T* roi = reinterpret_cast<const T*>(inputs[1]);
    T* out = reinterpret_cast<T*>(output);
    StopPoll poll;
    for (std::int64_t r = 0; r < bins_.rois; ++r, roi += 5) {
      for (int i = 0; i < 5; ++i)
        if (!(std::fabs(static_cast<double>(roi[i]) * (i == 0 ? 1 : bins_.scale)) < 1e9)) return fail("a box lies nowhere");
      const auto image = static_cast<std::int64_t>(roi[0]);
      if (image < 0 || image >= bins_.batch) return fail("a batch index is out of range");
      const auto scaled = [&](T value) { return truncate_to_int64(std::round(static_cast<double>(value) * bins_.scale)); };
      const std::int64_t left = scaled(roi[1]), top = scaled(roi[2]);
      const std::int64_t width = std::max<std::int64_t>(scaled(roi[3]) - left + 1, 1),
                         height = std::max<std::int64_t>(scaled(roi[4]) - top + 1, 1);
      for (std::int64_t c = 0; c < bins_.channels; ++c) {
        if (!poll.proceed(bins_.height * bins_.width)) return;
        const T* plane = x + (image * bins_.channels + c) * bins_.height * bins_.width;
        for (std::int64_t row = 0; row < bins_.rows; ++row)
          for (std::int64_t column = 0; column < bins_.columns; ++column) {
            const auto [y0, y1] = range(row, bins_.rows, height, top, bins_.height);
            const auto [x0, x1] = range(column, bins_.columns, width, left, bins_.width);
            T best{};
            for (std::int64_t i = y0; i < y1; ++i)
              for (std::int64_t j = x0; j < x1; ++j)
                if ((i == y0 && j == x0) || plane[i * bins_.width + j] > best) best = plane[i * bins_.width + j];
            *out++ = best;
          }
      }
    }
  }

 private:
  // The pixels of bin `at` of `count` over `extent` pixels from `start`, inside [0, limit).
  static std::pair<std::int64_t, std::int64_t> range(std::int64_t at, std::int64_t count, std::int64_t extent, std::int64_t start,
                                                     std::int64_t limit) noexcept {
    const double size = static_cast<double>(extent) / static_cast<double>(count);
    const auto first = truncate_to_int64(std::floor(static_cast<double>(at) * size)) + start;
    const auto last = truncate_to_int64(std::ceil(static_cast<double>(at + 1) * size)) + start;
    return {std::clamp<std::int64_t>(first, 0, limit), std::clamp<std::int64_t>(last, 0, limit)};
  }

  Bins bins_;
};

Bins bins_of(const char* op, const Dims& x, const Dims& rois, std::int64_t columns_of_roi, std::int64_t rows,
             std::int64_t columns, double scale) {
  if (x.size() != 4 || rois.size() != 2 || rois[1] != columns_of_roi || rows < 1 || columns < 1 || rows > (1 << 20) ||
      columns > (1 << 20) || (rois[0] > 0 && element_count(x) == 0))
    throw Error(ErrorKind::shape,
                std::string(op) + " of " + to_string(x) + " with boxes " + to_string(rois) + " to " + to_string({rows, columns}));
  return {x[1], x[2], x[3], x[0], rows, columns, rois[0], scale};
}

Bins align_bins(const Dims& x, const Dims& rois, const Attributes& attributes) {
  return bins_of("RoiAlign", x, rois, 4, attributes.get_int("output_height", 1), attributes.get_int("output_width", 1),
                 attributes.get_float("spatial_scale", 1.0));
}

Bins pool_bins(const Dims& x, const Dims& rois, const Attributes& attributes) {
  const Dims pooled = attributes.get_ints("pooled_shape").value_or(Dims{});
  if (pooled.size() != 2) throw Error(ErrorKind::model, "MaxRoiPool needs the attribute 'pooled_shape', two numbers");
  return bins_of("MaxRoiPool", x, rois, 5, pooled[0], pooled[1], attributes.get_float("spatial_scale", 1.0));
}

TensorType regions_type(const char* op, std::span<const Operand> operands, const Bins& bins) {
  const DType dtype = operands[0].dtype;
  if ((dtype != DType::f32 && dtype != DType::f64 && !is_half(dtype)) || operands[1].dtype != dtype)
    throw Error(ErrorKind::dtype, std::string(op) + " does not support " + std::string(dtype_name(dtype)) + " with boxes of " +
                                      std::string(dtype_name(operands[1].dtype)));
  return {dtype, {bins.rois, bins.channels, bins.rows, bins.columns}};
}

}  // namespace

TensorType infer_roi_align(std::span<const Operand> operands, const Attributes& attributes) {
  const std::string mode = attributes.get_string("mode", "avg"),
                    coordinates = attributes.get_string("coordinate_transformation_mode", "half_pixel");
  if (mode != "avg" && mode != "max") throw Error(ErrorKind::unsupported, "RoiAlign mode '" + mode + "'; known are avg and max");
  if (coordinates != "half_pixel" && coordinates != "output_half_pixel")
    throw Error(ErrorKind::unsupported, "RoiAlign coordinate_transformation_mode '" + coordinates + "'");
  if (const std::int64_t ratio = attributes.get_int("sampling_ratio", 0); ratio < 0 || ratio > 1024)
    throw Error(ErrorKind::model, "RoiAlign with a sampling_ratio of " + std::to_string(ratio) + "; it must be from 0 to 1024");
  const Bins bins = align_bins(operands[0].shape, operands[1].shape, attributes);
  if ((operands[2].dtype != DType::i64 && operands[2].dtype != DType::i32) || operands[2].shape != Dims{bins.rois})
    throw Error(ErrorKind::shape, "RoiAlign needs one batch index for each box");
  return regions_type("RoiAlign", operands, bins);
}
std::unique_ptr<HostStep> make_roi_align(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    const Bins bins = align_bins(request.inputs[0].shape, request.inputs[1].shape, request.attributes);
    if (request.result.dtype == DType::f64) return std::make_unique<RoiAlignStep<double>>(request, bins);
    return std::make_unique<RoiAlignStep<float>>(request, bins);
  });
}

TensorType infer_max_roi_pool(std::span<const Operand> operands, const Attributes& attributes) {
  return regions_type("MaxRoiPool", operands, pool_bins(operands[0].shape, operands[1].shape, attributes));
}
std::unique_ptr<HostStep> make_max_roi_pool(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    const Bins bins = pool_bins(request.inputs[0].shape, request.inputs[1].shape, request.attributes);
    if (request.result.dtype == DType::f64) return std::make_unique<MaxRoiPoolStep<double>>(bins);
    return std::make_unique<MaxRoiPoolStep<float>>(bins);
  });
}

}  // namespace walle
