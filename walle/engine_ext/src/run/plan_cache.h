// Cache of a session's plans, one for each set of input types: the last ones used.
#pragma once
#include <list>

#include "plan/plan.h"

namespace walle {

class PlanCache {
 public:
  static constexpr std::size_t kPlans = 8;

  // Return the plan that was made for inputs like these and mark it as the last used; null where there is none.
  std::shared_ptr<Plan> find(std::span<const Tensor> inputs);
  // Adds a plan; the one unused for longest is removed where there are more than kPlans.
  void add(std::shared_ptr<Plan> plan);
  // Return the last used; null where there is none.
  std::shared_ptr<Plan> last() const { return plans_.empty() ? nullptr : plans_.front(); }

 private:
  std::list<std::shared_ptr<Plan>> plans_;  // the last used first
};

}  // namespace walle
