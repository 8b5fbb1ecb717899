#include "geometry/emitter.h"

#include <limits>

#include "core/small_float.h"

namespace walle {

namespace {

// Convert as Cast does: towards zero, clamped to the type's range, NaN to 0.
template <class T>
void put(Tensor& scalar, double value) {
  constexpr T kLeast = std::numeric_limits<T>::min(), kGreatest = std::numeric_limits<T>::max();
  *scalar.data<T>() = value != value                            ? T{0}
                      : value <= static_cast<double>(kLeast)    ? kLeast
                      : value >= static_cast<double>(kGreatest) ? kGreatest
                                                                : static_cast<T>(value);
}

}  // namespace

Emitter::Ref Emitter::number(double value, DType dtype) {
  Tensor scalar = Tensor::empty(dtype, {});
  switch (dtype) {
    case DType::f32: *scalar.data<float>() = static_cast<float>(value); break;
    case DType::f64: *scalar.data<double>() = value; break;
    case DType::f16: *scalar.data<Half>() = Half(round_to_odd(value)); break;
    case DType::bf16: *scalar.data<BFloat>() = BFloat(round_to_odd(value)); break;
    case DType::i8: put<std::int8_t>(scalar, value); break;
    case DType::i16: put<std::int16_t>(scalar, value); break;
    case DType::i32: put<std::int32_t>(scalar, value); break;
    case DType::i64: put<std::int64_t>(scalar, value); break;
    case DType::u8: put<std::uint8_t>(scalar, value); break;
    case DType::u16: put<std::uint16_t>(scalar, value); break;
    case DType::u32: put<std::uint32_t>(scalar, value); break;
    case DType::u64: put<std::uint64_t>(scalar, value); break;
    case DType::b8: *scalar.data<bool>() = value != 0; break;
    default: throw Error(ErrorKind::dtype, "a scalar constant cannot have dtype " + std::string(dtype_name(dtype)));
  }
  return constant(std::move(scalar));
}

}  // namespace walle
