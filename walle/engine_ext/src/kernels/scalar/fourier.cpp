// Passes of Fourier transforms of the scalar backend: the source that every backend has, compiled for the baseline.
#include "kernels/scalar/set.h"

namespace walle::scalar {

namespace {
#include "kernels/generic/fourier-inl.h"
}  // namespace

void fill_fourier(Table& table) noexcept { table.fourier = &fourier; }

}  // namespace walle::scalar
