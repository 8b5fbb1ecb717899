#include "kernels/bytes.h"

namespace walle {

const Bytes& bytes(const Table& table) noexcept {
#if defined(__x86_64__)
  static const bool vnni = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512vnni");
  if (table.name.starts_with("avx512")) return vnni ? vnni_bytes() : avx2_bytes();
  if (table.name == "avx2") return avx2_bytes();
#endif
  return scalar::kBytes;
}

}  // namespace walle
