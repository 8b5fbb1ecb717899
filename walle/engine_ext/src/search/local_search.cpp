#include "search/local_search.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace walle::pbqp {

namespace {

constexpr double kLeastGain = 1e-12;  // a smaller one may be rounding

bool is_gain(double from, double to) noexcept { return to < from - kLeastGain * std::abs(from); }

int cheapest(const std::vector<double>& costs) noexcept {
  return static_cast<int>(std::min_element(costs.begin(), costs.end()) - costs.begin());
}

}  // namespace

void LocalSearch::set(std::vector<int> positions) {
  positions_ = std::move(positions);
  costs_ = tables_.costs;
  for (int s = 0; s < tables_.size(); ++s)
    for (const CoreTables::Arc& arc : tables_.arcs[s]) {
      const double* added = arc.costs.row(positions_[s]);
      std::vector<double>& costs = costs_[arc.to];
      for (std::size_t c = 0; c < costs.size(); ++c) costs[c] += soft(added[c]);
      work_ += arc.costs.columns;
    }
}

void LocalSearch::set_greedy() {
  std::vector<int> positions(tables_.costs.size(), -1);
  for (int s = 0; s < tables_.size(); ++s) {
    std::vector<double> costs = tables_.costs[s];
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
    positions[s] = cheapest(costs);
  }
  set(std::move(positions));
}

double LocalSearch::cost() const noexcept {
  double sum = 0;
  for (int s = 0; s < tables_.size(); ++s) {
    sum += tables_.costs[s][positions_[s]];
    for (const CoreTables::Arc& arc : tables_.arcs[s])
      if (arc.to > s) sum += soft(arc.costs.at(positions_[s], positions_[arc.to]));
  }
  return sum;
}

void LocalSearch::move(int node, int position) {
  for (const CoreTables::Arc& arc : tables_.arcs[node]) {
    const double *from = arc.costs.row(positions_[node]), *to = arc.costs.row(position);
    double* costs = costs_[arc.to].data();
    for (int c = 0; c < arc.costs.columns; ++c) costs[c] += soft(to[c]) - soft(from[c]);
    work_ += 2 * arc.costs.columns;
  }
  positions_[node] = position;
}

bool LocalSearch::improve_node(int node) {
  const int best = cheapest(costs_[node]);
  work_ += tables_.count(node);
  if (!is_gain(costs_[node][positions_[node]], costs_[node][best])) return false;
  move(node, best);
  return true;
}

bool LocalSearch::improve_pair(int node, const CoreTables::Arc& arc, const CoreTables::Arc& back) {
  const int at = positions_[node], other_at = positions_[arc.to];
  own_ = costs_[node];
  other_ = costs_[arc.to];
  const double *with_other = back.costs.row(other_at), *with_own = arc.costs.row(at);
  for (std::size_t c = 0; c < own_.size(); ++c) own_[c] -= soft(with_other[c]);
  for (std::size_t c = 0; c < other_.size(); ++c) other_[c] -= soft(with_own[c]);
  const double present = costs_[node][at] + other_[other_at];
  const double least_other = *std::min_element(other_.begin(), other_.end());
  double best = present;
  int best_i = at, best_j = other_at;
  work_ += arc.costs.rows + 2 * arc.costs.columns;
  for (int i = 0; i < arc.costs.rows; ++i) {
    if (own_[i] + least_other >= best) continue;
    const double* cost = arc.costs.row(i);
    work_ += arc.costs.columns;
    for (int j = 0; j < arc.costs.columns; ++j) {
      const double sum = own_[i] + other_[j] + soft(cost[j]);
      if (sum < best) {
        best = sum;
        best_i = i;
        best_j = j;
      }
    }
  }
  if (!is_gain(present, best)) return false;
  move(node, best_i);
  move(arc.to, best_j);
  return true;
}

void LocalSearch::descend() {
  // The costs that moves update carry their rounding, by which moves could go in circles: the sum must become less.
  double last = cost();
  std::vector<int> positions;
  for (bool any = true; any;) {
    any = false;
    positions = positions_;
    const std::int64_t before = work_;
    for (int s = 0; s < tables_.size(); ++s) any = improve_node(s) || any;
    for (int s = 0; s < tables_.size() && !any; ++s)
      for (const CoreTables::Arc& arc : tables_.arcs[s]) {
        if (arc.to < s) continue;
        any = improve_pair(s, arc, tables_.arcs[arc.to][static_cast<std::size_t>(arc.back)]) || any;
      }
    graph_.proceed(work_ - before);
    if (const double sum = cost(); sum < last) {
      last = sum;
    } else if (any) {
      set(std::move(positions));
      return;
    }
  }
}

// The mean of what the second best choice of a node costs more than the best.
double LocalSearch::mean_regret() const {
  double sum = 0;
  for (std::vector<double> costs : costs_) {
    if (costs.size() < 2) continue;
    std::nth_element(costs.begin(), costs.begin() + 1, costs.end());
    sum += costs[1] - costs[0];
  }
  return sum / tables_.size();
}

void LocalSearch::anneal(std::int64_t elements, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [](std::uint64_t bits, int count) {
    return static_cast<int>((bits & 0xFFFFFFFFu) * static_cast<std::uint64_t>(count) >> 32);
  };
  constexpr double kHighest = 1.5;         // first threshold, in mean regrets
  constexpr std::int64_t kRound = 80'000;  // elements
  constexpr std::int64_t kProposal = 8;    // elements that could be added meanwhile
  std::vector<int> best = positions_;
  double best_cost = cost();
  for (std::int64_t total = 0; total < elements; total += work_) {
    set(best);
    const double highest = kHighest * mean_regret();
    std::int64_t proceeded = 0;
    for (work_ = 0; work_ < kRound;) {
      const double rest = 1 - static_cast<double>(work_) / static_cast<double>(kRound);
      const double threshold = highest * rest * rest;
      for (int k = 0; k < 256; ++k) {
        const std::uint64_t bits = random();
        const int node = below(bits, tables_.size()), position = below(bits >> 32, tables_.count(node));
        if (position != positions_[node] && costs_[node][position] - costs_[node][positions_[node]] < threshold)
          move(node, position);
      }
      work_ += 256 * kProposal;
      graph_.proceed(work_ - std::exchange(proceeded, work_));
    }
    set(positions_);  // removes the rounding of many moves
    descend();
    const double sum = cost();
    if (sum >= best_cost) continue;
    best_cost = sum;
    best = positions_;
  }
  set(best);
}

}  // namespace walle::pbqp
