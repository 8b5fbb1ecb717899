#include "run/plan_cache.h"

#include <cstring>

namespace walle {

namespace {

bool fits(const Plan& plan, std::span<const Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (plan.inputs[i].dtype != inputs[i].dtype() || plan.inputs[i].shape != inputs[i].shape()) return false;
    if (plan.given.empty() || plan.given[i].storage() == nullptr) continue;
    const auto bytes = static_cast<std::size_t>(inputs[i].size()) * item_size(inputs[i].dtype());
    if (bytes > 0 && std::memcmp(plan.given[i].raw(), inputs[i].raw(), bytes) != 0) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<Plan> PlanCache::find(std::span<const Tensor> inputs) {
  for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
    if (!fits(**plan, inputs)) continue;
    plans_.splice(plans_.begin(), plans_, plan);
    return plans_.front();
  }
  return nullptr;
}

void PlanCache::add(std::shared_ptr<Plan> plan) {
  plans_.push_front(std::move(plan));
  if (plans_.size() > kPlans) plans_.pop_back();
}

}  // namespace walle
