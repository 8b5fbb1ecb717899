#include "search/core.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "search/branch_and_bound.h"
#include "search/core_tables.h"
#include "search/local_search.h"
#include "search/message_passing.h"

namespace walle::pbqp {

namespace {

constexpr int kMaxPasses = 64, kPassesEach = 4;
constexpr double kLeastRise = 0.01;  // share of the gap that makes further passes worth their time
constexpr double kLeastRemoved = 0.05;
constexpr double kTolerance = 1e-12;
constexpr std::int64_t kQuickSteps = 5'000;
constexpr std::int64_t kAnnealing = 20'000'000, kLongAnnealing = 80'000'000;  // elements added

int choice_count(const CostGraph& graph, const std::vector<int>& nodes) {
  int count = 0;
  for (const int node : nodes) count += graph.node(node).count();
  return count;
}

bool all_remain(const CostGraph& graph, const std::vector<int>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(), [&](int node) { return graph.node(node).exists; });
}

}  // namespace

// Normalises edges, and removes dominated choices until none is; returns whether that eliminated a node.
bool CoreSolver::prune(const std::vector<int>& nodes) {
  for (const int node : nodes) {
    const std::vector<int> edges = graph_.node(node).edges;  // a copy, because edges are removed
    for (const int e : edges)
      if (graph_.edge(e).ends[0] == node) graph_.normalise(e);
  }
  for (bool any = true; any;) {
    any = false;
    for (const int node : nodes) any = graph_.prune_dominated(node, known_[node]) || any;
    graph_.reduce();
    if (!all_remain(graph_, nodes)) return true;
  }
  return false;
}

std::vector<int> CoreSolver::known_positions(const std::vector<int>& nodes) const {
  std::vector<int> positions;
  for (const int node : nodes) {
    const std::vector<int>& choices = graph_.node(node).choices;
    const auto found = std::lower_bound(choices.begin(), choices.end(), known_[node]);
    if (found == choices.end() || *found != known_[node]) return {};
    positions.push_back(static_cast<int>(found - choices.begin()));
  }
  return positions;
}

void CoreSolver::remember(const std::vector<int>& nodes, const std::vector<int>& positions) {
  for (std::size_t k = 0; k < nodes.size(); ++k) known_[nodes[k]] = graph_.node(nodes[k]).choices[positions[k]];
}

void CoreSolver::advance(const std::vector<int>& nodes) {
  MessagePassing messages(graph_, nodes);
  double cost = kInfinity;
  const auto consider = [&](const CoreTables& tables, const std::vector<int>& positions) {
    if (positions.empty()) return;
    const double sum = messages.bound() + tables.cost(positions);
    if (sum >= cost) return;
    cost = sum;
    remember(nodes, positions);
  };
  const auto tolerance = [&] {
    magnitude_ = std::max({magnitude_, messages.magnitude(), std::abs(messages.bound())});
    return kTolerance * magnitude_;
  };

  const auto solves = [&](int passes) {
    for (int k = 0; k < passes; ++k) messages.pass();
    messages.settle();
    const CoreTables tables(graph_, nodes);
    consider(tables, known_positions(nodes));
    LocalSearch search(tables, graph_);
    search.set_greedy();
    search.descend();
    consider(tables, search.positions());
    return cost - messages.bound() <= tolerance();
  };

  if (solves(1)) return graph_.fix(nodes, known_);  // most networks
  if (prune(nodes)) return;
  const int count_before = choice_count(graph_, nodes);
  double last = -kInfinity;
  for (int pass = 0; pass < kMaxPasses; pass += kPassesEach) {
    if (solves(kPassesEach)) return graph_.fix(nodes, known_);
    if (messages.bound() - last < kLeastRise * (cost - messages.bound())) break;
    last = messages.bound();
  }

  const auto forbid = [&] {
    if (cost == kInfinity) return false;
    messages.forbid_above(cost - messages.bound() + tolerance(), known_);
    graph_.reduce();
    return !all_remain(graph_, nodes) || choice_count(graph_, nodes) < (1 - kLeastRemoved) * count_before;
  };
  if (forbid()) return;
  const auto search_all = [&](std::int64_t steps) {
    messages.settle();
    const CoreTables tables(graph_, nodes);
    std::int64_t rest = std::min(steps, steps_);
    steps_ -= rest;
    const BranchAndBoundResult found = branch_and_bound(tables, graph_, cost - messages.bound(), tolerance(), rest);
    steps_ += std::max<std::int64_t>(rest, 0);
    consider(tables, found.positions);
    return found.is_complete;
  };
  const auto anneal = [&](std::int64_t elements, std::uint64_t seed) {
    const CoreTables tables(graph_, nodes);
    std::vector<int> positions = known_positions(nodes);
    LocalSearch search(tables, graph_);
    if (positions.empty())
      search.set_greedy();
    else
      search.set(std::move(positions));
    search.anneal(elements, seed);
    consider(tables, search.positions());
  };
  bool is_complete = search_all(kQuickSteps);
  if (!is_complete) {
    anneal(kAnnealing, 1);
    if (forbid()) return;
    is_complete = search_all(steps_);
    if (!is_complete) anneal(kLongAnnealing, 2);
  }
  if (cost == kInfinity)
    throw Error(ErrorKind::model, is_complete
                                      ? "every assignment costs infinity: the choices of node " + std::to_string(nodes[0]) +
                                            " and of the nodes connected to it cannot be combined"
                                      : "no assignment of finite cost was found within the limit of steps; raise max_steps");
  is_exact_ = is_exact_ && is_complete;
  graph_.fix(nodes, known_);
}

}  // namespace walle::pbqp
