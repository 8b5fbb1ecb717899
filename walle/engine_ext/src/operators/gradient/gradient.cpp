#include "operators/gradient/gradient.h"

#include <algorithm>
#include <array>

namespace walle {

namespace gradient {

// clang-format off
#define WALLE_RULE(name) std::vector<Emitter::Ref> of_##name(const GradientCall&)
WALLE_RULE(abs); WALLE_RULE(acos); WALLE_RULE(acosh); WALLE_RULE(add); WALLE_RULE(asin); WALLE_RULE(asinh); WALLE_RULE(atan);
WALLE_RULE(atan2); WALLE_RULE(atanh); WALLE_RULE(cast); WALLE_RULE(cbrt); WALLE_RULE(cholesky); WALLE_RULE(clip);
WALLE_RULE(col2im); WALLE_RULE(conv); WALLE_RULE(conv_input_gradient); WALLE_RULE(conv_weight_gradient); WALLE_RULE(copy_sign); WALLE_RULE(cos);
WALLE_RULE(cosh); WALLE_RULE(cum_prod); WALLE_RULE(cum_sum); WALLE_RULE(det); WALLE_RULE(div); WALLE_RULE(elu);
WALLE_RULE(erf); WALLE_RULE(exp); WALLE_RULE(exp2); WALLE_RULE(expm1); WALLE_RULE(fourier_transform); WALLE_RULE(gelu);
WALLE_RULE(grid_sample); WALLE_RULE(hard_sigmoid); WALLE_RULE(hard_swish); WALLE_RULE(hypot); WALLE_RULE(indexed_gather);
WALLE_RULE(indexed_scatter); WALLE_RULE(layer_normalization); WALLE_RULE(leaky_relu); WALLE_RULE(linear); WALLE_RULE(log);
WALLE_RULE(log10); WALLE_RULE(log1p); WALLE_RULE(log2); WALLE_RULE(log_add_exp); WALLE_RULE(log_softmax); WALLE_RULE(mantissa);
WALLE_RULE(channel_affine); WALLE_RULE(channel_moments); WALLE_RULE(channel_normalize); WALLE_RULE(channel_sums); WALLE_RULE(gate);
WALLE_RULE(matmul); WALLE_RULE(maximum); WALLE_RULE(minimum); WALLE_RULE(mish); WALLE_RULE(mul); WALLE_RULE(neg);
WALLE_RULE(pool_max); WALLE_RULE(pool_mean); WALLE_RULE(pool_sum); WALLE_RULE(power); WALLE_RULE(prelu); WALLE_RULE(prelu_gradient);
WALLE_RULE(reciprocal); WALLE_RULE(recurrent_steps); WALLE_RULE(reduce_extreme); WALLE_RULE(reduce_l2);
WALLE_RULE(reduce_log_sum_exp); WALLE_RULE(reduce_mean); WALLE_RULE(reduce_prod); WALLE_RULE(reduce_sum); WALLE_RULE(relu);
WALLE_RULE(remainder); WALLE_RULE(resample); WALLE_RULE(rms_normalization); WALLE_RULE(roi_align); WALLE_RULE(rsqrt);
WALLE_RULE(scale_by_power); WALLE_RULE(selu); WALLE_RULE(sigmoid); WALLE_RULE(sin); WALLE_RULE(sinh); WALLE_RULE(softmax);
WALLE_RULE(softplus); WALLE_RULE(solve); WALLE_RULE(sqrt); WALLE_RULE(square); WALLE_RULE(sub); WALLE_RULE(swish);
WALLE_RULE(tan); WALLE_RULE(tanh); WALLE_RULE(top_values); WALLE_RULE(where);
#undef WALLE_RULE
// clang-format on

}  // namespace gradient

namespace {

using namespace gradient;

constexpr std::string_view kComplex = "gradients of complex numbers are not supported; take real and imaginary parts";
constexpr std::string_view kDataShape = "the shape of its result depends on data, so that a plan cannot hold it";
constexpr std::string_view kImage = "image processing is not differentiated; Conv, Resize and GridSample are";
constexpr std::string_view kNotYet = "no rule has been written yet";

constexpr auto by_rule = Differentiable::by_rule, flat = Differentiable::flat, refused = Differentiable::refused;

constexpr std::array kRules{std::to_array<GradientRule>({
    {"Abs", by_rule, &of_abs, {}},
    {"Acos", by_rule, &of_acos, {}},
    {"Acosh", by_rule, &of_acosh, {}},
    {"Add", by_rule, &of_add, {}},
    {"And", flat, nullptr, {}},
    {"ApproximatePolygon", refused, nullptr, kDataShape},
    {"ArgMax", flat, nullptr, {}},
    {"ArgMin", flat, nullptr, {}},
    {"Asin", by_rule, &of_asin, {}},
    {"Asinh", by_rule, &of_asinh, {}},
    {"Atan", by_rule, &of_atan, {}},
    {"Atan2", by_rule, &of_atan2, {}},
    {"Atanh", by_rule, &of_atanh, {}},
    {"BilateralFilter", refused, nullptr, kImage},
    {"BinCount", refused, nullptr, kDataShape},
    {"BitwiseAnd", flat, nullptr, {}},
    {"BitwiseNot", flat, nullptr, {}},
    {"BitwiseOr", flat, nullptr, {}},
    {"BitwiseXor", flat, nullptr, {}},
    {"BoxFilter", refused, nullptr, kImage},
    {"CannyEdges", flat, nullptr, {}},
    {"Cast", by_rule, &of_cast, {}},
    {"Cbrt", by_rule, &of_cbrt, {}},
    {"Ceil", flat, nullptr, {}},
    {"ChannelAffine", by_rule, &of_channel_affine, {}},
    {"ChannelMoments", by_rule, &of_channel_moments, {}},
    {"ChannelNormalize", by_rule, &of_channel_normalize, {}},
    {"ChannelSums", by_rule, &of_channel_sums, {}},
    {"Cholesky", by_rule, &of_cholesky, {}},
    {"CircleSpans", flat, nullptr, {}},
    {"Clip", by_rule, &of_clip, {}},
    {"Col2Im", by_rule, &of_col2im, {}},
    {"ColorConvert", refused, nullptr, kImage},
    {"ColorToYuv", refused, nullptr, kImage},
    {"ComponentStatistics", flat, nullptr, {}},
    {"Compress", refused, nullptr, kDataShape},
    {"Conjugate", refused, nullptr, kComplex},
    {"ConnectedComponents", flat, nullptr, {}},
    {"Conv", by_rule, &of_conv, {}},
    {"ConvInputGradient", by_rule, &of_conv_input_gradient, {}},
    {"ConvWeightGradient", by_rule, &of_conv_weight_gradient, {}},
    {"ConvexHull", refused, nullptr, kDataShape},
    {"CopySign", by_rule, &of_copy_sign, {}},
    {"Cos", by_rule, &of_cos, {}},
    {"Cosh", by_rule, &of_cosh, {}},
    {"CumProd", by_rule, &of_cum_prod, {}},
    {"CumSum", by_rule, &of_cum_sum, {}},
    {"DeformColumns", refused, nullptr, kNotYet},
    {"Det", by_rule, &of_det, {}},
    {"DistanceTransform", flat, nullptr, {}},
    {"Div", by_rule, &of_div, {}},
    {"Eigh", refused, nullptr, kNotYet},
    {"Elu", by_rule, &of_elu, {}},
    {"Equal", flat, nullptr, {}},
    {"EqualizeTiles", flat, nullptr, {}},
    {"EqualizingTable", flat, nullptr, {}},
    {"Erf", by_rule, &of_erf, {}},
    {"Exp", by_rule, &of_exp, {}},
    {"Exp2", by_rule, &of_exp2, {}},
    {"Expm1", by_rule, &of_expm1, {}},
    {"Exponent", flat, nullptr, {}},
    {"FindContours", flat, nullptr, {}},
    {"FloodRegion", flat, nullptr, {}},
    {"Floor", flat, nullptr, {}},
    {"FloorDiv", flat, nullptr, {}},
    {"FloorMod", by_rule, &of_remainder, {}},
    {"Fmod", by_rule, &of_remainder, {}},
    {"FourierTransform", by_rule, &of_fourier_transform, {}},
    {"Gate", by_rule, &of_gate, {}},
    {"Gcd", flat, nullptr, {}},
    {"Gelu", by_rule, &of_gelu, {}},
    {"Greater", flat, nullptr, {}},
    {"GreaterOrEqual", flat, nullptr, {}},
    {"GridSample", by_rule, &of_grid_sample, {}},
    {"GridSampleGradient", refused, nullptr, "second derivatives of sampling are not supported"},
    {"HardSigmoid", by_rule, &of_hard_sigmoid, {}},
    {"HardSwish", by_rule, &of_hard_swish, {}},
    {"HistogramBound", flat, nullptr, {}},
    {"HoughLines", flat, nullptr, {}},
    {"HoughSegments", flat, nullptr, {}},
    {"Hypot", by_rule, &of_hypot, {}},
    {"ImageFilter", refused, nullptr, kImage},
    {"ImageHistogram", flat, nullptr, {}},
    {"ImageIntegral", refused, nullptr, kImage},
    {"ImageLookup", refused, nullptr, kImage},
    {"ImagePointwise", refused, nullptr, kImage},
    {"ImageResize", refused, nullptr, kImage},
    {"ImageSums", refused, nullptr, kImage},
    {"InRange", flat, nullptr, {}},
    {"IndexedGather", by_rule, &of_indexed_gather, {}},
    {"IndexedScatter", by_rule, &of_indexed_scatter, {}},
    {"IntegerConv", flat, nullptr, {}},
    {"IntegerLinear", flat, nullptr, {}},
    {"IntegerPoolMax", flat, nullptr, {}},
    {"IntegerQuantize", flat, nullptr, {}},
    {"IntegerSum", flat, nullptr, {}},
    {"IsFinite", flat, nullptr, {}},
    {"IsInfinite", flat, nullptr, {}},
    {"IsNaN", flat, nullptr, {}},
    {"LayerNormalization", by_rule, &of_layer_normalization, {}},
    {"LeakyRelu", by_rule, &of_leaky_relu, {}},
    {"Less", flat, nullptr, {}},
    {"LessOrEqual", flat, nullptr, {}},
    {"LineSpans", flat, nullptr, {}},
    {"Linear", by_rule, &of_linear, {}},
    {"Log", by_rule, &of_log, {}},
    {"Log10", by_rule, &of_log10, {}},
    {"Log1p", by_rule, &of_log1p, {}},
    {"Log2", by_rule, &of_log2, {}},
    {"LogAddExp", by_rule, &of_log_add_exp, {}},
    {"LogSoftmax", by_rule, &of_log_softmax, {}},
    {"Magnitude", refused, nullptr, kComplex},
    {"Mantissa", by_rule, &of_mantissa, {}},
    {"MatMul", by_rule, &of_matmul, {}},
    {"MaxRoiPool", refused, nullptr, kNotYet},
    {"Maximum", by_rule, &of_maximum, {}},
    {"MedianFilter", refused, nullptr, kImage},
    {"Minimum", by_rule, &of_minimum, {}},
    {"Mish", by_rule, &of_mish, {}},
    {"Morphology", refused, nullptr, kImage},
    {"Mul", by_rule, &of_mul, {}},
    {"Neg", by_rule, &of_neg, {}},
    {"NextAfter", refused, nullptr, "it moves by one step of rounding"},
    {"NonMaxSuppression", flat, nullptr, {}},
    {"NonZero", flat, nullptr, {}},
    {"Not", flat, nullptr, {}},
    {"NotEqual", flat, nullptr, {}},
    {"Or", flat, nullptr, {}},
    {"PRelu", by_rule, &of_prelu, {}},
    {"PReluGradient", by_rule, &of_prelu_gradient, {}},
    {"PolygonMoments", refused, nullptr, kDataShape},
    {"PolygonSpans", flat, nullptr, {}},
    {"PoolArgMax", flat, nullptr, {}},
    {"PoolMax", by_rule, &of_pool_max, {}},
    {"PoolMean", by_rule, &of_pool_mean, {}},
    {"PoolSum", by_rule, &of_pool_sum, {}},
    {"Power", by_rule, &of_power, {}},
    {"Qr", refused, nullptr, kNotYet},
    {"RMSNormalization", by_rule, &of_rms_normalization, {}},
    {"RandomBits", flat, nullptr, {}},
    {"RasterGradient", refused, nullptr, kNotYet},
    {"Reciprocal", by_rule, &of_reciprocal, {}},
    {"RecurrentGradient", refused, nullptr,
     "second derivatives of recurrent cells are not supported; use algorithm = \"decomposed\""},
    {"RecurrentSteps", by_rule, &of_recurrent_steps, {}},
    {"ReduceL2", by_rule, &of_reduce_l2, {}},
    {"ReduceLogSumExp", by_rule, &of_reduce_log_sum_exp, {}},
    {"ReduceMax", by_rule, &of_reduce_extreme, {}},
    {"ReduceMean", by_rule, &of_reduce_mean, {}},
    {"ReduceMin", by_rule, &of_reduce_extreme, {}},
    {"ReduceProd", by_rule, &of_reduce_prod, {}},
    {"ReduceSum", by_rule, &of_reduce_sum, {}},
    {"Relu", by_rule, &of_relu, {}},
    {"Remap", refused, nullptr, kImage},
    {"Resample", by_rule, &of_resample, {}},
    {"RoiAlign", by_rule, &of_roi_align, {}},
    {"RoiAlignGradient", refused, nullptr, "second derivatives of sampling are not supported"},
    {"Round", flat, nullptr, {}},
    {"Rsqrt", by_rule, &of_rsqrt, {}},
    {"ScaleByPower", by_rule, &of_scale_by_power, {}},
    {"SearchSorted", flat, nullptr, {}},
    {"Selu", by_rule, &of_selu, {}},
    {"SeparableFilter", refused, nullptr, kImage},
    {"ShiftLeft", flat, nullptr, {}},
    {"ShiftRight", flat, nullptr, {}},
    {"Sigmoid", by_rule, &of_sigmoid, {}},
    {"Sign", flat, nullptr, {}},
    {"SignBit", flat, nullptr, {}},
    {"Sin", by_rule, &of_sin, {}},
    {"Sinh", by_rule, &of_sinh, {}},
    {"Softmax", by_rule, &of_softmax, {}},
    {"Softplus", by_rule, &of_softplus, {}},
    {"Solve", by_rule, &of_solve, {}},
    {"Spacing", flat, nullptr, {}},
    {"Sqrt", by_rule, &of_sqrt, {}},
    {"Square", by_rule, &of_square, {}},
    {"StopGradient", flat, nullptr, {}},
    {"Sub", by_rule, &of_sub, {}},
    {"Svd", refused, nullptr, kNotYet},
    {"Swish", by_rule, &of_swish, {}},
    {"Tan", by_rule, &of_tan, {}},
    {"Tanh", by_rule, &of_tanh, {}},
    {"TopIndices", flat, nullptr, {}},
    {"TopValues", by_rule, &of_top_values, {}},
    {"Trunc", flat, nullptr, {}},
    {"Unique", refused, nullptr, kDataShape},
    {"WarpAffine", refused, nullptr, kImage},
    {"WarpPerspective", refused, nullptr, kImage},
    {"Where", by_rule, &of_where, {}},
    {"Xor", flat, nullptr, {}},
    {"YuvToColor", refused, nullptr, kImage},
})};
static_assert(std::ranges::is_sorted(kRules, {}, &GradientRule::op));

}  // namespace

const GradientRule* find_gradient(std::string_view op) noexcept {
  const auto found = std::ranges::lower_bound(kRules, op, {}, &GradientRule::op);
  return found != kRules.end() && found->op == op ? &*found : nullptr;
}

std::span<const GradientRule> gradient_rules() noexcept { return kRules; }

}  // namespace walle
