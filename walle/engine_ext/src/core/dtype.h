// Element types. The numbers are part of the `.walle` format: append, never reorder.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace walle {

// Kernels compute in the first thirteen (float16 and bfloat16 through float32) and in complex numbers. The others are only
// stored, moved and converted. Elements of four and two bits take one byte each, signed ones sign-extended, so that a view can
// begin at any element.
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
  f8e4m3fn = 13,
  f8e4m3fnuz = 14,
  f8e5m2 = 15,
  f8e5m2fnuz = 16,
  f8e8m0 = 17,
  f4e2m1 = 18,
  i4 = 19,
  u4 = 20,
  i2 = 21,
  u2 = 22,
  c64 = 23,   // two float32, the real and the imaginary part
  c128 = 24,  // two float64
};
inline constexpr int kDTypeCount = 25;
// The types that a model may have: complex numbers are values of walle.np only.
inline constexpr int kModelDTypeCount = 23;

// Bytes of one element.
constexpr std::size_t item_size(DType dtype) noexcept {
  constexpr std::size_t sizes[kDTypeCount] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 8, 16};
  return sizes[static_cast<int>(dtype)];
}

// NumPy's name of the type, or the ml_dtypes package's where NumPy has none.
constexpr std::string_view dtype_name(DType dtype) noexcept {
  constexpr std::string_view names[kDTypeCount] = {"float32",
                                                   "float64",
                                                   "float16",
                                                   "bfloat16",
                                                   "int8",
                                                   "int16",
                                                   "int32",
                                                   "int64",
                                                   "uint8",
                                                   "uint16",
                                                   "uint32",
                                                   "uint64",
                                                   "bool",
                                                   "float8_e4m3fn",
                                                   "float8_e4m3fnuz",
                                                   "float8_e5m2",
                                                   "float8_e5m2fnuz",
                                                   "float8_e8m0fnu",
                                                   "float4_e2m1fn",
                                                   "int4",
                                                   "uint4",
                                                   "int2",
                                                   "uint2",
                                                   "complex64",
                                                   "complex128"};
  return names[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) noexcept {
  return dtype <= DType::bf16 || (dtype >= DType::f8e4m3fn && dtype <= DType::f4e2m1);
}
constexpr bool is_half(DType dtype) noexcept { return dtype == DType::f16 || dtype == DType::bf16; }
// Fewer than 8 bits; each element is stored in its own byte.
constexpr bool is_packed(DType dtype) noexcept { return dtype >= DType::f4e2m1 && dtype <= DType::u2; }
// Integers of 8 to 64 bits.
constexpr bool is_integer(DType dtype) noexcept { return dtype >= DType::i8 && dtype <= DType::u64; }
constexpr bool is_unsigned(DType dtype) noexcept { return dtype >= DType::u8 && dtype <= DType::u64; }
constexpr bool is_complex(DType dtype) noexcept { return dtype == DType::c64 || dtype == DType::c128; }
// The type of a complex type's real and imaginary part; any other type itself.
constexpr DType part_dtype(DType dtype) noexcept {
  return dtype == DType::c64 ? DType::f32 : dtype == DType::c128 ? DType::f64 : dtype;
}
// Bytes of which the address of an element is a multiple.
constexpr std::size_t item_alignment(DType dtype) noexcept { return item_size(part_dtype(dtype)); }
inline constexpr std::size_t kMaxItemSize = 16;

}  // namespace walle
