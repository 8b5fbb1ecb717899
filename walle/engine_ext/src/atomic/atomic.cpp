#include "atomic/atomic.h"

#include <array>

namespace walle {

// clang-format off
#define WALLE_ATOMIC(name) \
  TensorType infer_##name(std::span<const Operand>, const Attributes&); \
  std::unique_ptr<Step> make_##name(const StepRequest&);
WALLE_ATOMIC(cast)
WALLE_ATOMIC(cum_prod)
WALLE_ATOMIC(cum_sum)
WALLE_ATOMIC(det)
WALLE_ATOMIC(indexed_gather)
WALLE_ATOMIC(indexed_scatter)
WALLE_ATOMIC(recurrent_steps)
WALLE_ATOMIC(top_indices)
WALLE_ATOMIC(top_values)
#undef WALLE_ATOMIC
// clang-format on

std::span<const Atomic> atomics() noexcept {
  static constexpr std::array table{std::to_array<Atomic>({
      {"Cast", 1, 1, &infer_cast, &make_cast},
      {"CumProd", 2, 2, &infer_cum_prod, &make_cum_prod},
      {"CumSum", 2, 2, &infer_cum_sum, &make_cum_sum},
      {"Det", 1, 1, &infer_det, &make_det},
      {"IndexedGather", 2, 2, &infer_indexed_gather, &make_indexed_gather},
      {"IndexedScatter", 3, 3, &infer_indexed_scatter, &make_indexed_scatter},
      {"RecurrentSteps", 3, 7, &infer_recurrent_steps, &make_recurrent_steps},
      {"TopIndices", 1, 1, &infer_top_indices, &make_top_indices},
      {"TopValues", 1, 1, &infer_top_values, &make_top_values},
  })};
  return table;
}

}  // namespace walle
