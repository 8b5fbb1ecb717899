#include "search/model_registry.h"

#include <map>

#include "core/fork_mutex.h"

namespace walle {

namespace {

// Never destroyed: threads may plan while the process exits.
struct ModelRegistry {
  ForkMutex mutex;
  std::map<std::string, std::shared_ptr<const PerformanceModel>, std::less<>> models;
};
ModelRegistry& model_registry() {
  static ModelRegistry& all = *new ModelRegistry;
  return all;
}

}  // namespace

std::shared_ptr<const PerformanceModel> performance_model(std::string_view set) {
  ModelRegistry& all = model_registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.models.find(set);
  return found == all.models.end() ? nullptr : found->second;
}

void set_performance_model(std::string_view set, std::shared_ptr<const PerformanceModel> model) {
  ModelRegistry& all = model_registry();
  const std::lock_guard lock(all.mutex);
  all.models.insert_or_assign(std::string(set), std::move(model));
}

}  // namespace walle
