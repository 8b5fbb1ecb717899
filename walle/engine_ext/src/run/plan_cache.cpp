#include "run/plan_cache.h"

#include <algorithm>
#include <cstring>

namespace walle {

namespace {

std::size_t size_bytes(const Tensor& tensor) { return static_cast<std::size_t>(tensor.size()) * item_size(tensor.dtype()); }

bool fits(const Plan& plan, std::span<const Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (plan.inputs[i].dtype != inputs[i].dtype() || plan.inputs[i].shape != inputs[i].shape()) return false;
    if (plan.given.empty() || plan.given[i].storage() == nullptr) continue;
    const auto bytes = size_bytes(inputs[i]);
    if (bytes > 0 && std::memcmp(plan.given[i].raw(), inputs[i].raw(), bytes) != 0) return false;
  }
  return true;
}

// Return whether two plans are for the same types and values.
bool alike(const Plan& a, const Plan& b) {
  for (std::size_t i = 0; i < a.inputs.size(); ++i) {
    if (a.inputs[i].dtype != b.inputs[i].dtype || a.inputs[i].shape != b.inputs[i].shape) return false;
    const Tensor x = a.given.empty() ? Tensor() : a.given[i], y = b.given.empty() ? Tensor() : b.given[i];
    if ((x.storage() == nullptr) != (y.storage() == nullptr)) return false;
    if (x.storage() != nullptr && x.size() > 0 && std::memcmp(x.raw(), y.raw(), size_bytes(x)) != 0) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<const Plan> PlanCache::find(std::span<const Tensor> inputs) {
  const std::lock_guard lock(mutex_);
  for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
    if (!fits(**plan, inputs)) continue;
    plans_.splice(plans_.begin(), plans_, plan);
    return plans_.front();
  }
  return nullptr;
}

std::shared_ptr<const Plan> PlanCache::add(std::shared_ptr<const Plan> plan) {
  std::shared_ptr<const Plan> removed;  // freed after the lock: its weights may be large
  const std::lock_guard lock(mutex_);
  const auto same = std::find_if(plans_.begin(), plans_.end(), [&](const auto& one) { return alike(*one, *plan); });
  if (same != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, same);
    return plans_.front();
  }
  plans_.push_front(std::move(plan));
  if (plans_.size() > kPlans) {
    removed = std::move(plans_.back());
    plans_.pop_back();
  }
  return plans_.front();
}

std::shared_ptr<const Plan> PlanCache::last() const {
  const std::lock_guard lock(mutex_);
  return plans_.empty() ? nullptr : plans_.front();
}

}  // namespace walle
