// Planes of a depthwise convolution as rows without borders: input and results lie in one pitch, the padding among them, so that
// a tap is one offset for a whole plane. With steps of s the input is s x s phases, of every s-th row and column.
#pragma once
#include <span>
#include <vector>

#include "geometry/window.h"
#include "kernels/table.h"

namespace walle {

class PhasedPlanes {
 public:
  // Windows over planes: one depth, equal steps along both axes, and not much more padding than elements.
  static bool applies(const Window& window) noexcept;
  PhasedPlanes(const Window& window, std::int64_t pack);

  std::int64_t taps() const noexcept { return static_cast<std::int64_t>(taps_.size()); }
  // Where each tap of the first result lies in the input's phases; its place is its number times `pack`.
  std::span<const Tap> offsets() const noexcept { return taps_; }
  // Floats of the input's phases and of a result; room for kernels to read and write whole vectors is behind the last element.
  std::int64_t input_floats() const noexcept { return input_floats_; }
  std::int64_t result_floats() const noexcept { return result_floats_; }
  // Vectors of a result.
  std::int64_t result_vectors() const noexcept { return result_vectors_; }

  // Copy a plane of the input to its phases. The padding is not touched: it is zero in memory that was cleared once.
  void fill_input(const float* plane, float* phases) const noexcept;
  void take_result(const float* rows, float* plane) const noexcept;

 private:
  Window window_;
  std::int64_t step_, pitch_, phase_rows_, input_floats_, result_floats_, result_vectors_;
  std::vector<Tap> taps_;
};

}  // namespace walle
