#include "atomic/products/phased_planes.h"

#include <algorithm>
#include <cstring>

namespace walle {

namespace {

std::int64_t rounded_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

}  // namespace

bool PhasedPlanes::applies(const Window& window) noexcept {
  if (window.kernel[0] != 1 || window.in[0] != 1 || window.out[0] != 1 || window.stride[1] != window.stride[2]) return false;
  constexpr double kFew = 4096, kMost = 4;  // padding that is worth while, in elements and beside them
  constexpr double kLargest = 1 << 22;      // elements of a plane, whose copies cannot be stopped
  double padded = 1;
  for (const std::size_t axis : {1, 2})
    padded *= static_cast<double>(window.out[axis] * window.stride[axis]) +
              static_cast<double>(window.kernel[axis]) * static_cast<double>(window.dilation[axis]);
  const double elements = static_cast<double>(window.in_count()) + static_cast<double>(window.out_count());
  return window.out_count() > 0 && padded <= std::min(kFew + kMost * elements, kLargest);
}

PhasedPlanes::PhasedPlanes(const Window& window, std::int64_t pack) : window_(window), step_(window.stride[1]) {
  const auto reach = [&](std::size_t axis) { return (window.kernel[axis] - 1) * window.dilation[axis]; };
  const auto span = [&](std::size_t axis) { return (window.out[axis] - 1) * step_ + reach(axis) + 1; };
  phase_rows_ = (span(1) + step_ - 1) / step_;
  pitch_ = (span(2) + step_ - 1) / step_;
  const std::int64_t phase = phase_rows_ * pitch_;
  result_floats_ = rounded_up(window.out[1] * pitch_, pack) + pack;
  result_vectors_ = rounded_up(window.out[1] * pitch_, pack) / pack;
  input_floats_ = step_ * step_ * phase + 2 * pack + pitch_;
  for (std::int64_t ky = 0; ky < window.kernel[1]; ++ky)
    for (std::int64_t kx = 0; kx < window.kernel[2]; ++kx) {
      const std::int64_t y = ky * window.dilation[1], x = kx * window.dilation[2], place = taps() * pack;
      const std::int64_t number = y % step_ * step_ + x % step_;
      taps_.push_back({number * phase + y / step_ * pitch_ + x / step_, place});
    }
}

void PhasedPlanes::fill_input(const float* plane, float* phases) const noexcept {
  const std::int64_t phase = phase_rows_ * pitch_, rows = phase_rows_ * step_, columns = pitch_ * step_;
  for (std::int64_t y = 0; y < window_.in[1]; ++y, plane += window_.in[2]) {
    const std::int64_t row = y + window_.begin[1];
    if (row >= rows) break;
    const std::int64_t last = std::min(window_.in[2], columns - window_.begin[2]);
    float* to = phases + row % step_ * step_ * phase + row / step_ * pitch_;
    if (step_ == 1) {
      if (last > 0) std::memcpy(to + window_.begin[2], plane, static_cast<std::size_t>(last) * sizeof(float));
      continue;
    }
    for (std::int64_t first = 0; first < std::min(step_, last); ++first) {
      const std::int64_t column = first + window_.begin[2];
      float* at = to + column % step_ * phase + column / step_;
      for (std::int64_t x = first; x < last; x += step_) *at++ = plane[x];
    }
  }
}

void PhasedPlanes::take_result(const float* rows, float* plane) const noexcept {
  for (std::int64_t y = 0; y < window_.out[1]; ++y)
    std::memcpy(plane + y * window_.out[2], rows + y * pitch_, static_cast<std::size_t>(window_.out[2]) * sizeof(float));
}

}  // namespace walle
