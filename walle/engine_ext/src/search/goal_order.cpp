#include "search/goal_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace walle::search {

namespace {

// A matching of goals with looser goals, each at most once on each side.
class Matching {
 public:
  explicit Matching(const std::vector<std::vector<int>>& looser)
      : looser_(looser), next_(looser.size(), -1), previous_(looser.size(), -1), layer_(looser.size()), tried_(looser.size()) {}

  // Returns for each goal its looser neighbour in a chain, -1 for none.
  std::vector<int> largest() {
    while (find_layers()) {
      std::fill(tried_.begin(), tried_.end(), 0);
      for (std::size_t goal = 0; goal < next_.size(); ++goal)
        if (next_[goal] < 0) extend(static_cast<int>(goal));
    }
    return next_;
  }

 private:
  static constexpr int kUnreached = std::numeric_limits<int>::max();

  // Numbers the goals by their distance from those without a looser neighbour; returns whether a free one was reached.
  bool find_layers() {
    std::vector<int> queue;
    for (std::size_t goal = 0; goal < next_.size(); ++goal) {
      layer_[goal] = next_[goal] < 0 ? 0 : kUnreached;
      if (next_[goal] < 0) queue.push_back(static_cast<int>(goal));
    }
    bool found = false;
    for (std::size_t at = 0; at < queue.size(); ++at) {
      const auto goal = static_cast<std::size_t>(queue[at]);
      for (const int other : looser_[goal]) {
        const int matched = previous_[static_cast<std::size_t>(other)];
        if (matched < 0) {
          found = true;
        } else if (layer_[static_cast<std::size_t>(matched)] == kUnreached) {
          layer_[static_cast<std::size_t>(matched)] = layer_[goal] + 1;
          queue.push_back(matched);
        }
      }
    }
    return found;
  }

  // Searches an alternating path from the goal, depth first on an explicit stack, and turns it over.
  bool extend(int start) {
    std::vector<int> path{start};
    while (!path.empty()) {
      const auto goal = static_cast<std::size_t>(path.back());
      if (tried_[goal] == looser_[goal].size()) {
        layer_[goal] = kUnreached;
        path.pop_back();
        continue;
      }
      const auto other = static_cast<std::size_t>(looser_[goal][tried_[goal]++]);
      const int matched = previous_[other];
      if (matched < 0) {
        // Each goal of the path takes the neighbour that it tried last.
        for (const int one : path) {
          const auto at = static_cast<std::size_t>(one);
          next_[at] = looser_[at][tried_[at] - 1];
          previous_[static_cast<std::size_t>(next_[at])] = one;
        }
        return true;
      }
      if (layer_[static_cast<std::size_t>(matched)] == layer_[goal] + 1) path.push_back(matched);
    }
    return false;
  }

  const std::vector<std::vector<int>>& looser_;
  std::vector<int> next_, previous_, layer_;
  std::vector<std::size_t> tried_;
};

// A goal of both infinities is not comparable with another: its place in the order is any one.
double sum_of(std::span<const double> goal) {
  const double sum = std::accumulate(goal.begin(), goal.end(), 0.0);
  return std::isnan(sum) ? 0.0 : sum;
}

}  // namespace

GoalOrder::GoalOrder(std::span<const double> goals, std::size_t constraints)
    : constraints_(constraints), goals_(goals.begin(), goals.end()) {
  const std::size_t count = constraints == 0 ? 0 : goals.size() / constraints;
  for (std::size_t i = 0; i < count; ++i) sums_.push_back(sum_of(goal(i)));
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::sort(order_.begin(), order_.end(), [this](std::size_t one, std::size_t other) { return before(one, other); });
  for (const std::size_t index : order_) rows_.insert(rows_.end(), goal(index).begin(), goal(index).end());
  parents_.resize(count);
  for (std::size_t place = 0; place < count; ++place) parents_[order_[place]] = find_parent(place);
}

bool GoalOrder::looser_row(std::size_t one, std::size_t other) const noexcept {
  const double* a = rows_.data() + one * constraints_;
  const double* b = rows_.data() + other * constraints_;
  for (std::size_t i = 0; i < constraints_; ++i)
    if (!(a[i] > b[i])) return false;
  return true;
}

bool GoalOrder::before(std::size_t one, std::size_t other) const noexcept {
  if (sums_[one] != sums_[other]) return sums_[one] < sums_[other];
  const auto a = goal(one), b = goal(other);  // sums of large and small budgets may be rounded to the same number
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin());
  return x != a.end() ? *x < *y : one < other;
}

int GoalOrder::find_parent(std::size_t place) const noexcept {
  for (std::size_t at = place + 1; at < order_.size(); ++at)
    if (looser_row(at, place)) return static_cast<int>(order_[at]);
  return -1;
}

std::size_t GoalOrder::insert(std::span<const double> goal) {
  const std::size_t index = size();
  goals_.insert(goals_.end(), goal.begin(), goal.end());
  sums_.push_back(sum_of(goal));
  parents_.push_back(-1);
  const auto at = std::lower_bound(order_.begin(), order_.end(), index,
                                   [this](std::size_t one, std::size_t other) { return before(one, other); });
  const auto place = static_cast<std::size_t>(at - order_.begin());
  order_.insert(at, index);
  rows_.insert(rows_.begin() + static_cast<std::ptrdiff_t>(place * constraints_), goal.begin(), goal.end());
  parents_[index] = find_parent(place);
  for (std::size_t i = 0; i < place; ++i) {
    if (!looser_row(place, i)) continue;
    const std::size_t tighter = order_[i];
    const int parent = parents_[tighter];
    if (parent < 0 || before(index, static_cast<std::size_t>(parent))) parents_[tighter] = static_cast<int>(index);
  }
  return index;
}

std::vector<std::vector<int>> GoalOrder::paths() const {
  std::vector<bool> has_child(size(), false);
  for (const int parent : parents_)
    if (parent >= 0) has_child[static_cast<std::size_t>(parent)] = true;
  std::vector<std::vector<int>> paths;
  for (std::size_t leaf = 0; leaf < size(); ++leaf) {
    if (has_child[leaf]) continue;
    std::vector<int> path;
    for (int at = static_cast<int>(leaf); at >= 0; at = parents_[static_cast<std::size_t>(at)]) path.push_back(at);
    std::reverse(path.begin(), path.end());
    paths.push_back(std::move(path));
  }
  return paths;
}

std::vector<std::vector<int>> GoalOrder::chains() const {
  std::vector<std::vector<int>> looser_goals(size());
  for (std::size_t place = 0; place < order_.size(); ++place)
    for (std::size_t at = place + 1; at < order_.size(); ++at)
      if (looser_row(at, place)) looser_goals[order_[place]].push_back(static_cast<int>(order_[at]));
  const std::vector<int> next = Matching(looser_goals).largest();
  std::vector<bool> has_tighter(size(), false);
  for (const int one : next)
    if (one >= 0) has_tighter[static_cast<std::size_t>(one)] = true;
  std::vector<std::vector<int>> chains;
  for (std::size_t tightest = 0; tightest < size(); ++tightest) {
    if (has_tighter[tightest]) continue;
    std::vector<int> chain;
    for (int at = static_cast<int>(tightest); at >= 0; at = next[static_cast<std::size_t>(at)]) chain.push_back(at);
    std::reverse(chain.begin(), chain.end());
    chains.push_back(std::move(chain));
  }
  return chains;
}

}  // namespace walle::search
