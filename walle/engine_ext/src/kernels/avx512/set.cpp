// The avx512 instruction set: AVX-512 F, DQ, VL and BW, and VNNI for bytes where the CPU has it.
#include "kernels/instruction_set.h"

#if defined(__x86_64__)
#include "kernels/avx2/target.h"
#include "kernels/avx512/target.h"

namespace walle::avx512 {

bool available() noexcept {
  return avx2::available() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
}

void fill_set(Table& table, ImageTable& image) noexcept {
  avx2::fill_images(image);  // for the kernels that generic/ does not build for this set
  fill_kernels(table);
  fill_images(image);
  table.bytes = avx512_vnni::available() ? &avx512_vnni::bytes() : &avx2::bytes();
}

SetDefinition instruction_set() noexcept { return {{.name = "avx512", .available = available()}, &fill_set}; }

}  // namespace walle::avx512
#else
walle::SetDefinition walle::avx512::instruction_set() noexcept { return {{.name = "avx512"}}; }
#endif
