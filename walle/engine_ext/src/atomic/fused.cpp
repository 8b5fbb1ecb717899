#include "atomic/fused.h"

#include <algorithm>

namespace walle {

namespace {

template <Map (*kMap)(const Attributes&)>
std::unique_ptr<Step> make_by(const StepRequest& request) {
  return make_map(request, kMap(request.attributes));
}

}  // namespace

std::span<const Fused> fused_composites() noexcept {
  static constexpr Fused table[] = {
      {"Elu", &map_applies, &make_by<&elu_map>, &elu_map},
      {"Gelu", &gelu_applies, &make_by<&gelu_map>, &gelu_map},
      {"HardSigmoid", &map_applies, &make_by<&hard_sigmoid_map>, &hard_sigmoid_map},
      {"HardSwish", &map_applies, &make_by<&hard_swish_map>, &hard_swish_map},
      {"LayerNormalization", &norm_applies, &make_layer_norm},
      {"LeakyRelu", &map_applies, &make_by<&leaky_relu_map>, &leaky_relu_map},
      {"LogSoftmax", &softmax_applies, &make_log_softmax},
      {"Mish", &map_applies, &make_by<&mish_map>, &mish_map},
      {"PRelu", &prelu_applies, &make_prelu},
      {"RMSNormalization", &norm_applies, &make_rms_norm},
      {"Softmax", &softmax_applies, &make_softmax},
      {"Swish", &map_applies, &make_by<&swish_map>, &swish_map},
  };
  static_assert(std::ranges::is_sorted(table, {}, &Fused::name));
  return table;
}

}  // namespace walle
