// RoiAlign with its gradient, and MaxRoiPool: boxes of an image joined to a fixed number of bins.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "atomic/conversion.h"
#include "atomic/roi_samples.h"
#include "core/stop.h"
#include "core/truncate.h"

namespace walle {

namespace {

// Where the boxes and their images lie.
template <class T>
RoiSamples<T> roi_samples(const RoiBins& bins, const Attributes& attributes) {
  return {bins, attributes.get_int("sampling_ratio", 0),
          attributes.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel"};
}
auto image_indices(const std::byte* indices, bool wide) {
  return [=](std::int64_t r) {
    return wide ? reinterpret_cast<const std::int64_t*>(indices)[r]
                : std::int64_t{reinterpret_cast<const std::int32_t*>(indices)[r]};
  };
}

// The average of a bin's samples; or (mode max, as ONNX has it) the greatest of their weighted pixels.
template <class T>
class RoiAlignStep final : public HostStep {
 public:
  RoiAlignStep(const StepRequest& request, const RoiBins& bins)
      : samples_(roi_samples<T>(bins, request.attributes)),
        greatest_(request.attributes.get_string("mode", "avg") == "max"),
        wide_(request.inputs[2].dtype == DType::i64) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    T* out = reinterpret_cast<T*>(output);
    const RoiBins& bins = samples_.bins();
    const char* fault = samples_.walk(reinterpret_cast<const T*>(inputs[1]), image_indices(inputs[2], wide_),
                                      [&](std::int64_t, std::int64_t channel, const RoiBox<T>& box) {
                                        const T* plane = x + (box.image * bins.channels + channel) * bins.height * bins.width;
                                        for (std::int64_t row = 0; row < bins.rows; ++row)
                                          for (std::int64_t column = 0; column < bins.columns; ++column)
                                            *out++ = joined(plane, box, row, column);
                                      });
    if (fault != nullptr) fail(fault);
  }

 private:
  T joined(const T* plane, const RoiBox<T>& box, std::int64_t row, std::int64_t column) const noexcept {
    T total{};
    bool first = true;
    samples_.each(box, row, column, [&](const RoiSample<T>& sample) {
      T value = sample.is_inside ? sample.weight[0] * plane[sample.pixel[0]] : T{0};
      for (std::size_t i = 1; sample.is_inside && i < 4; ++i) {
        const T other = sample.weight[i] * plane[sample.pixel[i]];
        value = greatest_ ? std::max(value, other) : value + other;
      }
      total = !greatest_ ? total + value : first ? value : std::max(total, value);
      first = false;
    });
    return greatest_ ? total : total / static_cast<T>(box.samples());
  }

  RoiSamples<T> samples_;
  bool greatest_, wide_;
};

// RoiAlignGradient: the gradient of RoiAlign by its image.
template <class T>
class RoiAlignGradientStep final : public HostStep {
 public:
  RoiAlignGradientStep(const StepRequest& request, const RoiBins& bins)
      : samples_(roi_samples<T>(bins, request.attributes)),
        greatest_(request.attributes.get_string("mode", "avg") == "max"),
        wide_(request.inputs[2].dtype == DType::i64),
        bytes_(static_cast<std::size_t>(element_count(request.result.shape)) * sizeof(T)) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    const T* gradient = reinterpret_cast<const T*>(inputs[3]);
    T* out = reinterpret_cast<T*>(output);
    std::memset(output, 0, bytes_);
    const RoiBins& bins = samples_.bins();
    const char* fault =
        samples_.walk(reinterpret_cast<const T*>(inputs[1]), image_indices(inputs[2], wide_),
                      [&](std::int64_t, std::int64_t channel, const RoiBox<T>& box) {
                        const std::int64_t plane = (box.image * bins.channels + channel) * bins.height * bins.width;
                        for (std::int64_t row = 0; row < bins.rows; ++row)
                          for (std::int64_t column = 0; column < bins.columns; ++column, ++gradient) {
                            if (greatest_)
                              add_to_greatest(x + plane, box, row, column, *gradient, out + plane);
                            else
                              add_to_all(box, row, column, *gradient / static_cast<T>(box.samples()), out + plane);
                          }
                      });
    if (fault != nullptr) fail(fault);
  }

