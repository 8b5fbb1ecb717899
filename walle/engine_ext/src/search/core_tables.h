// Costs of a part of the graph as searches read them, its nodes numbered from 0.
#pragma once
#include <vector>

#include "search/cost_graph.h"

namespace walle::pbqp {

struct CoreTables {
  struct Arc {
    int to = 0;
    CostMatrix costs;  // [choice of this node, choice of `to`]
    int back = 0;      // index of the same edge at `to`
  };
  std::vector<std::vector<double>> costs;
  std::vector<std::vector<Arc>> arcs;  // each edge at both ends
  double penalty = 1;                  // more than any difference of finite costs

  CoreTables(const CostGraph& graph, const std::vector<int>& nodes);
  int size() const noexcept { return static_cast<int>(costs.size()); }
  int count(int node) const noexcept { return static_cast<int>(costs[node].size()); }
  // Returns the sum of the costs at these positions.
  double cost(const std::vector<int>& positions) const noexcept;
};

}  // namespace walle::pbqp
