// Solution of a part of the graph that no reduction simplifies.
#pragma once
#include <cstdint>
#include <vector>

#include "search/cost_graph.h"

namespace walle::pbqp {

class CoreSolver {
 public:
  CoreSolver(CostGraph& graph, std::int64_t max_steps)
      : graph_(graph), steps_(max_steps), known_(static_cast<std::size_t>(graph.node_count()), -1) {}

  // Either fixes each of the connected nodes, or removes some choices, after which the graph may be reduced further. Throws Error
  // (model) where no assignment of finite cost exists or none was found.
  void advance(const std::vector<int>& nodes);

  // Whether all choices that were fixed are proven to be of least cost.
  bool is_exact() const noexcept { return is_exact_; }

 private:
  bool prune(const std::vector<int>& nodes);
  std::vector<int> known_positions(const std::vector<int>& nodes) const;
  void remember(const std::vector<int>& nodes, const std::vector<int>& positions);

  CostGraph& graph_;
  std::int64_t steps_;
  std::vector<int> known_;  // the problem's index of the choice of each node in the best assignment so far, -1 for none
  double magnitude_ = 0;
  bool is_exact_ = true;
};

}  // namespace walle::pbqp
