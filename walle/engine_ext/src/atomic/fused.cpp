#include "atomic/fused.h"

namespace walle {

const Fused* find_fused(std::string_view composite) {
  static constexpr std::pair<std::string_view, const Fused*> kAll[] = {
      {"Clip", &kFusedClip},   {"LayerNormalization", &kFusedLayerNorm}, {"LogSoftmax", &kFusedLogSoftmax},
      {"PRelu", &kFusedPRelu}, {"RMSNormalization", &kFusedRmsNorm},     {"Softmax", &kFusedSoftmax},
  };
  for (const auto& [name, fused] : kAll)
    if (name == composite) return fused;
  return is_map(composite) ? &kFusedMap : nullptr;
}

std::unique_ptr<HostStep> make_fused(const Fused& fused, std::string_view composite, std::span<const Layout> inputs,
                                     const Attributes& attributes, const Table& table, ScoreScale score_scale) {
  std::vector<Operand> operands;
  for (const Layout& input : inputs) operands.push_back({input.dtype, input.shape, input.constant, input.absent});
  return fused.make({composite, operands, attributes, 1, table, score_scale});
}

}  // namespace walle
