// Target options of the avx512 instruction set, and its kernels.
#pragma once
#include "kernels/target.h"

#define WALLE_AVX512 "avx512f,avx512dq,avx512vl,avx2,fma"
#define WALLE_AVX512_WORDS "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"

namespace walle::avx512 {
bool available() noexcept;
void fill_kernels(Table& table) noexcept;
void fill_loops(Table& table) noexcept;
void fill_reductions(Table& table) noexcept;
void fill_complex(Table& table) noexcept;
void fill_images(ImageTable& table) noexcept;
// All kernels of the instruction set, including bytes.
void fill_set(Table& table, ImageTable& image) noexcept;
}  // namespace walle::avx512

namespace walle::avx512_vnni {
bool available() noexcept;
const Bytes& bytes() noexcept;
}  // namespace walle::avx512_vnni
