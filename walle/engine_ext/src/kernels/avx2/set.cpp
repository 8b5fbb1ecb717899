// The avx2 instruction set: AVX2 and FMA3.
#include "kernels/instruction_set.h"

#if defined(__x86_64__)
#include "kernels/avx2/target.h"

namespace walle::avx2 {

bool available() noexcept { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

namespace {
void fill_set(Table& table, ImageTable& image) noexcept {
  fill_kernels(table);
  fill_images(image);
  table.bytes = &bytes();
}
}  // namespace

SetDefinition instruction_set() noexcept { return {{.name = "avx2", .available = available()}, &fill_set}; }

}  // namespace walle::avx2
#else
walle::SetDefinition walle::avx2::instruction_set() noexcept { return {{.name = "avx2"}}; }
#endif
