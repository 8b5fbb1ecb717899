#include "kernels/bfloat16.h"

namespace walle {

const Bfloat16* bfloat16(const Table& table) noexcept {
#if defined(__x86_64__)
  if (table.name == "avx512_bf16") return &avx512_bfloat16();
#endif
  return nullptr;
}

}  // namespace walle
