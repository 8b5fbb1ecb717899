// Conv as an atomic operator: X, W, bias, residual and slope; attributes of ONNX's Conv, `activation` (see atomic/epilogue.h) and
// `algorithm` (the name of one of plain layouts; searched where left out).
#include "atomic/products/convolution.h"

#include <algorithm>
#include <array>

#include "atomic/conversion.h"
#include "atomic/products/lane_depthwise.h"

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

TensorType infer_conv(std::span<const Operand> operands, const Attributes& attributes) {
  read_epilogue(attributes, false, false);  // throws where it is wrong
  const DType dtype = operands[0].dtype;
  for (const Operand& operand : operands)
    if (!operand.absent && operand.dtype != dtype)
      throw Error(ErrorKind::dtype,
                  "Conv of " + std::string(dtype_name(dtype)) + " and " + std::string(dtype_name(operand.dtype)));
  const bool half = is_half(dtype);  // computed in float32
  if (!half &&
      (compute_index(dtype) < 0 || kernels("scalar").gemm[static_cast<std::size_t>(compute_index(dtype))].run == nullptr))
    throw Error(ErrorKind::dtype, "Conv does not take " + std::string(dtype_name(dtype)));
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

std::unique_ptr<HostStep> make_conv(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    const DType dtype = request.result.dtype;
    const ConvProblem problem{conv_shape(request.inputs[0].shape, request.inputs[1].shape, dtype, request.attributes),
                              &request.table, false};
    const ConvChoice best = weigh_conv(problem, rates(request.table), request.attributes.get_string("algorithm", "")).front();
    return best.algorithm->make(problem, best.parameter, EpilogueKernel(request.epilogue, request.table, dtype));
  });
}

extern const ConvAlgorithm kPackedRows, kLaneSums, kLaneGroups, kPackedPairs, kPackedGroups, kPlainPointwise, kPlaneDepthwise,
    kPlainDepthwise, kPlainColumns, kImagesTogether, kPlainDirect;

Algorithms<ConvProblem> conv_algorithms() noexcept {
  static constexpr std::array<const ConvAlgorithm*, 15> all{
      &kPackedDepthwise, &kPackedRows,     &kPackedTiles,  &kLaneSums,       &kPackedPairs,
      &kPackedWinograd,  &kLaneGroups,     &kPackedGroups, &kPlainPointwise, &kLaneDepthwise,
      &kPlaneDepthwise,  &kPlainDepthwise, &kPlainColumns, &kImagesTogether, &kPlainDirect};
  return all;
}

std::vector<ConvChoice> weigh_conv(const ConvProblem& problem, const Rates& rates, std::string_view name) {
  std::vector<ConvChoice> choices = weigh(conv_algorithms(), problem, rates, name);
  if (choices.empty())
    throw Error(ErrorKind::unsupported,
                name.empty() ? "Conv has no algorithm for " + std::string(dtype_name(problem.shape.dtype)) + " operands"
                             : "algorithm '" + std::string(name) + "' of Conv does not exist or does not apply to this one");
  return choices;
}

}  // namespace walle
