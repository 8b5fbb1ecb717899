// The scalar instruction set: plain C++ for the baseline, the reference that every other instruction set is tested against.
#include "kernels/scalar/set.h"

#include "kernels/instruction_set.h"

namespace walle::scalar {

namespace {
void fill_set(Table& table, ImageTable& image) noexcept {
  fill_kernels(table);
  fill_channels(table);
  fill_complex(table);
  fill_fourier(table);
  fill_movement(table);
  fill_packed(table);
  fill_winograd(table);
  fill_images(image);
  table.bytes = &kBytes;
}
}  // namespace

SetDefinition instruction_set() noexcept { return {{.name = "scalar", .available = true}, &fill_set}; }

}  // namespace walle::scalar
