#include "atomic/products/activation.h"

#include "core/error.h"
#include "kernels/names.h"

namespace walle {

void check_activation(const Attributes& attributes) {
  for (const char* own : {"activation_map", "activation_a", "activation_b", "residual_last"})
    if (attributes.has(own)) throw Error(ErrorKind::model, std::string("attribute '") + own + "' is the engine's own");
  const std::string name = attributes.get_string("activation", "");
  if (!name.empty() && !find_unary(name))
    throw Error(ErrorKind::unsupported, "activation '" + name + "', which is no elementwise operator of one input");
}

Activation::Activation(const Attributes& attributes, const Table& table, DType dtype)
    : residual_last_(attributes.get_int("residual_last", 0) != 0), pack_(table.pack) {
  const auto type = static_cast<std::size_t>(compute_index(dtype));
  add_ = table.binary[static_cast<std::size_t>(BinaryOp::Add)][type];
  const std::string name = attributes.get_string("activation", "");
  if (name.empty()) return;
  if (attributes.has("activation_map")) {
    map_ = table.map[attributes.get_int("activation_map", 0)];
    a_ = static_cast<float>(attributes.get_float("activation_a", 0));
    b_ = static_cast<float>(attributes.get_float("activation_b", 0));
  } else if (const auto unary = find_unary(name)) {
    unary_ = table.unary[static_cast<std::size_t>(*unary)][type];
  } else {
    prelu_ = table.prelu;
  }
  if (unary_ == nullptr && map_ == nullptr && prelu_ == nullptr)
    throw Error(ErrorKind::dtype, "activation " + name + " takes no " + std::string(dtype_name(dtype)));
}

Activation Activation::watched(std::atomic<bool>& spoilt, const Table& table) const noexcept {
  Activation result = *this;
  result.sum_ = table.reduce[static_cast<std::size_t>(ReduceOp::ReduceSum)][static_cast<std::size_t>(Compute::f32)];
  result.spoilt_ = &spoilt;
  return result;
}

void Activation::run(void* at, std::int64_t count, const float* slope) const noexcept {
  if (unary_ != nullptr) unary_(at, 1, at, count);
  if (map_ != nullptr) map_(at, at, count, a_, b_);
  if (prelu_ != nullptr) prelu_(static_cast<float*>(at), slope, 1, static_cast<float*>(at), count);
}

void Activation::run(float* at, std::int64_t rows, std::int64_t step, std::int64_t width, const float* slope,
                     const float* residual) const noexcept {
  if (step == width && (prelu_ == nullptr || width % pack_ == 0)) return run_row(at, rows * width, slope, width, residual);
  for (std::int64_t row = 0; row < rows; ++row)
    run_row(at + row * step, width, slope, width, residual == nullptr ? nullptr : residual + row * step);
}

void Activation::run_row(float* at, std::int64_t count, const float* slope, std::int64_t period,
                         const float* residual) const noexcept {
  if (unary_ != nullptr) unary_(at, 1, at, count);
  if (map_ != nullptr) map_(at, at, count, a_, b_);
  if (prelu_ != nullptr) prelu_(at, slope, period, at, count);
  if (residual_last_ && residual != nullptr) add_(at, 1, residual, 1, at, count);
  if (spoilt_ == nullptr) return;
  float total;  // NaN too where infinities of both signs meet
  sum_(at, 1, count, &total);
  if (total != total) spoilt_->store(true, std::memory_order_relaxed);
}

}  // namespace walle
