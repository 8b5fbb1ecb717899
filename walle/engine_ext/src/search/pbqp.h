// Solver of partitioned boolean quadratic problems (PBQP): one choice for each node of a graph, such that the costs of the
// choices and of the edges between them are least. It chooses primitives and layouts of a network (Mulder et al., §2.2).
#pragma once
#include <cstdint>
#include <vector>

#include "search/cost_matrix.h"

namespace walle {

struct PbqpEdge {
  int u = 0, v = 0;
  pbqp::CostMatrix costs;  // [choice of u, choice of v]
};

// Costs may be +infinity, which forbids a choice or a pair of choices. Finite costs are at most kMaxCost in sum.
struct PbqpProblem {
  std::vector<std::vector<double>> costs;  // [node][choice]
  std::vector<PbqpEdge> edges;

  // Adds an edge with a matrix of [choices of u, choices of v], which may be a view of memory that outlives the problem. Several
  // edges between two nodes, in either direction, add up. Throws Error (shape) for a node that does not exist, an edge from a
  // node to itself and a matrix of another size.
  void add_edge(int u, int v, pbqp::CostMatrix matrix);

  static constexpr double kMaxCost = 1e300;
};

struct PbqpOptions {
  // Choices that branch and bound tries in all, over all parts of the graph that no reduction solves. A try in a part with n
  // choices counts 1 + n / 1024, because it takes longer.
  std::int64_t max_steps = 1'000'000;
};

struct PbqpSolution {
  std::vector<int> choices;  // one for each node
  double cost = 0;           // sum of the problem's costs at these choices, nodes before edges, each in order
  bool exact = false;        // true where no other choices cost less, but for rounding of sums
};

// Returns choices of least cost, or of low cost with `exact` false where branch and bound reached its limit.
//
// Nodes of degree 0, 1 and 2 are eliminated exactly (R0, R1, R2). What remains is bounded by sequential message passing, from
// which choices follow that cannot be in a better solution, and searched by branch and bound. Exact means: within 1e-12 of the
// sum of absolute costs. Equal problems give equal solutions on every machine: work is limited by counts, sums have one order.
// Among solutions of equal cost: no node of the returned one has a choice of a smaller index at the same or a lower cost while
// the other nodes keep theirs.
//
// Throws Error (model) for costs that are NaN, -infinity or too large, for a node without choices, and where every assignment
// costs infinity, or none that costs less was found within the limit. Throws WorkStopped where the work must stop (core/stop.h).
//
// Source: PBQP reductions and RN of Scholz and Eckstein (2002), Hames and Scholz (2006); message passing of Kolmogorov (2006).
PbqpSolution solve_pbqp(const PbqpProblem& problem, const PbqpOptions& options = {});

}  // namespace walle
