// Kernels of the scalar instruction set by file, the reference for every other instruction set.
#pragma once
#include "kernels/bytes.h"
#include "kernels/image.h"
#include "kernels/table.h"

namespace walle::scalar {

void fill_kernels(Table& table) noexcept;
void fill_channels(Table& table) noexcept;
void fill_complex(Table& table) noexcept;
void fill_fourier(Table& table) noexcept;
void fill_movement(Table& table) noexcept;
void fill_packed(Table& table) noexcept;
void fill_winograd(Table& table) noexcept;
void fill_images(ImageTable& table) noexcept;
extern const Bytes kBytes;

}  // namespace walle::scalar
