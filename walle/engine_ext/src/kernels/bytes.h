// Kernels of products of bytes with sums in int32, which are exact modulo 2^32: quantised convolutions, matrix products and sums.
#pragma once
#include "kernels/table.h"

namespace walle {

// Conversion of a number to a byte: clamped to [low, high], rounded to the nearest (ties to even), + zero. NaN becomes low.
struct ByteRange {
  float low = 0, high = 0;
  std::int32_t zero = 0;
};

// Output stage for a block of sums, row r and column j at sums[r * 2 * pack + j].
struct BytesFinish {
  const float* sums = nullptr;  // int32 by their bits
  std::int64_t rows = 0, columns = 0;
  // Null: the sums are stored unchanged. Otherwise one factor per column (allocated up to whole blocks): each sum is converted to
  // float, multiplied by it, and converted to a byte.
  const float* scale = nullptr;
  ByteRange range;
  void* out = nullptr;
  std::int64_t row_step = 1;  // in elements
};

// The sum of (a - zero) * scale of two operands, the first product unrounded, converted to a byte; an operand's bytes are first
// XORed with flip.
struct BytesSum {
  const std::uint8_t* in[2] = {};
  std::uint8_t flip[2] = {};
  std::int32_t zero[2] = {};
  float scale[2] = {};
  ByteRange range;
  std::uint8_t* out = nullptr;
  std::int64_t count = 0;
};

// in / scale converted to a byte; NaN becomes the byte 0.
struct BytesRound {
  const float* in = nullptr;
  float scale = 1;
  ByteRange range;
  std::uint8_t* out = nullptr;
  std::int64_t count = 0;
};

// An element of A is four uint8 of neighbouring k, one of w four int8, the first in the lowest byte of 32 bits.
struct Bytes {
  std::string_view name;
  std::int64_t pack = 4;  // columns of a block
  // Like Table's `panel`; out and bias are int32 by their bits, residual is not supported, and bounds are ignored.
  PanelFn panel = nullptr;
  // Channel-wise: out[r, j] = bias[j] + sum over the segments s of byte j of A's row from s.offset on times w[s][j], an int32.
  // Both blocks have all their columns, also in A's bytes.
  PanelFn depthwise = nullptr;
  void (*finish)(const BytesFinish& args) noexcept = nullptr;
  void (*sum)(const BytesSum& args) noexcept = nullptr;
  void (*round)(const BytesRound& args) noexcept = nullptr;
};

// Return the byte kernels of an instruction set's table.
const Bytes& bytes(const Table& table) noexcept;

}  // namespace walle
