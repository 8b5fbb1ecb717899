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
WALLE_DECOMPOSE(decompose_adagrad); WALLE_DECOMPOSE(decompose_adam); WALLE_DECOMPOSE(decompose_momentum);
WALLE_DECOMPOSE(decompose_batch_normalization); WALLE_DECOMPOSE(decompose_group_normalization); WALLE_DECOMPOSE(decompose_instance_normalization);
WALLE_DECOMPOSE(decompose_lp_normalization); WALLE_DECOMPOSE(decompose_lrn); WALLE_DECOMPOSE(decompose_lstm);
WALLE_DECOMPOSE(decompose_mean_variance_normalization); WALLE_DECOMPOSE(decompose_rms_normalization); WALLE_DECOMPOSE(decompose_rnn);
#undef WALLE_DECOMPOSE
// clang-format on

std::span<const Composite> composites() noexcept {
  static constexpr std::string_view clip[] = {"Max", "Min"};
  static constexpr std::string_view gemm[] = {"Add", "MatMul", "Mul", "Transpose"};
  static constexpr std::string_view recurrent[] = {"Add", "Clip", "Concat", "Expand", "MatMul", "Mul", "RecurrentSteps", "Sigmoid", "Slice", "Squeeze", "Stack", "Sub", "Tanh", "Transpose", "Where"};
  static constexpr std::string_view adagrad[] = {"Add", "Cast", "Div", "Mul", "Sqrt", "Sub"};
  static constexpr std::string_view adam[] = {"Add", "Cast", "Div", "Greater", "Mul", "Pow", "Sqrt", "Sub", "Where"};
  static constexpr std::string_view momentum[] = {"Add", "Cast", "Greater", "Mul", "Sub", "Where"};
  static constexpr std::string_view normal[] = {"Add", "Cast", "Mul", "ReduceMean", "Reshape", "Rsqrt", "Square", "Sub"};
  static constexpr std::string_view lp_normal[] = {"Abs", "Cast", "Div", "Equal", "ReduceSum", "Sqrt", "Square", "Where"};
  static constexpr std::string_view lrn[] = {"Add", "Cast", "Div", "Mul", "Pad", "Pow", "Slice", "Square"};
  static constexpr std::string_view mean_variance[] = {"Add", "Cast", "Div", "ReduceMean", "Sqrt", "Square", "Sub"};
  static constexpr std::string_view rms[] = {"Add", "Cast", "Mul", "ReduceMean", "Rsqrt", "Square"};
  static constexpr std::string_view log_softmax[] = {"Exp", "Log", "ReduceMax", "ReduceSum", "Sub"};
  static constexpr std::string_view softmax[] = {"Div", "Exp", "ReduceMax", "ReduceSum", "Sub"};
  static constexpr std::string_view einsum[] = {"AsStrided", "Expand", "MatMul", "ReduceSum", "Reshape", "Transpose"};
  static constexpr std::string_view eye_like[] = {"Cast"};
  static constexpr std::string_view matmul_integer[] = {"Cast", "MatMul", "Sub", "Unsqueeze"};
  static constexpr std::string_view one_hot[] = {"Add", "Cast", "Equal", "Less", "Slice", "Squeeze", "Unsqueeze", "Where"};
  static constexpr std::string_view qlinear_matmul[] = {"Add", "Cast", "Div", "MatMul", "Max", "Min", "Mul", "Round", "Sub", "Unsqueeze"};
  static constexpr Composite table[] = {
      {"Adagrad", 5, 1 << 16, &decompose_adagrad, adagrad},
      {"Adam", 6, 1 << 16, &decompose_adam, adam},
      {"BatchNormalization", 5, 5, &decompose_batch_normalization, normal},
      {"Clip", 1, 3, &decompose_clip, clip},
      {"Einsum", 1, 1 << 16, &decompose_einsum, einsum},
      {"EyeLike", 1, 1, &decompose_eye_like, eye_like},
      {"GRU", 3, 6, &decompose_gru, recurrent},
      {"Gemm", 2, 3, &decompose_gemm, gemm},
      {"GroupNormalization", 3, 3, &decompose_group_normalization, normal},
      {"InstanceNormalization", 3, 3, &decompose_instance_normalization, normal},
      {"LRN", 1, 1, &decompose_lrn, lrn},
      {"LSTM", 3, 8, &decompose_lstm, recurrent},
      {"LayerNormalization", 2, 3, &decompose_layer_norm, normal},
      {"LogSoftmax", 1, 1, &decompose_log_softmax, log_softmax},
      {"LpNormalization", 1, 1, &decompose_lp_normalization, lp_normal},
      {"MatMulInteger", 2, 4, &decompose_matmul_integer, matmul_integer},
      {"MeanVarianceNormalization", 1, 1, &decompose_mean_variance_normalization, mean_variance},
      {"Momentum", 5, 1 << 16, &decompose_momentum, momentum},
      {"OneHot", 3, 3, &decompose_one_hot, one_hot},
      {"QLinearMatMul", 8, 8, &decompose_qlinear_matmul, qlinear_matmul},
      {"RMSNormalization", 2, 2, &decompose_rms_normalization, rms},
      {"RNN", 3, 6, &decompose_rnn, recurrent},
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
