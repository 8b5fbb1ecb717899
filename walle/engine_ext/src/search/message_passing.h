// Lower bound of a part of the graph, by sequential message passing: costs move between nodes and edges such that the sum of the
// nodes' least costs rises, while every assignment keeps its cost.
#pragma once
#include <vector>

#include "search/cost_graph.h"

namespace walle::pbqp {

// Source: TRW-S (Kolmogorov 2006) in the form of SRMP (Kolmogorov 2015), which keeps costs of edges non-negative.
class MessagePassing {
 public:
  // `nodes` ascend, and have no edges to others.
  MessagePassing(CostGraph& graph, const std::vector<int>& nodes) : graph_(graph), nodes_(nodes) {}

  // Moves costs along the nodes, forwards and backwards. Choices that have no compatible one in a neighbour are removed. Call
  // settle() before costs are read.
  void pass();
  // Moves the edges' costs to the nodes, and the nodes' least costs to the bound.
  void settle();
  // Removes choices whose solutions all cost more than `slack` above the bound, and forbids such pairs. Settled before. Keeps the
  // choices of an assignment, by the problem's indices of all nodes, which rounding might remove.
  void forbid_above(double slack, const std::vector<int>& kept);

  // No assignment costs less. Zero of this scale is arbitrary, but the same for this object's life.
  double bound() const noexcept { return bound_; }
  // Sum of the absolute costs that were moved first, by which rounding is measured.
  double magnitude() const noexcept { return magnitude_; }

 private:
  void collect(int node);
  void distribute(int node, bool forward);

  CostGraph& graph_;
  const std::vector<int>& nodes_;
  double bound_ = 0, magnitude_ = 0;
  std::vector<double> minima_, share_;  // scratch: minima of an edge, costs that a node gives to each edge
};

}  // namespace walle::pbqp
