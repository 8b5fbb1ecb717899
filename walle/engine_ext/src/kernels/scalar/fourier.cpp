// Passes of Fourier transforms of the scalar instruction set: the source that every instruction set has, compiled for the
// baseline.
#include "kernels/scalar/set.h"

namespace walle::scalar {

namespace {
#include "kernels/generic/fourier-inl.h"
}  // namespace

void fill_fourier(Table& table) noexcept { table.fourier = &fourier; }

}  // namespace walle::scalar