 private:
  void add_to_all(const RoiBox<T>& box, std::int64_t row, std::int64_t column, T part, T* plane) const noexcept {
    samples_.each(box, row, column, [&](const RoiSample<T>& sample) {
      for (std::size_t i = 0; sample.is_inside && i < 4; ++i) plane[sample.pixel[i]] += sample.weight[i] * part;
    });
  }
  void add_to_greatest(const T* from, const RoiBox<T>& box, std::int64_t row, std::int64_t column, T gradient,
                       T* plane) const noexcept {
    T greatest{}, weight{};
    std::int64_t pixel = -1;
    samples_.each(box, row, column, [&](const RoiSample<T>& sample) {
      for (std::size_t i = 0; i < 4; ++i) {
        const T value = sample.is_inside ? sample.weight[i] * from[sample.pixel[i]] : T{0};
        if (pixel >= 0 && !(value > greatest)) continue;
        greatest = value;
        weight = sample.weight[i];
        pixel = sample.pixel[i];
      }
    });
    if (pixel >= 0) plane[pixel] += weight * gradient;
  }

  RoiSamples<T> samples_;
  bool greatest_, wide_;
  std::size_t bytes_;
};

template <class T>
class MaxRoiPoolStep final : public HostStep {
 public:
  explicit MaxRoiPoolStep(const RoiBins& bins) : bins_(bins) {}

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

  RoiBins bins_;
};

RoiBins bins_of(const char* op, const Dims& x, const Dims& rois, std::int64_t columns_of_roi, std::int64_t rows,
                std::int64_t columns, double scale) {
  if (x.size() != 4 || rois.size() != 2 || rois[1] != columns_of_roi || rows < 1 || columns < 1 || rows > (1 << 20) ||
      columns > (1 << 20) || (rois[0] > 0 && element_count(x) == 0))
    throw Error(ErrorKind::shape,
                std::string(op) + " of " + to_string(x) + " with boxes " + to_string(rois) + " to " + to_string({rows, columns}));
  return {x[1], x[2], x[3], x[0], rows, columns, rois[0], scale};
}

RoiBins align_bins(const Dims& x, const Dims& rois, const Attributes& attributes) {
  return bins_of("RoiAlign", x, rois, 4, attributes.get_int("output_height", 1), attributes.get_int("output_width", 1),
                 attributes.get_float("spatial_scale", 1.0));
}

RoiBins pool_bins(const Dims& x, const Dims& rois, const Attributes& attributes) {
  const Dims pooled = attributes.get_ints("pooled_shape").value_or(Dims{});
  if (pooled.size() != 2) throw Error(ErrorKind::model, "MaxRoiPool needs the attribute 'pooled_shape', two numbers");
  return bins_of("MaxRoiPool", x, rois, 5, pooled[0], pooled[1], attributes.get_float("spatial_scale", 1.0));
}

TensorType regions_type(const char* op, std::span<const Operand> operands, const RoiBins& bins) {
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
  const RoiBins bins = align_bins(operands[0].shape, operands[1].shape, attributes);
  if ((operands[2].dtype != DType::i64 && operands[2].dtype != DType::i32) || operands[2].shape != Dims{bins.rois})
    throw Error(ErrorKind::shape, "RoiAlign needs one batch index for each box");
  return regions_type("RoiAlign", operands, bins);
}
std::unique_ptr<HostStep> make_roi_align(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    const RoiBins bins = align_bins(request.inputs[0].shape, request.inputs[1].shape, request.attributes);
    if (request.result.dtype == DType::f64) return std::make_unique<RoiAlignStep<double>>(request, bins);
    return std::make_unique<RoiAlignStep<float>>(request, bins);
  });
}

TensorType infer_roi_align_gradient(std::span<const Operand> operands, const Attributes& attributes) {
  const TensorType result = infer_roi_align(operands.first(3), attributes);
  if (operands[3].dtype != result.dtype || operands[3].shape != result.shape)
    throw Error(ErrorKind::shape, "RoiAlignGradient needs a gradient of shape " + to_string(result.shape) + ", not " +
                                      to_string(operands[3].shape));
  return {result.dtype, operands[0].shape};
}
std::unique_ptr<HostStep> make_roi_align_gradient(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    const RoiBins bins = align_bins(request.inputs[0].shape, request.inputs[1].shape, request.attributes);
    if (request.result.dtype == DType::f64) return std::make_unique<RoiAlignGradientStep<double>>(request, bins);
    return std::make_unique<RoiAlignGradientStep<float>>(request, bins);
  });
}

TensorType infer_max_roi_pool(std::span<const Operand> operands, const Attributes& attributes) {
  return regions_type("MaxRoiPool", operands, pool_bins(operands[0].shape, operands[1].shape, attributes));
}
std::unique_ptr<HostStep> make_max_roi_pool(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    const RoiBins bins = pool_bins(request.inputs[0].shape, request.inputs[1].shape, request.attributes);
    if (request.result.dtype == DType::f64) return std::make_unique<MaxRoiPoolStep<double>>(bins);
    return std::make_unique<MaxRoiPoolStep<float>>(bins);
  });
}

}  // namespace walle
