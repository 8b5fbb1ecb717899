#include "atomic/fused.h"

namespace walle {

const Fused* find_fused(std::string_view composite) {
  static constexpr std::pair<std::string_view, const Fused*> kAll[] = {
      {"LayerNormalization", &kFusedLayerNorm}, {"LogSoftmax", &kFusedLogSoftmax}, {"PRelu", &kFusedPRelu},
      {"RMSNormalization", &kFusedRmsNorm},     {"Softmax", &kFusedSoftmax},
  };
  for (const auto& [name, fused] : kAll)
    if (name == composite) return fused;
  return is_map(composite) ? &kFusedMap : nullptr;
}

std::unique_ptr<Step> make_fused(const Fused& fused, std::string_view composite, std::span<const Layout> inputs,
                                 const Attributes& attributes, const Table& table) {
  std::vector<Operand> operands;
  for (const Layout& input : inputs) operands.push_back({input.dtype, input.shape, input.constant, input.absent});
  return fused.make({composite, operands, attributes, 1, table}, 0, {});
}

Work moved_work(const CompositeProblem& problem, std::int64_t) {
  const auto bytes = [](const Operand& operand) {
    return operand.absent ? 0.0
                          : static_cast<double>(element_count(operand.shape)) * static_cast<double>(item_size(operand.dtype));
  };
  Work work;
  work.moved = bytes(problem.operands[0]);  // the result
  for (const Operand& operand : problem.operands) work.moved += bytes(operand);
  return work;
}

}  // namespace walle
