// Element types. The numbers are part of the `.walle` format: append, never reorder.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace walle {

enum class DType : std::uint8_t {
  f32 = 0,
  f64 = 1,
  f16 = 2,
  bf16 = 3,
  i8 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  u8 = 8,
  u16 = 9,
  u32 = 10,
  u64 = 11,
  b8 = 12,
};
inline constexpr int kDTypeCount = 13;

// Bytes of one element.
constexpr std::size_t item_size(DType dtype) noexcept {
  constexpr std::size_t sizes[kDTypeCount] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  return sizes[static_cast<int>(dtype)];
}

// NumPy's name of the type.
constexpr std::string_view dtype_name(DType dtype) noexcept {
  constexpr std::string_view names[kDTypeCount] = {"float32", "float64", "float16", "bfloat16", "int8",   "int16", "int32",
                                                   "int64",   "uint8",   "uint16",  "uint32",   "uint64", "bool"};
  return names[static_cast<int>(dtype)];
}

}  // namespace walle
