// Target options of the avx2 instruction set, and its kernels.
#pragma once
#include "kernels/target.h"

#define WALLE_AVX2 "avx2,fma"

namespace walle::avx2 {
bool available() noexcept;
void fill_kernels(Table& table) noexcept;
void fill_loops(Table& table) noexcept;
void fill_reductions(Table& table) noexcept;
void fill_complex(Table& table) noexcept;
void fill_images(ImageTable& table) noexcept;
const Bytes& bytes() noexcept;
}  // namespace walle::avx2
