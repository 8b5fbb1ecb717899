// RasterGradient: the adjoint of a raster whose source is read more than once, or not everywhere (§4.2): each element of the
// source's gradient is the sum of the result's gradients at the places that it was moved to.
#include <algorithm>
#include <cstring>

#include "atomic/atomic.h"
#include "core/stop.h"
#include "geometry/raster_attributes.h"

namespace walle {

namespace {

// Adds `count` elements to one, to neighbours, or to elements that are steps apart.
template <class T>
void add_row(const T* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t count) noexcept {
  if (to_step == 0) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(from[i * from_step]);
    *to += static_cast<T>(sum);
  } else if (to_step == 1 && from_step == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] += from[i * from_step];
  }
}

template <class T>
class RasterGradientStep final : public HostStep {
 public:
  RasterGradientStep(const StepRequest& request, std::vector<Region> regions)
      : regions_(std::move(regions)), bytes_(static_cast<std::size_t>(element_count(request.result.shape)) * sizeof(T)) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    std::memset(output, 0, bytes_);
    StopPoll poll;
    for (const Region& region : regions_)
      add(region, reinterpret_cast<const T*>(inputs[0]) + region.dst.offset, reinterpret_cast<T*>(output) + region.src.offset, 0,
          poll);
  }

 private:
  static bool add(const Region& region, const T* from, T* to, int axis, StopPoll& poll) noexcept {
    const auto at = static_cast<std::size_t>(axis);
    if (region.axes == 0) {
      *to += *from;
      return true;
    }
    const std::int64_t count = region.size[at], from_step = region.dst.stride[at], to_step = region.src.stride[at];
    if (axis + 1 == region.axes) {
      if (!poll.proceed(count)) return false;
      add_row(from, from_step, to, to_step, count);
      return true;
    }
    for (std::int64_t i = 0; i < count; ++i)
      if (!add(region, from + i * from_step, to + i * to_step, axis + 1, poll)) return false;
    return true;
  }

  std::vector<Region> regions_;
  std::size_t bytes_;
};

}  // namespace

TensorType infer_raster_gradient(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = operands[0].dtype;
  if (dtype != DType::f32 && dtype != DType::f64)
    throw Error(ErrorKind::dtype, "RasterGradient does not support " + std::string(dtype_name(dtype)));
  Dims shape = read_shape(attributes);
  read_regions(attributes, element_count(shape), element_count(operands[0].shape));
  return {dtype, std::move(shape)};
}

std::unique_ptr<HostStep> make_raster_gradient(const StepRequest& request) {
  auto regions = read_regions(request.attributes, element_count(request.result.shape), element_count(request.inputs[0].shape));
  if (request.result.dtype == DType::f64) return std::make_unique<RasterGradientStep<double>>(request, std::move(regions));
  return std::make_unique<RasterGradientStep<float>>(request, std::move(regions));
}

}  // namespace walle
