#include "atomic/atomic.h"

#include <array>

namespace walle {

// clang-format off
#define WALLE_ATOMIC(name) \
  TensorType infer_##name(std::span<const Operand>, const Attributes&); \
  std::unique_ptr<Step> make_##name(const StepRequest&);
WALLE_ATOMIC(det)
WALLE_ATOMIC(indexed_gather)
WALLE_ATOMIC(indexed_scatter)
WALLE_ATOMIC(recurrent_steps)
#undef WALLE_ATOMIC
// clang-format on

std::span<const Atomic> atomics() noexcept {
  static constexpr std::array table{std::to_array<Atomic>({
      {"Det", 1, 1, &infer_det, &make_det},
      {"IndexedGather", 2, 2, &infer_indexed_gather, &make_indexed_gather},
      {"IndexedScatter", 3, 3, &infer_indexed_scatter, &make_indexed_scatter},
      {"RecurrentSteps", 3, 7, &infer_recurrent_steps, &make_recurrent_steps},
  })};
  return table;
}

}  // namespace walle
