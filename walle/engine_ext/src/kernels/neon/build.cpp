// The neon instruction set: generic/ over neon/vec.h. It needs no target region: the baseline of every 64-bit ARM CPU has the
// instructions of vec.h, and plain loops and image kernels already use them.
#include "kernels/instruction_set.h"

#if defined(__aarch64__)
#include "kernels/target.h"

#define WALLE_BASELINE_HAS_VECTORS
namespace walle::neon {
namespace {
// clang-format off: in this order
#include "kernels/neon/vec.h"
#include "kernels/generic/all-inl.h"
// clang-format on

void fill_set(Table& table, ImageTable&) noexcept { fill_all(table); }
}  // namespace

SetDefinition instruction_set() noexcept { return {{.name = "neon", .available = true}, &fill_set}; }

}  // namespace walle::neon
#else
walle::SetDefinition walle::neon::instruction_set() noexcept { return {{.name = "neon"}}; }
#endif
