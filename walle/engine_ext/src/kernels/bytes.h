// Kernels of products of bytes with sums in int32, which are exact modulo 2^32: quantised convolutions and matrix products.
#pragma once
#include "kernels/table.h"

namespace walle {

// What becomes of a block of sums, row r and column j at sums[r * 2 * pack + j].
struct BytesFinish {
  const float* sums = nullptr;  // int32 by their bits
  std::int64_t rows = 0, columns = 0;
  // Null: the sums are stored as they are. Otherwise a number for each column (its memory reaches whole blocks): each sum, made a
  // float, times it, rounded to the nearest (ties to even), + zero, clamped to [low, high], is stored as a byte.
  const float* scale = nullptr;
  float zero = 0, low = 0, high = 0;
  void* out = nullptr;
  std::int64_t row_step = 1, column_step = 1;  // in elements; one of them is 1
};

// An element of A is four uint8 of neighbouring k, one of w four int8, the first in the lowest byte of 32 bits.
struct Bytes {
  std::int64_t pack = 4;  // columns of a block
  // As Table's `panel`; out and bias are int32 by their bits, there is no residual, and bounds are ignored.
  PanelFn panel = nullptr;
  // out[i * out_step] = the quad of planes[0][i] to planes[3][i], each ^ flip.
  void (*quads)(const std::uint8_t* const (&planes)[4], std::uint8_t flip, std::int64_t count, float* out,
                std::int64_t out_step) noexcept = nullptr;
  void (*finish)(const BytesFinish& args) noexcept = nullptr;
};

// Those that go with a backend's table: plain ones where its instruction set has no product of bytes.
const Bytes& bytes(const Table& table) noexcept;

namespace scalar {
extern const Bytes kBytes;
}
// On a CPU that has AVX512_VNNI.
const Bytes& vnni_bytes() noexcept;

}  // namespace walle
