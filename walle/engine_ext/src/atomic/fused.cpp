#include "atomic/fused.h"

namespace walle {

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
