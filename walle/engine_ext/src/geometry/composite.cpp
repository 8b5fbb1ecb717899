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
  static constexpr Composite table[] = {
      {"Clip", 1, 3, &decompose_clip, clip},
      {"Einsum", 1, 1 << 16, &decompose_einsum, einsum},
      {"EyeLike", 1, 1, &decompose_eye_like, eye_like},
      {"GRU", 3, 6, &decompose_gru, gru},
      {"Gemm", 2, 3, &decompose_gemm, gemm},
      {"LayerNormalization", 2, 3, &decompose_layer_norm, layer_norm},
      {"LogSoftmax", 1, 1, &decompose_log_softmax, log_softmax},
      {"MatMulInteger", 2, 4, &decompose_matmul_integer, matmul_integer},
      {"OneHot", 3, 3, &decompose_one_hot, one_hot},
      {"QLinearMatMul", 8, 8, &decompose_qlinear_matmul, qlinear_matmul},
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
