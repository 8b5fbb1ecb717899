// Registry of the process's performance models, one for each instruction set that has one.
#pragma once
#include <memory>

#include "search/performance_model.h"

namespace walle {

// Return the model of an instruction set; null where none was set. Thread-safe.
std::shared_ptr<const PerformanceModel> performance_model(std::string_view set);
// Sets, or with null removes, the model that later plans of the instruction set use. Thread-safe.
void set_performance_model(std::string_view set, std::shared_ptr<const PerformanceModel> model);

}  // namespace walle
