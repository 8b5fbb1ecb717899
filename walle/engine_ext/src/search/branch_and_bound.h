// Branch and bound over a part of the graph, with forward checking.
#pragma once
#include <cstdint>
#include <vector>

#include "search/core_tables.h"

namespace walle::pbqp {

struct BranchAndBoundResult {
  std::vector<int> positions;  // empty where nothing below the limit was found
  bool is_complete = false;    // the search ended before its steps did
};

// Returns the cheapest assignment that costs less than `limit`. It subtracts each choice tried from `steps` (see PbqpOptions),
// and stops below 0.
BranchAndBoundResult branch_and_bound(const CoreTables& tables, CostGraph& graph, double limit, double tolerance,
                                      std::int64_t& steps);

}  // namespace walle::pbqp
