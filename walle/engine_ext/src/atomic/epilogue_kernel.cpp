#include "atomic/epilogue_kernel.h"

#include "core/error.h"
#include "kernels/names.h"

namespace walle {

std::optional<Activation> elementwise_activation(std::string_view op) noexcept {
  const auto unary = find_unary(op);
  return unary ? std::optional<Activation>(*unary) : std::nullopt;
}

Epilogue read_epilogue(const Attributes& attributes, bool bias, bool residual) {
  Epilogue epilogue;
  epilogue.bias = bias;
  if (residual) epilogue.residual = Residual::to_sums;
  const std::string name = attributes.get_string("activation", "");
  if (name.empty()) return epilogue;
  const auto activation = elementwise_activation(name);
  if (!activation) throw Error(ErrorKind::unsupported, "activation '" + name + "' is not an elementwise operator of one input");
  epilogue.activation = *activation;
  return epilogue;
}

EpilogueKernel::ActivationKernel EpilogueKernel::find_activation(const Epilogue& epilogue, const Table& table,
                                                                 DType dtype) noexcept {
  ActivationKernel found;
  if (compute_index(dtype) < 0) return found;
  if (const auto* unary = std::get_if<UnaryOp>(&epilogue.activation)) {
    found.unary = table.unary[static_cast<std::size_t>(*unary)][static_cast<std::size_t>(compute_index(dtype))];
  } else if (dtype == DType::f32) {
    if (const auto* map = std::get_if<Map>(&epilogue.activation)) found.map = table.map[static_cast<std::size_t>(map->op)];
    if (std::holds_alternative<ChannelSlope>(epilogue.activation)) found.prelu = table.prelu;
  }
  return found;
}

bool EpilogueKernel::exists(const Epilogue& epilogue, const Table& table, DType dtype) noexcept {
  if (epilogue.bounded() && dtype != DType::f32) return false;
  return !epilogue.activated() || find_activation(epilogue, table, dtype).exists();
}

EpilogueKernel::EpilogueKernel(const Epilogue& epilogue, const Table& table, DType dtype)
    : bias_(epilogue.bias),
      residual_(epilogue.residual),
      low_(epilogue.low),
      high_(epilogue.high),
      pack_(table.pack),
      item_(static_cast<std::int64_t>(item_size(dtype))) {
  const auto type = static_cast<std::size_t>(compute_index(dtype));
  const auto binary = [&](BinaryOp op) { return table.binary[static_cast<std::size_t>(op)][type]; };
  add_ = binary(BinaryOp::Add);
  if (epilogue.bounded()) {
    if (dtype != DType::f32)
      throw Error(ErrorKind::dtype, "bounds of results are float32's only, not of " + std::string(dtype_name(dtype)));
    maximum_ = binary(BinaryOp::Maximum);
    minimum_ = binary(BinaryOp::Minimum);
  }
  if (!epilogue.activated()) return;
  activation_ = find_activation(epilogue, table, dtype);
  if (const auto* map = std::get_if<Map>(&epilogue.activation)) {
    a_ = static_cast<float>(map->a);
    b_ = static_cast<float>(map->b);
  }
  if (!activation_.exists())
    throw Error(ErrorKind::dtype, "backend " + std::string(table.name) + " has no kernel for the activation of " +
                                      std::string(dtype_name(dtype)) + " results");
}

EpilogueOperands EpilogueKernel::operands(std::byte* const* inputs) const noexcept {
  const auto floats = [&](bool given, std::size_t operand) {
    return given ? reinterpret_cast<const float*>(inputs[operand]) : nullptr;
  };
  return {floats(bias_, kBias), floats(residual_ != Residual::none, kResidual), floats(has_slope(), kSlope)};
}

EpilogueKernel EpilogueKernel::watched(std::atomic<std::uint64_t>& nans_seen, const Table& table) const noexcept {
  EpilogueKernel result = *this;
  result.sum_ = table.reduce[static_cast<std::size_t>(ReduceOp::ReduceSum)][static_cast<std::size_t>(Compute::f32)];
  result.nans_seen_ = &nans_seen;
  return result;
}

void EpilogueKernel::run_activation(void* at, std::int64_t count, const float* slope, std::int64_t period) const noexcept {
  if (activation_.unary != nullptr) activation_.unary(at, 1, at, count);
  if (activation_.map != nullptr) activation_.map(at, at, count, a_, b_);
  if (activation_.prelu != nullptr) activation_.prelu(static_cast<float*>(at), slope, period, static_cast<float*>(at), count);
}

void EpilogueKernel::run_bounds(void* at, std::int64_t count) const noexcept {
  if (maximum_ == nullptr) return;
  maximum_(at, 1, &low_, 0, at, count);
  minimum_(at, 1, &high_, 0, at, count);
}

void EpilogueKernel::run_rest(float* at, std::int64_t rows, std::int64_t step, std::int64_t width,
                              const EpilogueOperands& operands) const noexcept {
  if (step == width && (!has_slope() || width % pack_ == 0)) return run_rest_row(at, rows * width, width, operands);
  for (std::int64_t row = 0; row < rows; ++row) run_rest_row(at + row * step, width, width, operands.at(0, row * step));
}

void EpilogueKernel::run_rest_row(float* at, std::int64_t count, std::int64_t period,
                                  const EpilogueOperands& operands) const noexcept {
  run_activation(at, count, operands.slope, period);
  if (residual_ == Residual::behind_activation) add_(at, 1, operands.residual, 1, at, count);
  if (nans_seen_ == nullptr) return;
  float total;  // NaN too where infinities of both signs meet
  sum_(at, 1, count, &total);
  if (total != total) nans_seen_->fetch_add(1, std::memory_order_relaxed);
}

void EpilogueKernel::run_channel(std::byte* at, std::int64_t count, std::byte* const* inputs, std::int64_t channel,
                                 std::int64_t element) const noexcept {
  const auto add_residual = [&] { add_(at, 1, inputs[kResidual] + element * item_, 1, at, count); };
  if (bias_) add_(at, 1, inputs[kBias] + channel * item_, 0, at, count);
  if (residual_ == Residual::to_sums) add_residual();
  run_bounds(at, count);
  run_activation(at, count, has_slope() ? reinterpret_cast<const float*>(inputs[kSlope]) + channel : nullptr, 1);
  if (residual_ == Residual::behind_activation) add_residual();
}

void EpilogueKernel::run_row(float* at, std::int64_t count, const EpilogueOperands& operands) const noexcept {
  if (residual_ == Residual::to_sums) add_(at, 1, operands.residual, 1, at, count);
  run_bounds(at, count);
  run_rest_row(at, count, count, operands);
}

}  // namespace walle
