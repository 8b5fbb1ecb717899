// Products of bfloat16 with sums in float32, two at a time: an element of A and of w is a pair of neighbours in k, the first in
// the low half of 32 bits.
#pragma once
#include "kernels/table.h"

namespace walle {

struct Bfloat16 {
  // Like Table's `panel`, over pairs; k counts pairs. Error against exact arithmetic on the pairs, except that subnormal numbers
  // may count as 0: |error| <= (2 * k + 3) * eps * sum |a| |w| per element.
  PanelFn panel = nullptr;
  // out[r * out_step + i] = the pair of in[r * in_step + 2 * i] and its neighbour, each rounded to the nearest, ties to even;
  // elements beyond the last of `columns` floats are 0. Steps count elements of four bytes each.
  void (*narrow)(const float* in, std::int64_t in_step, std::int64_t rows, std::int64_t columns, float* out,
                 std::int64_t out_step) noexcept = nullptr;
  // out[i * out_step] = the pair of low[i] and high[i]; 0 for a null `high`.
  void (*pair)(const float* low, const float* high, std::int64_t count, float* out, std::int64_t out_step) noexcept = nullptr;
};

// Return the bfloat16 kernels of an instruction set's table; null where the set has no such instructions.
const Bfloat16* bfloat16(const Table& table) noexcept;

}  // namespace walle
