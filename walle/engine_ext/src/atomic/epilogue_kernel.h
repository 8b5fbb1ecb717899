// Kernels that apply an epilogue on one instruction set: in the registers of the kernel that sums, as far as that can (`finish`),
// and over stretches of stored sums while they lie in a cache (`run_rest`).
#pragma once
#include <atomic>

#include "atomic/epilogue.h"

namespace walle {

// The epilogue's operands in one run, from some place of the result on; null where absent.
struct EpilogueOperands {
  const float *bias = nullptr, *residual = nullptr, *slope = nullptr;

  // The same, `channels` and `elements` of the result further on.
  EpilogueOperands at(std::int64_t channels, std::int64_t elements) const noexcept {
    const auto moved = [](const float* from, std::int64_t by) { return from == nullptr ? nullptr : from + by; };
    return {moved(bias, channels), moved(residual, elements), moved(slope, channels)};
  }
};

class EpilogueKernel {
 public:
  EpilogueKernel() = default;
  // Throws Error (dtype) where the instruction set has no kernel for the epilogue's bounds or activation.
  EpilogueKernel(const Epilogue& epilogue, const Table& table, DType dtype = DType::f32);

  // Whether the instruction set has these kernels.
  static bool exists(const Epilogue& epilogue, const Table& table, DType dtype) noexcept;

  bool has_slope() const noexcept { return activation_.prelu != nullptr; }

  // Of float32, from the addresses of a step's operands.
  EpilogueOperands operands(std::byte* const* inputs) const noexcept;

  // What a kernel of sums applies as it stores them: bias, a residual added to the sums and, of the last partial sums, bounds.
  Finish finish(const EpilogueOperands& operands, bool last = true) const noexcept {
    Finish finish;
    finish.bias = operands.bias;
    if (residual_ == Residual::to_sums) finish.residual = operands.residual;
    if (last) finish.low = low_, finish.high = high_;
    return finish;
  }

  // Whether anything is left to apply after `finish`.
  bool has_rest() const noexcept {
    return activation_.exists() || residual_ == Residual::behind_activation || nans_seen_ != nullptr;
  }
  // Applies what is left, in place, to `rows` rows of `width` float32 numbers, `step` apart. `operands` are those of the first
  // number; the residual is laid out as `at`.
  void run_rest(float* at, std::int64_t rows, std::int64_t step, std::int64_t width,
                const EpilogueOperands& operands) const noexcept;

  // Whether the epilogue changes nothing, a bias apart.
  bool only_bias() const noexcept { return residual_ == Residual::none && maximum_ == nullptr && !has_rest(); }
  bool empty() const noexcept { return !bias_ && only_bias(); }
  // Applies all of it, in place, to `count` numbers of one channel, of the constructor's dtype. `inputs` are the step's operands,
  // `channel` and `element` the places of the first number in them.
  void run_channel(std::byte* at, std::int64_t count, std::byte* const* inputs, std::int64_t channel,
                   std::int64_t element) const noexcept;
  // Applies all but the bias, in place, to a row of float32 numbers of one channel each.
  void run_row(float* at, std::int64_t count, const EpilogueOperands& operands) const noexcept;

  // Return the same, which also increments `nans_seen` where a result of run_rest() is NaN, and at times where infinities or
  // numbers near them meet.
  EpilogueKernel watched(std::atomic<std::uint64_t>& nans_seen, const Table& table) const noexcept;

 private:
  // One of three, or none.
  struct ActivationKernel {
    UnaryFn unary = nullptr;
    MapFn map = nullptr;
    PReluFn prelu = nullptr;

    bool exists() const noexcept { return unary != nullptr || map != nullptr || prelu != nullptr; }
  };
  static ActivationKernel find_activation(const Epilogue& epilogue, const Table& table, DType dtype) noexcept;

  void run_activation(void* at, std::int64_t count, const float* slope, std::int64_t period) const noexcept;
  void run_bounds(void* at, std::int64_t count) const noexcept;
  void run_rest_row(float* at, std::int64_t count, std::int64_t period, const EpilogueOperands& operands) const noexcept;

  bool bias_ = false;
  Residual residual_ = Residual::none;
  float low_ = Finish().low, high_ = Finish().high;
  float a_ = 0, b_ = 0;  // factor and summand of the map
  ActivationKernel activation_;
  BinaryFn add_ = nullptr, maximum_ = nullptr, minimum_ = nullptr;
  ReduceFn sum_ = nullptr;
  std::atomic<std::uint64_t>* nans_seen_ = nullptr;
  std::int64_t pack_ = 1, item_ = sizeof(float);
};

}  // namespace walle
