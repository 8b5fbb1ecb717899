// Floating-point formats of 16, 8 and 4 bits: decoding to float32 and encoding from it with rounding to nearest.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace walle {

// Each format is described by its fields. kMax, kInfinity and kNan are codes without the sign bit; a format without infinities
// has kInfinity = kNan.
struct Float16Format {
  static constexpr int kExponent = 5, kMantissa = 10, kBias = 15;
  static constexpr unsigned kMax = 0x7BFF, kInfinity = 0x7C00, kNan = 0x7E00;
  static constexpr bool kUnsignedZero = false;
};
struct E4M3Format {
  static constexpr int kExponent = 4, kMantissa = 3, kBias = 7;
  static constexpr unsigned kMax = 0x7E, kInfinity = 0x7F, kNan = 0x7F;
  static constexpr bool kUnsignedZero = false;
};
struct E4M3UzFormat {
  static constexpr int kExponent = 4, kMantissa = 3, kBias = 8;
  static constexpr unsigned kMax = 0x7F, kInfinity = 0x80, kNan = 0x80;
  static constexpr bool kUnsignedZero = true;
};
struct E5M2Format {
  static constexpr int kExponent = 5, kMantissa = 2, kBias = 15;
  static constexpr unsigned kMax = 0x7B, kInfinity = 0x7C, kNan = 0x7E;
  static constexpr bool kUnsignedZero = false;
};
struct E5M2UzFormat {
  static constexpr int kExponent = 5, kMantissa = 2, kBias = 16;
  static constexpr unsigned kMax = 0x7F, kInfinity = 0x80, kNan = 0x80;
  static constexpr bool kUnsignedZero = true;
};
// No NaN and no infinity: values out of range become the largest one, NaN becomes -0 as in ml_dtypes.
struct E2M1Format {
  static constexpr int kExponent = 2, kMantissa = 1, kBias = 1;
  static constexpr unsigned kMax = 0x7, kInfinity = 0x7, kNan = 0x8;
  static constexpr bool kUnsignedZero = false;
};

template <class Format>
constexpr float decode(unsigned code) noexcept {
  constexpr int kMantissa = Format::kMantissa;
  constexpr unsigned kSign = 1u << (Format::kExponent + kMantissa);
  const std::uint32_t sign = code & kSign ? 0x80000000u : 0;
  const unsigned magnitude = code & (kSign - 1);
  if constexpr (Format::kUnsignedZero) {
    if (code == kSign) return std::bit_cast<float>(0x7FC00000u);
  } else if constexpr (Format::kNan < kSign) {
    if (Format::kInfinity != Format::kNan && magnitude == Format::kInfinity) return std::bit_cast<float>(sign | 0x7F800000u);
    if (magnitude > Format::kMax)
      return std::bit_cast<float>(sign | 0x7FC00000u | (magnitude & ((1u << kMantissa) - 1)) << (23 - kMantissa));
  }
  const unsigned exponent = magnitude >> kMantissa, mantissa = magnitude & ((1u << kMantissa) - 1);
  if (exponent == 0) {
    constexpr float kStep = std::bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - Format::kBias - kMantissa) << 23);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * kStep));
  }
  return std::bit_cast<float>(sign | (exponent + 127 - Format::kBias) << 23 | mantissa << (23 - kMantissa));
}

// Returns the code of the nearest value, ties to even. Values out of range, infinities included, become infinity (NaN where the
// format has none), or the largest value if `saturate` is set.
template <class Format>
constexpr unsigned encode(float x, bool saturate = false) noexcept {
  constexpr int kMantissa = Format::kMantissa, kMinExponent = 1 - Format::kBias;
  constexpr unsigned kSign = 1u << (Format::kExponent + kMantissa);
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const unsigned sign = bits & 0x80000000u ? kSign : 0;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    if constexpr (Format::kNan >= kSign) return Format::kNan;
    return Format::kNan | sign;
  }
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  const int shift = 23 - kMantissa + (exponent < kMinExponent ? kMinExponent - exponent : 0);
  unsigned code = 0;
  if (magnitude != 0 && shift < 26) {
    const std::uint32_t half = (1u << (shift - 1)) - 1 + (mantissa >> shift & 1);
    code = (mantissa + half) >> shift;
    if (exponent > kMinExponent) code += static_cast<unsigned>(exponent - kMinExponent) << kMantissa;
  }
  if (code > Format::kMax) {
    code = saturate ? Format::kMax : Format::kInfinity;
    if (Format::kUnsignedZero && !saturate) return code;
  }
  if (Format::kUnsignedZero && code == 0) return 0;
  return code | sign;
}

// Converts a float64 to float32 with "round to odd": the last bit is set where the conversion is inexact. Rounding the result
// again to a format of at most 22 bits then gives the value of that format nearest to the float64 itself.
inline float round_to_odd(double x) noexcept {
  const auto near = static_cast<float>(x);
  if (static_cast<double>(near) == x || x != x) return near;
  auto bits = std::bit_cast<std::uint32_t>(near);
  if (std::fabs(static_cast<double>(near)) > std::fabs(x)) --bits;  // towards zero (from infinity: the largest number)
  return std::bit_cast<float>(bits | 1u);
}

struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  explicit constexpr Half(float x) noexcept : bits(static_cast<std::uint16_t>(encode<Float16Format>(x))) {}
  constexpr operator float() const noexcept { return decode<Float16Format>(bits); }
};

struct BFloat {
  std::uint16_t bits = 0;
  BFloat() = default;
  explicit constexpr BFloat(float x) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(x);
    bits = static_cast<std::uint16_t>(x != x ? (wide >> 16 | 0x40u) : (wide + 0x7FFFu + (wide >> 16 & 1)) >> 16);
  }
  constexpr operator float() const noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// float8 E8M0: powers of two from 2^-127 (code 0) to 2^127, and NaN (0xFF). No sign and no zero.
enum class Rounding : std::uint8_t { up, down, nearest };
constexpr float decode_e8m0(std::uint8_t code) noexcept {
  return code == 0xFF ? std::bit_cast<float>(0x7FC00000u)
         : code == 0  ? 0x1p-127f
                      : std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}
// Follows ONNX: zero becomes the smallest value, the sign is dropped, infinities and NaN become NaN.
constexpr std::uint8_t encode_e8m0(float x, Rounding rounding, bool saturate) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
  const std::uint32_t exponent = bits >> 23, fraction = bits & 0x7FFFFFu;
  if (exponent == 0xFF) return 0xFF;
  const bool up = rounding == Rounding::up
                      ? fraction != 0
                      : rounding == Rounding::nearest && (fraction > 0x400000u || (fraction == 0x400000u && exponent > 0));
  if (!up) return static_cast<std::uint8_t>(exponent);
  return static_cast<std::uint8_t>(exponent == 0xFE && saturate ? 0xFE : exponent + 1);
}

}  // namespace walle
