#include "atomic/fused.h"

namespace walle {

bool Fused::is_map() const noexcept { return applies == &map_applies || applies == &gelu_applies; }

std::span<const Fused> fused_composites() noexcept {
  static constexpr Fused table[] = {
      {"Gelu", &gelu_applies, &make_gelu},           {"HardSigmoid", &map_applies, &make_hard_sigmoid},
      {"HardSwish", &map_applies, &make_hard_swish}, {"LayerNormalization", &norm_applies, &make_layer_norm},
      {"LeakyRelu", &map_applies, &make_leaky_relu}, {"LogSoftmax", &softmax_applies, &make_log_softmax},
      {"PRelu", &prelu_applies, &make_prelu},        {"RMSNormalization", &norm_applies, &make_rms_norm},
      {"Softmax", &softmax_applies, &make_softmax},  {"Swish", &map_applies, &make_swish},
  };
  return table;
}

}  // namespace walle
