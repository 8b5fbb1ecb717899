// Conv as an atomic operator: X, W, bias, residual; attributes of ONNX's Conv, `activation` (an elementwise operator's name,
// after the residual is added; see atomic/products/activation.h), `low` and `high` (bounds of float32 results, before the
// activation) and `algorithm` (one of conv_algorithms(); chosen by workload where left out).
#include "atomic/products/convolution.h"

#include <algorithm>
#include <limits>

#include "atomic/conversion.h"
#include "atomic/products/activation.h"

namespace walle {

ConvShape conv_shape(const Dims& x, const Dims& w, DType dtype, const Attributes& attributes) {
  if (x.size() < 3 || w.size() != x.size()) throw Error(ErrorKind::shape, "Conv of " + to_string(x) + " by " + to_string(w));
  ConvShape shape;
  shape.dtype = dtype;
  shape.batch = x[0];
  shape.groups = attributes.get_int("group", 1);
  if (shape.groups < 1 || shape.groups > std::max<std::int64_t>(x[1], 1) || x[1] % shape.groups != 0 ||
      w[0] % shape.groups != 0 || x[1] / shape.groups != w[1])
    throw Error(ErrorKind::shape,
                "Conv of " + to_string(x) + " by " + to_string(w) + " in " + std::to_string(shape.groups) + " groups");
  shape.in_channels = w[1];
  shape.out_channels = w[0] / shape.groups;
  const std::span<const std::int64_t> kernel = std::span(w).subspan(2);
  if (const auto given = attributes.get_ints("kernel_shape");
      given && !std::equal(given->begin(), given->end(), kernel.begin(), kernel.end()))
    throw Error(ErrorKind::shape, "Conv: kernel_shape is " + to_string(*given) + ", the weights are " + to_string(w));
  shape.window = Window::make("Conv", std::span(x).subspan(2), kernel, attributes);
  return shape;
}

namespace {

// What follows the sums, in place: + bias of each channel, + residual, bounds, then an activation.
class Epilogue {
 public:
  Epilogue(const StepRequest& request, const ConvShape& shape)
      : channels_(shape.groups * shape.out_channels),
        planes_(shape.batch * channels_),
        plane_(shape.window.out_count()),
        item_(static_cast<std::int64_t>(item_size(shape.dtype))),
        activation_(request.attributes, request.table, shape.dtype) {
    const auto given = [&](std::size_t i) { return i < request.inputs.size() && !request.inputs[i].absent; };
    bias_ = given(2);
    residual_ = given(3);
    add_ = request.table.binary[static_cast<std::size_t>(BinaryOp::Add)][shape.type()];
    low_ = static_cast<float>(request.attributes.get_float("low", low_));
    high_ = static_cast<float>(request.attributes.get_float("high", high_));
    if (low_ == -kInfinity && high_ == kInfinity) return;
    if (shape.dtype != DType::f32) throw Error(ErrorKind::dtype, "Conv with bounds takes float32 only");
    maximum_ = request.table.binary[static_cast<std::size_t>(BinaryOp::Maximum)][shape.type()];
    minimum_ = request.table.binary[static_cast<std::size_t>(BinaryOp::Minimum)][shape.type()];
  }

  void run(Team& team, std::byte* const* inputs, std::byte* out) const noexcept {
    if (!bias_ && !residual_ && maximum_ == nullptr && !activation_.any()) return;
    team.each(
        planes_,
        [&](std::int64_t p, int) {
          std::byte* at = out + p * plane_ * item_;
          const std::byte* residual = residual_ ? inputs[3] + p * plane_ * item_ : nullptr;
          if (bias_) add_(at, 1, inputs[2] + p % channels_ * item_, 0, at, plane_);
          if (residual_ && !activation_.residual_last()) add_(at, 1, residual, 1, at, plane_);
          if (maximum_ != nullptr) {
            maximum_(at, 1, &low_, 0, at, plane_);
            minimum_(at, 1, &high_, 0, at, plane_);
          }
          activation_.run(at, plane_,
                          activation_.has_slope() ? reinterpret_cast<const float*>(inputs[kSlope]) + p % channels_ : nullptr);
          if (residual_ && activation_.residual_last()) add_(at, 1, residual, 1, at, plane_);
        },
        kOperations * static_cast<double>(planes_ * plane_));
  }

 private:
  static constexpr double kOperations = 8;  // an element, about: to tell what is worth sharing
  std::int64_t channels_, planes_, plane_, item_;
  Activation activation_;
  bool bias_ = false, residual_ = false;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float low_ = -kInfinity, high_ = kInfinity;
  BinaryFn add_ = nullptr, maximum_ = nullptr, minimum_ = nullptr;
};

class ConvStep final : public SharedStep {
 public:
  ConvStep(const StepRequest& request, const ConvShape& shape)
      : shape_(shape),
        table_(request.table),
        algorithm_(choose_algorithm(shape, request.table, request.attributes.get_string("algorithm", ""))),
        epilogue_(request, shape) {
    constexpr std::size_t kLine = Storage::kAlignment;  // every member's part is aligned
    scratch_bytes_ = (algorithm_.scratch_bytes(shape_, table_) + kLine - 1) / kLine * kLine;
  }
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    algorithm_.run(team, shape_, table_, {inputs[0], inputs[1], output, scratch, static_cast<std::int64_t>(scratch_bytes_)});
    epilogue_.run(team, inputs, output);
  }
  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return algorithm_.name; }

 private:
  ConvShape shape_;
  const Table& table_;
  const ConvAlgorithm& algorithm_;
  Epilogue epilogue_;
};

}  // namespace

TensorType infer_conv(std::span<const Operand> operands, const Attributes& attributes) {
  check_activation(attributes);
  const DType dtype = operands[0].dtype;
  for (const Operand& operand : operands)
    if (!operand.absent && operand.dtype != dtype)
      throw Error(ErrorKind::dtype,
                  "Conv of " + std::string(dtype_name(dtype)) + " and " + std::string(dtype_name(operand.dtype)));
  const bool half = is_half(dtype);  // computed in float32
  if (!half &&
      (compute_index(dtype) < 0 || kernels("scalar").gemm[static_cast<std::size_t>(compute_index(dtype))].run == nullptr))
    throw Error(ErrorKind::dtype, "Conv takes no " + std::string(dtype_name(dtype)));
  const ConvShape shape = conv_shape(operands[0].shape, operands[1].shape, dtype, attributes);
  Dims result{shape.batch, shape.groups * shape.out_channels};
  for (const std::int64_t dim : shape.window.out_dims()) result.push_back(dim);
  if (operands.size() > 2 && !operands[2].absent && operands[2].shape != Dims{result[1]})
    throw Error(ErrorKind::shape,
                "Conv with a bias of shape " + to_string(operands[2].shape) + " for " + std::to_string(result[1]) + " channels");
  if (operands.size() > 3 && !operands[3].absent && operands[3].shape != result)
    throw Error(ErrorKind::shape,
                "Conv with a residual of shape " + to_string(operands[3].shape) + " for a result of " + to_string(result));
  return {dtype, result};
}

std::unique_ptr<Step> make_conv(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<Step> {
    return std::make_unique<ConvStep>(
        request, conv_shape(request.inputs[0].shape, request.inputs[1].shape, request.result.dtype, request.attributes));
  });
}

}  // namespace walle
