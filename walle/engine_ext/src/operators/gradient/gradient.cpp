#include "operators/gradient/gradient.h"

#include <algorithm>
#include <array>

#include "geometry/composite/expressions.h"
#include "operators/gradient/rules.h"

namespace walle {

namespace {

using namespace gradient;

struct Rule {
  std::string_view op;
  GradientFn make;
};

constexpr std::array kRules{std::to_array<Rule>({
    {"Add", &of_add},
    {"Div", &of_div},
    {"Exp", &of_exp},
    {"MatMul", &of_matmul},
    {"Mul", &of_mul},
    {"Neg", &of_neg},
    {"Sub", &of_sub},
})};
static_assert(std::ranges::is_sorted(kRules, {}, &Rule::op));

}  // namespace

GradientFn find_gradient(std::string_view op) noexcept {
  const auto found = std::ranges::lower_bound(kRules, op, {}, &Rule::op);
  return found != kRules.end() && found->op == op ? found->make : nullptr;
}

std::vector<std::string_view> operators_with_gradients() {
  std::vector<std::string_view> names;
  for (const Rule& rule : kRules) names.push_back(rule.op);
  return names;
}

}  // namespace walle
