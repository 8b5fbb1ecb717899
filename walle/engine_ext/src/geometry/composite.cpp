#include "geometry/composite.h"

namespace walle {

// clang-format off
#define WALLE_DECOMPOSE(name) \
  std::vector<Emitter::Ref> name(Emitter&, std::span<const Emitter::Ref>, const Attributes&, int)
WALLE_DECOMPOSE(decompose_clip); WALLE_DECOMPOSE(decompose_gemm); WALLE_DECOMPOSE(decompose_gru);
WALLE_DECOMPOSE(decompose_einsum); WALLE_DECOMPOSE(decompose_eye_like); WALLE_DECOMPOSE(decompose_matmul_integer);
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
WALLE_DECOMPOSE(decompose_max_unpool);
WALLE_DECOMPOSE(decompose_qlinear_conv);
WALLE_DECOMPOSE(decompose_resize);
#undef WALLE_DECOMPOSE
// clang-format on

std::span<const Composite> composites() noexcept {
  static constexpr std::string_view clip[] = {"Max", "Min"};
  static constexpr std::string_view gemm[] = {"Add", "MatMul", "Mul", "Transpose"};
  static constexpr std::string_view gru[] = {"Add",     "MatMul", "Mul", "Sigmoid", "Slice",
                                             "Squeeze", "Stack",  "Sub", "Tanh",    "Transpose"};
  static constexpr std::string_view layer_norm[] = {"Add", "Mul", "ReduceMean", "Rsqrt", "Square", "Sub"};
  static constexpr std::string_view log_softmax[] = {"Exp", "Log", "ReduceMax", "ReduceSum", "Sub"};
  static constexpr std::string_view softmax[] = {"Div", "Exp", "ReduceMax", "ReduceSum", "Sub"};
  static constexpr std::string_view einsum[] = {"AsStrided", "Expand", "MatMul", "ReduceSum", "Reshape", "Transpose"};
  static constexpr std::string_view eye_like[] = {"Cast"};
  static constexpr std::string_view matmul_integer[] = {"Cast", "MatMul", "Sub", "Unsqueeze"};
  static constexpr std::string_view one_hot[] = {"Add", "Cast", "Equal", "Less", "Slice", "Squeeze", "Unsqueeze", "Where"};
  static constexpr std::string_view qlinear_matmul[] = {"Add", "Cast", "Div", "MatMul", "Max", "Min", "Mul", "Round", "Sub", "Unsqueeze"};
  static constexpr std::string_view affine_grid[] = {"MatMul", "Reshape", "Transpose"};
  static constexpr std::string_view average_pool[] = {"PoolMean"};
  static constexpr std::string_view conv_integer[] = {"Cast", "Conv", "Reshape", "Sub"};
  static constexpr std::string_view conv_transpose[] = {"Add", "Col2Im", "MatMul", "Pad", "Reshape", "Transpose"};
  static constexpr std::string_view deform_conv[] = {"Add", "DeformColumns", "MatMul", "Reshape"};
  static constexpr std::string_view global_average_pool[] = {"ReduceMean"};
  static constexpr std::string_view global_lp_pool[] = {"Abs", "Pow", "ReduceSum", "Sqrt", "Square"};
  static constexpr std::string_view global_max_pool[] = {"ReduceMax"};
  static constexpr std::string_view lp_pool[] = {"Abs", "PoolSum", "Pow", "Sqrt", "Square"};
  static constexpr std::string_view max_pool[] = {"PoolArgMax", "PoolMax"};
  static constexpr std::string_view max_unpool[] = {"IndexedScatter", "Pad"};
  static constexpr std::string_view qlinear_conv[] = {"Add", "Cast", "Conv", "Div", "Max", "Min", "Mul", "Reshape", "Round", "Sub"};
  static constexpr std::string_view resize[] = {"Gather", "Resample", "Where"};
  static constexpr Composite table[] = {
      {"AffineGrid", 2, 2, &decompose_affine_grid, affine_grid},
      {"AveragePool", 1, 1, &decompose_average_pool, average_pool},
      {"Clip", 1, 3, &decompose_clip, clip},
      {"ConvInteger", 2, 4, &decompose_conv_integer, conv_integer},
      {"ConvTranspose", 2, 3, &decompose_conv_transpose, conv_transpose},
      {"DeformConv", 3, 5, &decompose_deform_conv, deform_conv},
      {"Einsum", 1, 1 << 16, &decompose_einsum, einsum},
      {"EyeLike", 1, 1, &decompose_eye_like, eye_like},
      {"GRU", 3, 6, &decompose_gru, gru},
      {"Gemm", 2, 3, &decompose_gemm, gemm},
      {"GlobalAveragePool", 1, 1, &decompose_global_average_pool, global_average_pool},
      {"GlobalLpPool", 1, 1, &decompose_global_lp_pool, global_lp_pool},
      {"GlobalMaxPool", 1, 1, &decompose_global_max_pool, global_max_pool},
      {"LayerNormalization", 2, 3, &decompose_layer_norm, layer_norm},
      {"LogSoftmax", 1, 1, &decompose_log_softmax, log_softmax},
      {"LpPool", 1, 1, &decompose_lp_pool, lp_pool},
      {"MatMulInteger", 2, 4, &decompose_matmul_integer, matmul_integer},
      {"MaxPool", 1, 1, &decompose_max_pool, max_pool},
      {"MaxUnpool", 2, 3, &decompose_max_unpool, max_unpool},
      {"OneHot", 3, 3, &decompose_one_hot, one_hot},
      {"QLinearConv", 8, 9, &decompose_qlinear_conv, qlinear_conv},
      {"QLinearMatMul", 8, 8, &decompose_qlinear_matmul, qlinear_matmul},
      {"Resize", 1, 4, &decompose_resize, resize},
      {"Shape", 1, 1, &decompose_shape, {}},
      {"Size", 1, 1, &decompose_size, {}},
      {"Softmax", 1, 1, &decompose_softmax, softmax},
  };
  return table;
}

Emitter::Ref Emitter::number(double value, DType dtype) {
  Tensor scalar = Tensor::empty(dtype, {});
  switch (dtype) {
    case DType::f32: *scalar.data<float>() = static_cast<float>(value); break;
    case DType::f64: *scalar.data<double>() = value; break;
    default: throw Error(ErrorKind::dtype, "a floating dtype is needed, not " + std::string(dtype_name(dtype)));
  }
  return constant(std::move(scalar));
}

}  // namespace walle
