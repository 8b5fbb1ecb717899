// What follows the sums of a convolution or a matrix product beyond bias, residual and bounds: an activation, by the elementwise
// kernels that compute it alone, over stretches of finished sums while they lie in a cache; then, where it comes last, the
// residual.
//
// Attributes: `activation`, the name of an elementwise operator of one input, of a composite that is a map, or PRelu, whose slope
// of each channel is operand kSlope; of a map, `activation_map` (a MapOp) and its numbers `activation_a` and `activation_b`;
// `residual_last`. All but the elementwise operators are plan/fuse.cpp's alone.
#pragma once
#include <atomic>

#include "core/attributes.h"
#include "kernels/table.h"

namespace walle {

inline constexpr std::size_t kSlope = 4;  // operand of Conv and Linear

// Throws Error (unsupported, model) unless these attributes of a model's node give an elementwise operator, or nothing.
void check_activation(const Attributes& attributes);

class Activation {
 public:
  Activation() = default;
  // Of attributes that check_activation() or plan/fuse.cpp vouches for. Throws Error (dtype) where there is no kernel.
  Activation(const Attributes& attributes, const Table& table, DType dtype = DType::f32);

  // Whether there is anything to run.
  bool any() const noexcept {
    return unary_ != nullptr || map_ != nullptr || prelu_ != nullptr || residual_last_ || spoilt_ != nullptr;
  }
  bool has_slope() const noexcept { return prelu_ != nullptr; }
  bool residual_last() const noexcept { return residual_last_; }

  // The same, and `spoilt` becomes true where a result of the first run() is NaN, and at times where infinities or numbers that
  // are nearly so meet.
  Activation watched(std::atomic<bool>& spoilt, const Table& table) const noexcept;

  // In place over `rows` rows of `width` float32 numbers, `step` apart. `slope` is of the first column, and null where there is
  // none; `residual` is laid out as `at`, and heeded where it comes last; null: there is none.
  void run(float* at, std::int64_t rows, std::int64_t step, std::int64_t width, const float* slope,
           const float* residual) const noexcept;
  // In place over `count` numbers of the constructor's dtype, of one channel; the residual is left to the caller.
  void run(void* at, std::int64_t count, const float* slope) const noexcept;

 private:
  void run_row(float* at, std::int64_t count, const float* slope, std::int64_t period, const float* residual) const noexcept;

  UnaryFn unary_ = nullptr;
  MapFn map_ = nullptr;
  PReluFn prelu_ = nullptr;
  BinaryFn add_ = nullptr;
  ReduceFn sum_ = nullptr;
  std::atomic<bool>* spoilt_ = nullptr;
  float a_ = 0, b_ = 0;
  bool residual_last_ = false;
  std::int64_t pack_ = 1;
};

}  // namespace walle
