#include "search/branch_and_bound.h"

#include <algorithm>
#include <limits>

namespace walle::pbqp {

namespace {

// State of a depth-first search. Costs of a node without a choice include those of its edges to nodes that have one.
class Search {
 public:
  Search(const CoreTables& tables, CostGraph& graph, double limit, double tolerance)
      : tables_(tables),
        graph_(graph),
        limit_(limit),
        tolerance_(tolerance),
        costs_(tables.costs),
        least_(tables.costs.size()),
        positions_(tables.costs.size(), -1) {
    std::int64_t choices = 0;
    for (int s = 0; s < tables.size(); ++s) {
      least_[s] = *std::min_element(costs_[s].begin(), costs_[s].end());
      bound_ += least_[s];
      choices += tables.count(s);
    }
    steps_each_ = 1 + choices / 1024;
  }

  BranchAndBoundResult run(std::int64_t& steps) {
    BranchAndBoundResult result;
    descend();
    while (!levels_.empty()) {
      Level& level = levels_.back();
      undo(level);
      if (level.next == level.order.size() || is_above(level.bound - least_[level.node] + cost_of_next(level))) {
        positions_[level.node] = -1;
        levels_.pop_back();
        continue;
      }
      if ((steps -= steps_each_) < 0) return result;
      if (!choose(level, level.order[level.next++])) continue;
      if (static_cast<int>(levels_.size()) == tables_.size()) {
        limit_ = bound_;
        result.positions = positions_;
        continue;
      }
      descend();
    }
    result.is_complete = true;
    return result;
  }

 private:
  struct Level {
    int node = 0;
    std::vector<int> order;  // positions, the cheapest first
    std::size_t next = 0;
    std::size_t saved = 0;  // count of saved nodes before
    double bound = 0;       // the lower bound without the choice
  };
  struct Saved {
    int node;
    double least;
    std::vector<double> costs;
  };

  bool is_above(double bound) const noexcept { return bound >= limit_ - tolerance_; }
  double cost_of_next(const Level& level) const noexcept { return costs_[level.node][level.order[level.next]]; }

  // Adds a level for the node with the fewest choices that are not above the limit.
  void descend() {
    int best = -1;
    int fewest = std::numeric_limits<int>::max();
    std::size_t degree = 0;
    for (int s = 0; s < tables_.size(); ++s) {
      if (positions_[s] >= 0) continue;
      const double rest = bound_ - least_[s];
      int count = 0;
      for (const double cost : costs_[s]) count += !is_above(rest + cost) && cost < kInfinity;
      if (count > fewest || (count == fewest && tables_.arcs[s].size() <= degree)) continue;
      best = s;
      fewest = count;
      degree = tables_.arcs[s].size();
    }
    Level level{best, {}, 0, saved_.size(), bound_};
    for (int c = 0; c < tables_.count(best); ++c)
      if (costs_[best][c] < kInfinity) level.order.push_back(c);
    std::stable_sort(level.order.begin(), level.order.end(), [&](int a, int b) { return costs_[best][a] < costs_[best][b]; });
    levels_.push_back(std::move(level));
  }

  // Gives the level's node a choice; returns false where the bound is then above the limit.
  bool choose(const Level& level, int position) {
    positions_[level.node] = position;
    bound_ += costs_[level.node][position] - least_[level.node];
    for (const CoreTables::Arc& arc : tables_.arcs[level.node]) {
      if (positions_[arc.to] >= 0) continue;
      std::vector<double>& costs = costs_[arc.to];
      saved_.push_back({arc.to, least_[arc.to], costs});
      const double* added = arc.costs.row(position);
      double least = kInfinity;
      for (std::size_t c = 0; c < costs.size(); ++c) {
        costs[c] += added[c];
        least = costs[c] < least ? costs[c] : least;
      }
      graph_.proceed(4 * static_cast<std::int64_t>(costs.size()));
      bound_ += least - least_[arc.to];
      least_[arc.to] = least;
      if (is_above(bound_)) return false;
    }
    return true;
  }

  void undo(const Level& level) {
    while (saved_.size() > level.saved) {
      Saved& saved = saved_.back();
      least_[saved.node] = saved.least;
      costs_[saved.node].swap(saved.costs);
      saved_.pop_back();
    }
    bound_ = level.bound;
  }

  const CoreTables& tables_;
  CostGraph& graph_;
  double limit_;
  const double tolerance_;
  std::vector<std::vector<double>> costs_;
  std::vector<double> least_;
  std::vector<int> positions_;
  double bound_ = 0;
  std::int64_t steps_each_ = 1;
  std::vector<Level> levels_;
  std::vector<Saved> saved_;
};

}  // namespace

BranchAndBoundResult branch_and_bound(const CoreTables& tables, CostGraph& graph, double limit, double tolerance,
                                      std::int64_t& steps) {
  return Search(tables, graph, limit, tolerance).run(steps);
}

}  // namespace walle::pbqp
