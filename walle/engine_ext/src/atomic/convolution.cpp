// Conv as an atomic operator: X, W, bias, residual; attributes of ONNX's Conv, `activation` (an elementwise operator's name,
// after the residual is added), `low` and `high` (bounds of float32 results, before the activation) and `algorithm` (one of
// conv_algorithms(); chosen by workload where left out).
#include "atomic/convolution.h"

#include <algorithm>
#include <limits>

#include "atomic/conversion.h"
#include "graph/op.h"

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

// What follows the sums, in place: + bias of each channel, + residual, then an activation.
class Epilogue {
 public:
  Epilogue(const StepRequest& request, const ConvShape& shape)
      : channels_(shape.groups * shape.out_channels),
        planes_(shape.batch * channels_),
        plane_(shape.window.out_count()),
        item_(static_cast<std::int64_t>(item_size(shape.dtype))) {
    const auto given = [&](std::size_t i) { return i < request.inputs.size() && !request.inputs[i].absent; };
    bias_ = given(2);
    residual_ = given(3);
    add_ = request.table.binary[static_cast<std::size_t>(BinaryOp::Add)][shape.type()];
    low_ = static_cast<float>(request.attributes.get_float("low", low_));
    high_ = static_cast<float>(request.attributes.get_float("high", high_));
    if (low_ != -kInfinity || high_ != kInfinity) {
      if (shape.dtype != DType::f32) throw Error(ErrorKind::dtype, "Conv with bounds takes float32 only");
      maximum_ = request.table.binary[static_cast<std::size_t>(BinaryOp::Maximum)][shape.type()];
      minimum_ = request.table.binary[static_cast<std::size_t>(BinaryOp::Minimum)][shape.type()];
    }
    const std::string name = request.attributes.get_string("activation", "");
    if (name.empty()) return;
    const OpDef* op = find_operator(name);
    if (op == nullptr || op->family != Family::unary)
      throw Error(ErrorKind::unsupported, "Conv with activation '" + name + "', which is no elementwise operator of one input");
    activation_ = request.table.unary[op->code][shape.type()];
    if (activation_ == nullptr) throw Error(ErrorKind::dtype, name + " takes no " + std::string(dtype_name(shape.dtype)));
  }

  void run(std::byte* const* inputs, std::byte* out) const noexcept {
    if (bias_)
      for (std::int64_t p = 0; p < planes_; ++p)
        add_(out + p * plane_ * item_, 1, inputs[2] + p % channels_ * item_, 0, out + p * plane_ * item_, plane_);
    if (residual_) add_(out, 1, inputs[3], 1, out, planes_ * plane_);
    if (maximum_ != nullptr) {
      maximum_(out, 1, &low_, 0, out, planes_ * plane_);
      minimum_(out, 1, &high_, 0, out, planes_ * plane_);
    }
    if (activation_ != nullptr) activation_(out, 1, out, planes_ * plane_);
  }

 private:
  std::int64_t channels_, planes_, plane_, item_;
  bool bias_ = false, residual_ = false;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float low_ = -kInfinity, high_ = kInfinity;
  BinaryFn add_ = nullptr, maximum_ = nullptr, minimum_ = nullptr;
  UnaryFn activation_ = nullptr;
};

class ConvStep final : public Step {
 public:
  ConvStep(const StepRequest& request, const ConvShape& shape)
      : shape_(shape),
        table_(request.table),
        algorithm_(choose_algorithm(shape, request.table, request.attributes.get_string("algorithm", ""))),
        epilogue_(request, shape) {
    scratch_bytes_ = algorithm_.scratch_bytes(shape_, table_);
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    algorithm_.run(shape_, table_, inputs[0], inputs[1], output, scratch);
    epilogue_.run(inputs, output);
  }
  std::string_view algorithm() const noexcept override { return algorithm_.name; }

 private:
  ConvShape shape_;
  const Table& table_;
  const ConvAlgorithm& algorithm_;
  Epilogue epilogue_;
};

}  // namespace

TensorType infer_conv(std::span<const Operand> operands, const Attributes& attributes) {
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
