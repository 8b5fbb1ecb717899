#include "search/local_search.h"

#include <algorithm>
#include <limits>
#include <random>

namespace walle::pbqp {

namespace {
// A smaller gain may be rounding, by which moves could go in circles.
constexpr double kLeastGain = 1e-13;

bool is_gain(double from, double to) noexcept { return to < from - kLeastGain * (from < 0 ? -from : from); }
}  // namespace

std::vector<int> LocalSearch::greedy() {
  std::vector<int> positions(tables_.costs.size(), -1);
  std::vector<double> costs;
  for (int s = 0; s < tables_.size(); ++s) {
    costs = tables_.costs[s];
    for (const CoreTables::Arc& arc : tables_.arcs[s]) {
      const int chosen = positions[arc.to];
      const std::vector<double>& others = tables_.costs[arc.to];
      graph_.proceed(arc.costs.work());
      for (int c = 0; c < arc.costs.rows; ++c) {
        const double* cost = arc.costs.row(c);
        double least = kInfinity;
        if (chosen >= 0)
          least = cost[chosen];
        else
          for (int j = 0; j < arc.costs.columns; ++j) least = std::min(least, cost[j] + others[j]);
        costs[c] += soft(least);
      }
    }
    positions[s] = static_cast<int>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  }
  return positions;
}

double LocalSearch::soft_cost(const std::vector<int>& positions) const noexcept {
  double sum = 0;
  for (int s = 0; s < tables_.size(); ++s) {
    sum += tables_.costs[s][positions[s]];
    for (const CoreTables::Arc& arc : tables_.arcs[s])
      if (arc.to > s) sum += soft(arc.costs.at(positions[s], positions[arc.to]));
  }
  return sum;
}

void LocalSearch::conditional(int node, const std::vector<int>& positions, int except, std::vector<double>& costs) {
  costs = tables_.costs[node];
  for (const CoreTables::Arc& arc : tables_.arcs[node]) {
    if (arc.to == except) continue;
    const int chosen = positions[arc.to];
    for (int c = 0; c < arc.costs.rows; ++c) costs[c] += soft(arc.costs.at(c, chosen));
  }
  work_ += static_cast<std::int64_t>(costs.size() * tables_.arcs[node].size());
}

bool LocalSearch::improve_node(int node, std::vector<int>& positions) {
  conditional(node, positions, -1, costs_);
  const auto best = static_cast<int>(std::min_element(costs_.begin(), costs_.end()) - costs_.begin());
  if (!is_gain(costs_[positions[node]], costs_[best])) return false;
  positions[node] = best;
  return true;
}

bool LocalSearch::improve_pair(int node, const CoreTables::Arc& arc, std::vector<int>& positions) {
  conditional(node, positions, arc.to, costs_);
  conditional(arc.to, positions, node, other_costs_);
  const double present =
      costs_[positions[node]] + other_costs_[positions[arc.to]] + soft(arc.costs.at(positions[node], positions[arc.to]));
  const double least_other = *std::min_element(other_costs_.begin(), other_costs_.end());
  double best = present;
  int best_i = positions[node], best_j = positions[arc.to];
  for (int i = 0; i < arc.costs.rows; ++i) {
    if (costs_[i] + least_other >= best) continue;
    const double* cost = arc.costs.row(i);
    work_ += arc.costs.columns;
    for (int j = 0; j < arc.costs.columns; ++j) {
      const double sum = costs_[i] + other_costs_[j] + soft(cost[j]);
      if (sum < best) {
        best = sum;
        best_i = i;
        best_j = j;
      }
    }
  }
  if (!is_gain(present, best)) return false;
  positions[node] = best_i;
  positions[arc.to] = best_j;
  return true;
}

void LocalSearch::descend(std::vector<int>& positions) {
  for (bool any = true; any;) {
    any = false;
    const std::int64_t before = work_;
    for (int s = 0; s < tables_.size(); ++s) any = improve_node(s, positions) || any;
    if (!any) {
      for (int s = 0; s < tables_.size(); ++s)
        for (const CoreTables::Arc& arc : tables_.arcs[s])
          if (arc.to > s && improve_pair(s, arc, positions)) any = true;
    }
    graph_.proceed(work_ - before);
  }
}

void LocalSearch::perturb(std::vector<int>& positions, std::int64_t elements) {
  std::mt19937_64 random(1);
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<std::uint64_t>(count)); };
  double best = soft_cost(positions);
  std::vector<int> trial;
  for (work_ = 0; work_ < elements;) {
    trial = positions;
    const int changes = 2 + below(3);
    for (int k = 0; k < changes; ++k) {
      const int node = below(tables_.size());
      trial[node] = below(tables_.count(node));
    }
    descend(trial);
    const double cost = soft_cost(trial);
    if (!is_gain(best, cost)) continue;
    best = cost;
    positions = trial;
  }
}

}  // namespace walle::pbqp
