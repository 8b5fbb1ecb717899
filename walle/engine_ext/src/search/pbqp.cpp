#include "search/pbqp.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/stop.h"
#include "search/core.h"
#include "search/cost_graph.h"

namespace walle {

namespace {

std::string edge_name(int u, int v) { return "edge (" + std::to_string(u) + ", " + std::to_string(v) + ")"; }

// Edges of the problem at each node, with the node's end.
struct EdgeEnd {
  const PbqpEdge* edge;
  bool is_row;
};

// Gives nodes the cheapest choice, the smallest index among equals, the others' given, until none changes: rounding and pruning
// within the reductions may have kept a larger index of the same cost.
void choose_smallest(const PbqpProblem& problem, std::vector<int>& choices) {
  std::vector<std::vector<EdgeEnd>> ends(problem.costs.size());
  for (const PbqpEdge& edge : problem.edges) {
    ends[edge.u].push_back({&edge, true});
    ends[edge.v].push_back({&edge, false});
  }
  std::vector<double> costs;
  StopPoll poll;
  const auto improve = [&](std::size_t node) {
    costs = problem.costs[node];
    for (const EdgeEnd& end : ends[node]) {
      const pbqp::CostMatrix& matrix = end.edge->costs;
      const int other = choices[end.is_row ? end.edge->v : end.edge->u];
      for (int c = 0; c < static_cast<int>(costs.size()); ++c) costs[c] += end.is_row ? matrix.at(c, other) : matrix.at(other, c);
      if (!poll.proceed(static_cast<std::int64_t>(costs.size()))) throw_if_stopped();
    }
    const auto best = static_cast<int>(std::min_element(costs.begin(), costs.end()) - costs.begin());
    if (best == choices[node]) return false;
    choices[node] = best;
    return true;
  };
  // Each change lowers cost or indices, except where rounding of sums makes nodes disagree, which ends here.
  std::size_t sweeps = 100 + problem.costs.size();
  for (bool any = true; any && sweeps > 0; --sweeps) {
    any = false;
    for (std::size_t node = 0; node < choices.size(); ++node) any = improve(node) || any;
  }
}

}  // namespace

void PbqpProblem::add_edge(int u, int v, pbqp::CostMatrix matrix) {
  const auto count = static_cast<int>(costs.size());
  for (const int node : {u, v})
    if (node < 0 || node >= count)
      throw Error(ErrorKind::shape, edge_name(u, v) + ": node " + std::to_string(node) + " does not exist; there are " +
                                        std::to_string(count) + " nodes");
  if (u == v) throw Error(ErrorKind::shape, edge_name(u, v) + " joins a node with itself; add its diagonal to the node's costs");
  const auto rows = static_cast<int>(costs[u].size()), columns = static_cast<int>(costs[v].size());
  if (matrix.rows != rows || matrix.columns != columns || !matrix.is_complete())
    throw Error(ErrorKind::shape, edge_name(u, v) + " has a matrix of " + std::to_string(matrix.rows) + " x " +
                                      std::to_string(matrix.columns) + " costs; the choices of its nodes need " +
                                      std::to_string(rows) + " x " + std::to_string(columns));
  edges.push_back({u, v, std::move(matrix)});
}

PbqpSolution solve_pbqp(const PbqpProblem& problem, const PbqpOptions& options) {
  pbqp::CostGraph graph(problem);
  for (int node = 0; node < graph.node_count(); ++node) graph.prune_equal(node);
  graph.reduce();
  pbqp::CoreSolver solver(graph, options.max_steps);
  for (std::vector<int> nodes = graph.component(); !nodes.empty(); nodes = graph.component()) {
    solver.advance(nodes);
    graph.reduce();
  }
  PbqpSolution solution{graph.choices(), 0, solver.is_exact()};
  choose_smallest(problem, solution.choices);
  for (std::size_t node = 0; node < problem.costs.size(); ++node) solution.cost += problem.costs[node][solution.choices[node]];
  for (const PbqpEdge& edge : problem.edges) solution.cost += edge.costs.at(solution.choices[edge.u], solution.choices[edge.v]);
  return solution;
}

}  // namespace walle
