// Samples of RoiAlign: places in the bins of every box, each between four pixels. The gradient of RoiAlign goes through the same.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/stop.h"

namespace walle {

struct RoiBins {
  std::int64_t channels, height, width, batch, rows, columns, rois;
  double scale;
};

// A box with the image that it lies in; its bins are `bin_height` by `bin_width` pixels.
template <class T>
struct RoiBox {
  std::int64_t image, samples_y, samples_x;  // samples of a bin along each axis
  T top, left, bin_height, bin_width;

  std::int64_t samples() const noexcept { return std::max<std::int64_t>(samples_y * samples_x, 1); }
};

// Four pixels of a plane around a place, with their weights. A place outside of the image reads none, and is 0.
template <class T>
struct RoiSample {
  bool is_inside = false;
  std::array<std::int64_t, 4> pixel{};
  std::array<T, 4> weight{};
};

template <class T>
class RoiSamples {
 public:
  RoiSamples(const RoiBins& bins, std::int64_t ratio, bool is_half_pixel)
      : bins_(bins), ratio_(ratio), is_half_pixel_(is_half_pixel) {}

  const RoiBins& bins() const noexcept { return bins_; }

  // Calls visit(box) for each of the boxes (x0, y0, x1, y1), whose images `image_of` gives. Returns what is wrong with one, or
  // null.
  template <class ImageOf, class F>
  const char* walk(const T* roi, ImageOf&& image_of, F&& visit) const noexcept {
    StopPoll poll;
    for (std::int64_t r = 0; r < bins_.rois; ++r, roi += 4) {
      RoiBox<T> box;
      box.image = image_of(r);
      if (box.image < 0 || box.image >= bins_.batch) return "a batch index is out of range";
      const T scale = static_cast<T>(bins_.scale), shift = is_half_pixel_ ? T(0.5) : T{0};
      box.left = roi[0] * scale - shift;
      box.top = roi[1] * scale - shift;
      T width = roi[2] * scale - shift - box.left, height = roi[3] * scale - shift - box.top;
      if (!(std::fabs(box.left) < T(1e9) && std::fabs(box.top) < T(1e9) && std::fabs(width) < T(1e6) &&
            std::fabs(height) < T(1e6)))
        return "a box lies nowhere";
      if (!is_half_pixel_) {
        width = std::max(width, T{1});
        height = std::max(height, T{1});
      }
      box.bin_height = height / static_cast<T>(bins_.rows);
      box.bin_width = width / static_cast<T>(bins_.columns);
      box.samples_y = ratio_ > 0 ? ratio_ : static_cast<std::int64_t>(std::ceil(box.bin_height));
      box.samples_x = ratio_ > 0 ? ratio_ : static_cast<std::int64_t>(std::ceil(box.bin_width));
      if (box.samples_y * box.samples_x > kMaxSamples) return "a box has too many samples";
      for (std::int64_t c = 0; c < bins_.channels; ++c) {
        if (!poll.proceed(8 * bins_.rows * bins_.columns * box.samples_y * box.samples_x)) return nullptr;
        visit(r, c, box);
      }
    }
    return nullptr;
  }

  // Calls visit(sample) for the samples of a bin.
  template <class F>
  void each(const RoiBox<T>& box, std::int64_t row, std::int64_t column, F&& visit) const noexcept {
    const T top = box.top + static_cast<T>(row) * box.bin_height, left = box.left + static_cast<T>(column) * box.bin_width;
    for (std::int64_t i = 0; i < box.samples_y; ++i)
      for (std::int64_t j = 0; j < box.samples_x; ++j)
        visit(sample(top + (static_cast<T>(i) + T(0.5)) * box.bin_height / static_cast<T>(box.samples_y),
                     left + (static_cast<T>(j) + T(0.5)) * box.bin_width / static_cast<T>(box.samples_x)));
  }

 private:
  // Of one bin. A box far larger than its image would sample nothing but zeros, for hours.
  static constexpr std::int64_t kMaxSamples = std::int64_t{1} << 20;

  RoiSample<T> sample(T y, T x) const noexcept {
    if (y < -1 || y > static_cast<T>(bins_.height) || x < -1 || x > static_cast<T>(bins_.width)) return {};
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
    return {true,
            {row * bins_.width + column, row * bins_.width + right, below * bins_.width + column, below * bins_.width + right},
            {(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx}};
  }

  RoiBins bins_;
  std::int64_t ratio_;
  bool is_half_pixel_;
};

}  // namespace walle
