// Cache of a session's plans, one for each set of input types: the last ones used. Thread-safe.
#pragma once
#include <list>
#include <mutex>

#include "plan/plan.h"

namespace walle {

class PlanCache {
 public:
  static constexpr std::size_t kPlans = 8;

  // Return the plan that was made for inputs like these and mark it as the last used; null where there is none.
  std::shared_ptr<const Plan> find(std::span<const Tensor> inputs);
  // Adds a plan and returns it; the one unused for longest is removed where there are more than kPlans. Where two threads have
  // made a plan for the same inputs at once, the first one added stays and is returned.
  std::shared_ptr<const Plan> add(std::shared_ptr<const Plan> plan);
  // Return the last used; null where there is none.
  std::shared_ptr<const Plan> last() const;

 private:
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<const Plan>> plans_;  // the last used first
};

}  // namespace walle
