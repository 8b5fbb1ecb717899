#include "geometry/composite/composite.h"

#include <algorithm>

namespace walle {

// clang-format off
#define WALLE_DECOMPOSE(name) \
  std::vector<Emitter::Ref> name(Emitter&, std::span<const Emitter::Ref>, const Attributes&, int)
WALLE_DECOMPOSE(decompose_clip); WALLE_DECOMPOSE(decompose_gemm); WALLE_DECOMPOSE(decompose_gru);
WALLE_DECOMPOSE(decompose_einsum); WALLE_DECOMPOSE(decompose_matmul_integer);
WALLE_DECOMPOSE(decompose_one_hot); WALLE_DECOMPOSE(decompose_qlinear_matmul);
WALLE_DECOMPOSE(decompose_layer_norm); WALLE_DECOMPOSE(decompose_log_softmax); WALLE_DECOMPOSE(decompose_shape); WALLE_DECOMPOSE(decompose_size);
WALLE_DECOMPOSE(decompose_softmax);
WALLE_DECOMPOSE(decompose_affine_grid);
WALLE_DECOMPOSE(decompose_average_pool);
WALLE_DECOMPOSE(decompose_conv_integer);
WALLE_DECOMPOSE(decompose_conv_transpose);
WALLE_DECOMPOSE(decompose_deform_conv);
WALLE_DECOMPOSE(decompose_global_average_pool);
WALLE_DECOMPOSE(decompose_global_lp_pool);
WALLE_DECOMPOSE(decompose_global_max_pool);
WALLE_DECOMPOSE(decompose_lp_pool);
WALLE_DECOMPOSE(decompose_max_pool);
WALLE_DECOMPOSE(decompose_qlinear_add); WALLE_DECOMPOSE(decompose_qlinear_global_average_pool);
WALLE_DECOMPOSE(decompose_qlinear_rescale);
WALLE_DECOMPOSE(decompose_qlinear_conv);
WALLE_DECOMPOSE(decompose_resize);
WALLE_DECOMPOSE(decompose_attention);
WALLE_DECOMPOSE(decompose_adagrad); WALLE_DECOMPOSE(decompose_adam); WALLE_DECOMPOSE(decompose_momentum);
WALLE_DECOMPOSE(decompose_batch_normalization); WALLE_DECOMPOSE(decompose_group_normalization); WALLE_DECOMPOSE(decompose_instance_normalization);
WALLE_DECOMPOSE(decompose_lp_normalization); WALLE_DECOMPOSE(decompose_lrn); WALLE_DECOMPOSE(decompose_lstm);
WALLE_DECOMPOSE(decompose_mean_variance_normalization); WALLE_DECOMPOSE(decompose_rms_normalization); WALLE_DECOMPOSE(decompose_rnn);
WALLE_DECOMPOSE(decompose_bit_shift);
WALLE_DECOMPOSE(decompose_cast_like);
WALLE_DECOMPOSE(decompose_hardmax);
WALLE_DECOMPOSE(decompose_is_inf);
WALLE_DECOMPOSE(decompose_max);
WALLE_DECOMPOSE(decompose_mean);
WALLE_DECOMPOSE(decompose_min);
WALLE_DECOMPOSE(decompose_mod);
WALLE_DECOMPOSE(decompose_pow);
WALLE_DECOMPOSE(decompose_reduce_l1);
WALLE_DECOMPOSE(decompose_reduce_l2);
WALLE_DECOMPOSE(decompose_reduce_log_sum);
WALLE_DECOMPOSE(decompose_reduce_log_sum_exp);
WALLE_DECOMPOSE(decompose_reduce_sum_square);
WALLE_DECOMPOSE(decompose_sum);
WALLE_DECOMPOSE(decompose_top_k);
WALLE_DECOMPOSE(decompose_binarizer);
WALLE_DECOMPOSE(decompose_dft);
WALLE_DECOMPOSE(decompose_dequantize_linear);
WALLE_DECOMPOSE(decompose_dropout);
WALLE_DECOMPOSE(decompose_dynamic_quantize_linear);
WALLE_DECOMPOSE(decompose_label_encoder);
WALLE_DECOMPOSE(decompose_mel_weight_matrix);
WALLE_DECOMPOSE(decompose_quantize_linear);
WALLE_DECOMPOSE(decompose_stft);
WALLE_DECOMPOSE(decompose_tfidf_vectorizer);
WALLE_DECOMPOSE(decompose_tree_ensemble);
#undef WALLE_DECOMPOSE
// clang-format on

std::span<const Composite> composites() noexcept {
  static constexpr std::string_view clip[] = {"Maximum", "Minimum"};
  static constexpr std::string_view gemm[] = {"Add", "MatMul", "Mul", "Transpose"};
  static constexpr std::string_view recurrent[] = {
      "Add",     "Concat",  "Expand", "Greater", "MatMul", "Maximum", "Minimum", "Mul",       "RecurrentSteps",
      "Reshape", "Sigmoid", "Slice",  "Squeeze", "Stack",  "Sub",     "Tanh",    "Transpose", "Where"};
  static constexpr std::string_view adagrad[] = {"Add", "Cast", "Div", "Mul", "Sqrt", "Sub"};
  static constexpr std::string_view attention[] = {
      "Add",         "And",    "Cast", "Concat",    "Div",       "Equal",   "Exp", "Expand", "GreaterOrEqual", "Identity", "Less",
      "LessOrEqual", "MatMul", "Mul",  "ReduceMax", "ReduceSum", "Reshape", "Sub", "Tanh",   "Transpose",      "Where"};
  static constexpr std::string_view adam[] = {"Add", "Cast", "Div", "Greater", "Mul", "Power", "Sqrt", "Sub", "Where"};
  static constexpr std::string_view momentum[] = {"Add", "Cast", "Greater", "Mul", "Sub", "Where"};
  static constexpr std::string_view batch_normal[] = {
      "Add", "Cast", "ChannelMoments", "ChannelNormalize", "Mul", "Reshape", "Rsqrt", "Slice", "Sub"};
  static constexpr std::string_view normal[] = {"Add", "Cast", "Mul", "ReduceMean", "Reshape", "Rsqrt", "Square", "Sub"};
  static constexpr std::string_view lp_normal[] = {"Abs", "Cast", "Div", "Equal", "ReduceSum", "Sqrt", "Square", "Where"};
  static constexpr std::string_view lrn[] = {"Add", "Cast", "Div", "Mul", "Pad", "Power", "Slice", "Square"};
  static constexpr std::string_view mean_variance[] = {"Add", "Cast", "Div", "ReduceMean", "Sqrt", "Square", "Sub"};
  static constexpr std::string_view rms[] = {"Add", "Cast", "Mul", "ReduceMean", "Rsqrt", "Square"};
  static constexpr std::string_view log_softmax[] = {"Exp", "Log", "ReduceMax", "ReduceSum", "Sub"};
  static constexpr std::string_view softmax[] = {"Div", "Exp", "ReduceMax", "ReduceSum", "Sub"};
  static constexpr std::string_view einsum[] = {"AsStrided", "Expand", "MatMul", "ReduceSum", "Reshape", "Transpose"};
  static constexpr std::string_view matmul_integer[] = {"Cast", "IntegerLinear", "MatMul", "Sub", "Unsqueeze"};
  static constexpr std::string_view one_hot[] = {"Add", "Cast", "Equal", "Less", "Slice", "Squeeze", "Unsqueeze", "Where"};
  static constexpr std::string_view affine_grid[] = {"MatMul", "Reshape", "Transpose"};
  static constexpr std::string_view average_pool[] = {"PoolMean"};
  static constexpr std::string_view conv_integer[] = {"Cast", "Conv", "IntegerConv", "Reshape", "Sub", "Transpose"};
  static constexpr std::string_view conv_transpose[] = {"Add",    "Col2Im", "Concat",  "Conv",     "Expand",
                                                        "MatMul", "Pad",    "Reshape", "Transpose"};
  static constexpr std::string_view deform_conv[] = {"Add", "DeformColumns", "MatMul", "Reshape"};
  static constexpr std::string_view global_average_pool[] = {"ReduceMean"};
  static constexpr std::string_view global_lp_pool[] = {"Abs", "Power", "ReduceSum", "Sqrt", "Square"};
  static constexpr std::string_view global_max_pool[] = {"ReduceMax"};
  static constexpr std::string_view lp_pool[] = {"Abs", "PoolSum", "Power", "Sqrt", "Square"};
  static constexpr std::string_view max_pool[] = {"IntegerPoolMax", "PoolArgMax", "PoolMax", "Transpose"};
  static constexpr std::string_view qlinear_conv[] = {"Add",     "Cast", "Conv",    "Div",   "IntegerConv", "Maximum",
                                                      "Minimum", "Mul",  "Reshape", "Round", "Sub",         "Transpose"};
  static constexpr std::string_view qlinear_mean[] = {"Div", "IntegerConv", "Reshape", "Transpose"};
  static constexpr std::string_view qlinear_rescale[] = {"Div", "IntegerSum", "Reshape", "Transpose"};
  static constexpr std::string_view qlinear_add[] = {"Div", "Expand", "IntegerSum", "Reshape", "Transpose"};
  static constexpr std::string_view resize[] = {"Gather", "Resample", "Where"};
  static constexpr std::string_view qlinear_matmul[] = {"Add",     "Cast", "Div",     "IntegerLinear", "MatMul", "Maximum",
                                                        "Minimum", "Mul",  "Reshape", "Round",         "Sub",    "Unsqueeze"};
  static constexpr std::string_view bit_shift_parts[] = {"ShiftLeft", "ShiftRight"};
  static constexpr std::string_view cast_like_parts[] = {"Cast"};
  static constexpr std::string_view hardmax_parts[] = {"ArgMax", "Cast", "Equal"};
  static constexpr std::string_view is_inf_parts[] = {"And", "Greater", "IsInfinite", "Less"};
  static constexpr std::string_view max_parts[] = {"Maximum"};
  static constexpr std::string_view mean_parts[] = {"Add", "Div"};
  static constexpr std::string_view min_parts[] = {"Minimum"};
  static constexpr std::string_view mod_parts[] = {"FloorMod", "Fmod"};
  static constexpr std::string_view pow_parts[] = {"Cast", "Power"};
  static constexpr std::string_view reduce_l1_parts[] = {"Abs", "ReduceSum"};
  static constexpr std::string_view reduce_l2_parts[] = {"ReduceSum", "Sqrt", "Square"};
  static constexpr std::string_view reduce_log_sum_parts[] = {"Log", "ReduceSum"};
  static constexpr std::string_view reduce_log_sum_exp_parts[] = {"Add",       "Exp",     "IsInfinite", "Log",  "ReduceMax",
                                                                  "ReduceSum", "Reshape", "Sub",        "Where"};
  static constexpr std::string_view reduce_sum_square_parts[] = {"ReduceSum", "Square"};
  static constexpr std::string_view sum_parts[] = {"Add"};
  static constexpr std::string_view top_k_parts[] = {"TopIndices", "TopValues"};
  static constexpr std::string_view binarizer_parts[] = {"Cast", "Greater"};
  static constexpr std::string_view dft_parts[] = {"Cast", "FourierTransform", "Pad", "Reshape", "Slice", "Transpose"};
  static constexpr std::string_view dequantize_linear_parts[] = {"Cast", "Expand", "Mul", "Reshape", "Slice", "Sub"};
  static constexpr std::string_view dropout_parts[] = {"Cast", "Expand", "Identity", "Mul"};
  static constexpr std::string_view tfidf_vectorizer_parts[] = {
      "Add", "And", "Cast", "Concat", "Equal", "Expand", "Minimum", "Mul", "ReduceSum", "Reshape", "ScatterElements", "Slice"};
  static constexpr std::string_view dynamic_quantize_linear_parts[] = {
      "Cast", "Div", "Equal", "IntegerQuantize", "Maximum", "Minimum", "Neg", "ReduceMax", "ReduceMin", "Round", "Sub", "Where"};
  static constexpr std::string_view label_encoder_parts[] = {"And",   "ArgMax", "Cast",      "Equal",   "Gather",
                                                             "IsNaN", "Or",     "ReduceMax", "Reshape", "Where"};
  static constexpr std::string_view mel_weight_matrix_parts[] = {"Cast"};
  static constexpr std::string_view quantize_linear_parts[] = {"Add",     "Cast",    "Div",     "Expand", "IntegerQuantize",
                                                               "Maximum", "Minimum", "Reshape", "Round",  "Slice"};
  static constexpr std::string_view stft_parts[] = {"AsStrided", "Cast",  "FourierTransform", "Mul", "Pad",
                                                    "Reshape",   "Slice", "Transpose"};
  static constexpr std::string_view tree_ensemble_parts[] = {
      "And",       "Cast", "Equal",       "Expand", "Gather", "GatherElements", "Greater",    "GreaterOrEqual",
      "IsNaN",     "Less", "LessOrEqual", "Not",    "Or",     "ReduceMax",      "ReduceMean", "ReduceMin",
      "ReduceSum", "Sub",  "Unsqueeze",   "Where"};
  static constexpr Composite table[] = {
      {"Adagrad", 5, 1 << 16, &decompose_adagrad, adagrad},
      {"Adam", 6, 1 << 16, &decompose_adam, adam},
      {"AffineGrid", 2, 2, &decompose_affine_grid, affine_grid},
      {"Attention", 3, 7, &decompose_attention, attention},
      {"AveragePool", 1, 1, &decompose_average_pool, average_pool},
      {"BatchNormalization", 5, 5, &decompose_batch_normalization, batch_normal},
      {"Binarizer", 1, 1, &decompose_binarizer, binarizer_parts},
      {"BitShift", 2, 2, &decompose_bit_shift, bit_shift_parts},
      {"CastLike", 2, 2, &decompose_cast_like, cast_like_parts},
      {"Clip", 1, 3, &decompose_clip, clip},
      {"ConvInteger", 2, 4, &decompose_conv_integer, conv_integer},
      {"ConvTranspose", 2, 3, &decompose_conv_transpose, conv_transpose},
      {"DFT", 1, 3, &decompose_dft, dft_parts},
      {"DeformConv", 3, 5, &decompose_deform_conv, deform_conv},
      {"DequantizeLinear", 2, 3, &decompose_dequantize_linear, dequantize_linear_parts},
      {"Dropout", 1, 3, &decompose_dropout, dropout_parts},
      {"DynamicQuantizeLinear", 1, 1, &decompose_dynamic_quantize_linear, dynamic_quantize_linear_parts},
      {"Einsum", 1, 1 << 16, &decompose_einsum, einsum},
      {"GRU", 3, 6, &decompose_gru, recurrent},
      {"Gemm", 2, 3, &decompose_gemm, gemm},
      {"GlobalAveragePool", 1, 1, &decompose_global_average_pool, global_average_pool},
      {"GlobalLpPool", 1, 1, &decompose_global_lp_pool, global_lp_pool},
      {"GlobalMaxPool", 1, 1, &decompose_global_max_pool, global_max_pool},
      {"GroupNormalization", 3, 3, &decompose_group_normalization, normal},
      {"Hardmax", 1, 1, &decompose_hardmax, hardmax_parts},
      {"InstanceNormalization", 3, 3, &decompose_instance_normalization, normal},
      {"IsInf", 1, 1, &decompose_is_inf, is_inf_parts},
      {"LRN", 1, 1, &decompose_lrn, lrn},
      {"LSTM", 3, 8, &decompose_lstm, recurrent},
      {"LabelEncoder", 4, 4, &decompose_label_encoder, label_encoder_parts},
      {"LayerNormalization", 2, 3, &decompose_layer_norm, normal},
      {"LogSoftmax", 1, 1, &decompose_log_softmax, log_softmax},
      {"LpNormalization", 1, 1, &decompose_lp_normalization, lp_normal},
      {"LpPool", 1, 1, &decompose_lp_pool, lp_pool},
      {"MatMulInteger", 2, 4, &decompose_matmul_integer, matmul_integer},
      {"Max", 1, 1 << 16, &decompose_max, max_parts},
      {"MaxPool", 1, 1, &decompose_max_pool, max_pool},
      {"Mean", 1, 1 << 16, &decompose_mean, mean_parts},
      {"MeanVarianceNormalization", 1, 1, &decompose_mean_variance_normalization, mean_variance},
      {"MelWeightMatrix", 5, 5, &decompose_mel_weight_matrix, mel_weight_matrix_parts},
      {"Min", 1, 1 << 16, &decompose_min, min_parts},
      {"Mod", 2, 2, &decompose_mod, mod_parts},
      {"Momentum", 5, 1 << 16, &decompose_momentum, momentum},
      {"OneHot", 3, 3, &decompose_one_hot, one_hot},
      {"Pow", 2, 2, &decompose_pow, pow_parts},
      {"QLinearAdd", 8, 8, &decompose_qlinear_add, qlinear_add},
      {"QLinearConv", 8, 9, &decompose_qlinear_conv, qlinear_conv},
      {"QLinearGlobalAveragePool", 5, 5, &decompose_qlinear_global_average_pool, qlinear_mean},
      {"QLinearMatMul", 8, 9, &decompose_qlinear_matmul, qlinear_matmul},
      {"QLinearRescale", 5, 5, &decompose_qlinear_rescale, qlinear_rescale},
      {"QuantizeLinear", 2, 3, &decompose_quantize_linear, quantize_linear_parts},
      {"RMSNormalization", 2, 2, &decompose_rms_normalization, rms},
      {"RNN", 3, 6, &decompose_rnn, recurrent},
      {"ReduceL1", 1, 2, &decompose_reduce_l1, reduce_l1_parts},
      {"ReduceL2", 1, 2, &decompose_reduce_l2, reduce_l2_parts},
      {"ReduceLogSum", 1, 2, &decompose_reduce_log_sum, reduce_log_sum_parts},
      {"ReduceLogSumExp", 1, 2, &decompose_reduce_log_sum_exp, reduce_log_sum_exp_parts},
      {"ReduceSumSquare", 1, 2, &decompose_reduce_sum_square, reduce_sum_square_parts},
      {"Resize", 1, 4, &decompose_resize, resize},
      {"STFT", 2, 4, &decompose_stft, stft_parts},
      {"Shape", 1, 1, &decompose_shape, {}},
      {"Size", 1, 1, &decompose_size, {}},
      {"Softmax", 1, 1, &decompose_softmax, softmax},
      {"Sum", 1, 1 << 16, &decompose_sum, sum_parts},
      {"TfIdfVectorizer", 1, 1, &decompose_tfidf_vectorizer, tfidf_vectorizer_parts},
      {"TopK", 2, 2, &decompose_top_k, top_k_parts},
      {"TreeEnsemble", 1, 1, &decompose_tree_ensemble, tree_ensemble_parts},
  };
  static_assert(std::ranges::is_sorted(table, {}, &Composite::name));
  static const std::vector<Composite> all = [] {
    std::vector<Composite> both(std::begin(table), std::end(table));
    both.insert(both.end(), activation_composites().begin(), activation_composites().end());
    std::sort(both.begin(), both.end(), [](const Composite& a, const Composite& b) { return a.name < b.name; });
    return both;
  }();
  return all;
}

}  // namespace walle
