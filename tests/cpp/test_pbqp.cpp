// Tests of the PBQP solver, compared with trying every assignment.
#include <algorithm>
#include <limits>
#include <vector>

#include "check.h"
#include "search/pbqp.h"

using namespace walle;

namespace {

double cost_of(const PbqpProblem& problem, const std::vector<int>& choices) {
  double sum = 0;
  for (std::size_t node = 0; node < choices.size(); ++node) sum += problem.costs[node][choices[node]];
  for (const PbqpEdge& edge : problem.edges) sum += edge.costs.at(choices[edge.u], choices[edge.v]);
  return sum;
}

double least_cost(const PbqpProblem& problem) {
  std::vector<int> choices(problem.costs.size());
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t node = 0; node < choices.size();) {
    least = std::min(least, cost_of(problem, choices));
    for (node = 0; node < choices.size(); ++node) {
      if (++choices[node] < static_cast<int>(problem.costs[node].size())) break;
      choices[node] = 0;
    }
  }
  return least;
}

// Costs are whole numbers, some of them infinite, so that sums are exact.
PbqpProblem random_problem(std::mt19937_64& random) {
  const auto draw = [&](std::int64_t count, bool may_forbid) {
    std::vector<double> costs(static_cast<std::size_t>(count));
    for (double& cost : costs)
      cost = may_forbid && check::whole(random, 0, 4) == 0 ? std::numeric_limits<double>::infinity()
                                                           : static_cast<double>(check::whole(random, -3, 9));
    return costs;
  };
  PbqpProblem problem;
  const bool may_forbid = check::whole(random, 0, 1) == 0;
  const auto nodes = static_cast<int>(check::whole(random, 1, 6));
  for (int node = 0; node < nodes; ++node) problem.costs.push_back(draw(check::whole(random, 1, 4), false));
  for (int u = 0; u < nodes; ++u)
    for (int v = 0; v < nodes; ++v) {
      if (u == v || check::whole(random, 0, 9) > (u < v ? 6 : 1)) continue;
      const auto rows = static_cast<int>(problem.costs[u].size()), columns = static_cast<int>(problem.costs[v].size());
      problem.add_edge(u, v, {rows, columns, draw(std::int64_t{rows} * columns, may_forbid)});
    }
  return problem;
}

void test_random_problems() {
  std::mt19937_64 random(1);
  int infeasible = 0;
  for (int k = 0; k < 300; ++k) {
    const PbqpProblem problem = random_problem(random);
    const double least = least_cost(problem);
    if (least == std::numeric_limits<double>::infinity()) {
      ++infeasible;
      CHECK_ERROR(solve_pbqp(problem), model);
      continue;
    }
    const PbqpSolution solution = solve_pbqp(problem);
    CHECK(solution.exact);
    CHECK(solution.cost == least);
    CHECK(cost_of(problem, solution.choices) == least);
  }
  CHECK(infeasible > 5 && infeasible < 150);
}

void test_a_long_ring() {
  std::mt19937_64 random(2);
  PbqpProblem problem;
  constexpr int kNodes = 3000;
  problem.costs.assign(kNodes, {0.0, 0.0});
  // Neighbours differ, which an even ring allows in two ways; a cost at one node decides.
  const std::vector<double> different{std::numeric_limits<double>::infinity(), 0, 0, std::numeric_limits<double>::infinity()};
  problem.costs[7] = {1.0, 0.0};
  for (int node = 0; node < kNodes; ++node) problem.add_edge(node, (node + 1) % kNodes, {2, 2, different});
  const PbqpSolution solution = solve_pbqp(problem);
  CHECK(solution.exact && solution.cost == 0);
  for (int node = 0; node < kNodes; ++node) CHECK(solution.choices[node] == node % 2);
}

void test_refusals() {
  PbqpProblem problem;
  problem.costs = {{0.0, 1.0}, {0.0}};
  CHECK_ERROR(problem.add_edge(0, 2, {2, 1, {0.0, 0.0}}), shape);
  CHECK_ERROR(problem.add_edge(0, 0, {2, 2, {0.0, 0.0, 0.0, 0.0}}), shape);
  CHECK_ERROR(problem.add_edge(0, 1, {1, 2, {0.0, 0.0}}), shape);
  problem.costs[0][1] = std::numeric_limits<double>::quiet_NaN();
  CHECK_ERROR(solve_pbqp(problem), model);
  problem.costs[0].clear();
  CHECK_ERROR(solve_pbqp(problem), model);
  CHECK(solve_pbqp({}).exact);
}

}  // namespace

int main() {
  test_random_problems();
  test_a_long_ring();
  test_refusals();
  return check::failures == 0 ? 0 : 1;
}
