// Heuristic assignments of a part of the graph.
#pragma once
#include <cstdint>
#include <vector>

#include "search/core_tables.h"

namespace walle::pbqp {

// Positions of the choices of all nodes. Forbidden choices and pairs cost the tables' penalty here.
class LocalSearch {
 public:
  LocalSearch(const CoreTables& tables, CostGraph& graph) : tables_(tables), graph_(graph) {}

  // Returns the choices of the RN heuristic: node after node, the choice that is cheapest with those chosen and with the best of
  // each neighbour that has none.
  std::vector<int> greedy();
  // Improves the positions by moves of one node and of two neighbours, until none improves them.
  void descend(std::vector<int>& positions);
  // Descends from changes of a few nodes, drawn from a fixed seed, for about this much work, and keeps the best.
  void perturb(std::vector<int>& positions, std::int64_t elements);

 private:
  double soft(double cost) const noexcept { return cost < tables_.penalty ? cost : tables_.penalty; }
  double soft_cost(const std::vector<int>& positions) const noexcept;
  // Writes the cost of each choice of a node, the others' given, without the neighbour `except`.
  void conditional(int node, const std::vector<int>& positions, int except, std::vector<double>& costs);
  bool improve_node(int node, std::vector<int>& positions);
  bool improve_pair(int node, const CoreTables::Arc& arc, std::vector<int>& positions);

  const CoreTables& tables_;
  CostGraph& graph_;
  std::vector<double> costs_, other_costs_;
  std::int64_t work_ = 0;
};

}  // namespace walle::pbqp
