// Heuristic assignments of a part of the graph.
#pragma once
#include <cstdint>
#include <vector>

#include "search/core_tables.h"

namespace walle::pbqp {

// An assignment that moves improve: a position for each node. Forbidden pairs cost the tables' penalty here.
class LocalSearch {
 public:
  LocalSearch(const CoreTables& tables, CostGraph& graph) : tables_(tables), graph_(graph) {}

  const std::vector<int>& positions() const noexcept { return positions_; }
  void set(std::vector<int> positions);
  // Sets the choices of the RN heuristic: node after node, the choice that is cheapest with those chosen and with the best of
  // each neighbour that has none.
  void set_greedy();
  // Moves single nodes and pairs of neighbours, until nothing is gained.
  void descend();
  // Improves the assignment by threshold accepting, for about this much work. (Simulated annealing would need
  // exp, whose last digit differs between machines.) Source: Dueck and Scheuer (1990).
  void anneal(std::int64_t elements, std::uint64_t seed);

 private:
  double soft(double cost) const noexcept { return cost < tables_.penalty ? cost : tables_.penalty; }
  double cost() const noexcept;
  void move(int node, int position);
  bool improve_node(int node);
  bool improve_pair(int node, const CoreTables::Arc& arc, const CoreTables::Arc& back);
  double mean_regret() const;

  const CoreTables& tables_;
  CostGraph& graph_;
  std::vector<int> positions_;
  std::vector<std::vector<double>> costs_;  // cost of each choice, the other nodes' given
  std::vector<double> own_, other_;
  std::int64_t work_ = 0;
};

}  // namespace walle::pbqp
