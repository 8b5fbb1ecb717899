// The avx512_bf16 instruction set: avx512's kernels, and those that use AVX512_BF16.
#include "kernels/instruction_set.h"

#if defined(__x86_64__)
#include "kernels/avx512/target.h"

WALLE_TARGET_BEGIN("avx512f,avx512dq,avx512vl,avx512bf16,avx2,fma")
namespace walle::avx512_bf16 {
namespace {
// clang-format off: in this order
#include "kernels/avx512/vec.h"
#include "kernels/generic/movement-inl.h"
#include "kernels/generic/panel-inl.h"
#include "kernels/generic/gemm-inl.h"
#include "kernels/avx512_bf16/vec.h"
#include "kernels/generic/pairs-inl.h"
#include "kernels/generic/gemm-pairs-inl.h"
// clang-format on

void panel_pairs(const PanelArgs& args) noexcept { panel_by<PairProduct>(args); }
}  // namespace
}  // namespace walle::avx512_bf16
WALLE_TARGET_END

namespace walle::avx512_bf16 {

namespace {
void fill_set(Table& table, ImageTable& image) noexcept {
  static constexpr Bfloat16 all{&panel_pairs, &narrow, &pair};
  avx512::fill_set(table, image);
  table.bfloat16 = &all;
  table.gemm[static_cast<std::size_t>(Compute::f32)] = {&gemm_pairs, &gemm_pairs_scratch, true, true};
}
}  // namespace

SetDefinition instruction_set() noexcept {
  const bool available = avx512::available() && __builtin_cpu_supports("avx512bf16");
  return {{.name = "avx512_bf16", .available = available, .exact = false}, &fill_set};
}

}  // namespace walle::avx512_bf16
#else
walle::SetDefinition walle::avx512_bf16::instruction_set() noexcept { return {{.name = "avx512_bf16", .exact = false}}; }
#endif
