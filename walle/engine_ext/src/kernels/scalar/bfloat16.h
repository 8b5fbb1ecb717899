// Kernels of bfloat16 pairs in plain C++ (see Bfloat16 in kernels/bfloat16.h): the reference for the instruction sets that have
// such kernels, for blocks of any `pack` columns. Sums are taken in the order of k, in float32.
#pragma once
#include "kernels/bfloat16.h"

namespace walle::scalar {

void panel_pairs(const PanelArgs& args, std::int64_t pack) noexcept;
void narrow(const float* in, std::int64_t in_step, std::int64_t rows, std::int64_t columns, float* out,
            std::int64_t out_step) noexcept;
void pair(const float* low, const float* high, std::int64_t count, float* out, std::int64_t out_step) noexcept;

}  // namespace walle::scalar
