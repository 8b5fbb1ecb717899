#include "geometry/composite.h"

#include <array>

#include "core/small_float.h"

namespace walle {

// clang-format off
#define WALLE_DECOMPOSE(name) \
  std::vector<Emitter::Ref> name(Emitter&, std::span<const Emitter::Ref>, const Attributes&, int)
WALLE_DECOMPOSE(decompose_clip); WALLE_DECOMPOSE(decompose_gemm); WALLE_DECOMPOSE(decompose_gru);
WALLE_DECOMPOSE(decompose_layer_norm); WALLE_DECOMPOSE(decompose_log_softmax); WALLE_DECOMPOSE(decompose_softmax);
#undef WALLE_DECOMPOSE
// clang-format on

std::span<const Composite> composites() noexcept {
  static constexpr std::string_view clip[] = {"Maximum", "Minimum"};
  static constexpr std::string_view gemm[] = {"Add", "MatMul", "Mul", "Transpose"};
  static constexpr std::string_view gru[] = {"Add", "MatMul", "Mul", "Sigmoid", "Slice", "Squeeze", "Stack", "Sub", "Tanh", "Transpose"};
  static constexpr std::string_view layer_norm[] = {"Add", "Mul", "ReduceMean", "Rsqrt", "Square", "Sub"};
  static constexpr std::string_view log_softmax[] = {"Exp", "Log", "ReduceMax", "ReduceSum", "Sub"};
  static constexpr std::string_view softmax[] = {"Div", "Exp", "ReduceMax", "ReduceSum", "Sub"};
  static constexpr std::array<Composite, 6> table{{
      {"Clip", 1, 3, &decompose_clip, clip},
      {"GRU", 3, 6, &decompose_gru, gru},
      {"Gemm", 2, 3, &decompose_gemm, gemm},
      {"LayerNormalization", 2, 3, &decompose_layer_norm, layer_norm},
      {"LogSoftmax", 1, 1, &decompose_log_softmax, log_softmax},
      {"Softmax", 1, 1, &decompose_softmax, softmax},
  }};
  return table;
}

Emitter::Ref Emitter::number(double value, DType dtype) {
  Tensor scalar = Tensor::empty(dtype, {});
  switch (dtype) {
    case DType::f32: *scalar.data<float>() = static_cast<float>(value); break;
    case DType::f64: *scalar.data<double>() = value; break;
    case DType::f16: *scalar.data<Half>() = Half(round_to_odd(value)); break;
    case DType::bf16: *scalar.data<BFloat>() = BFloat(round_to_odd(value)); break;
    case DType::i8: *scalar.data<std::int8_t>() = static_cast<std::int8_t>(value); break;
    case DType::i16: *scalar.data<std::int16_t>() = static_cast<std::int16_t>(value); break;
    case DType::i32: *scalar.data<std::int32_t>() = static_cast<std::int32_t>(value); break;
    case DType::i64: *scalar.data<std::int64_t>() = static_cast<std::int64_t>(value); break;
    case DType::u8: *scalar.data<std::uint8_t>() = static_cast<std::uint8_t>(value); break;
    case DType::u16: *scalar.data<std::uint16_t>() = static_cast<std::uint16_t>(value); break;
    case DType::u32: *scalar.data<std::uint32_t>() = static_cast<std::uint32_t>(value); break;
    case DType::u64: *scalar.data<std::uint64_t>() = static_cast<std::uint64_t>(value); break;
    case DType::b8: *scalar.data<bool>() = value != 0; break;
    default: throw Error(ErrorKind::dtype, "no number is made " + std::string(dtype_name(dtype)));
  }
  return constant(std::move(scalar));
}

}  // namespace walle
