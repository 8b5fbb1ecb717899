// The partial order of adaptation goals (Guo, Hu and Hu, Mistify, §4.3): a tree of nearest looser goals, and the fewest chains
// that cover all goals. A goal is a row of budgets; one is looser than another if each of its budgets is larger.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace walle::search {

class GoalOrder {
 public:
  // `goals` has rows of `constraints` finite or infinite numbers.
  GoalOrder(std::span<const double> goals, std::size_t constraints);

  std::size_t size() const noexcept { return parents_.size(); }
  std::size_t constraints() const noexcept { return constraints_; }
  std::span<const double> goal(std::size_t index) const noexcept { return {goals_.data() + index * constraints_, constraints_}; }
  // Returns an immediate looser goal: of all looser ones that with the smallest sum. -1 for a root.
  int parent(std::size_t index) const noexcept { return parents_[index]; }
  // Adds a goal and returns its index. The tree is then that of all goals made at once.
  std::size_t insert(std::span<const double> goal);

  // Returns the ways from each root to each leaf, in the order of the leaves.
  std::vector<std::vector<int>> paths() const;
  // Returns the fewest chains that have each goal once, each from its loosest goal to its tightest (Dilworth; by a maximum
  // matching of Hopcroft and Karp).
  std::vector<std::vector<int>> chains() const;

 private:
  // Whether a goal comes before another in an order in which each goal comes before all looser ones.
  bool before(std::size_t one, std::size_t other) const noexcept;
  int find_parent(std::size_t place) const noexcept;
  // Places of `rows_` in order_: whether one is looser than another.
  bool looser_row(std::size_t one, std::size_t other) const noexcept;

  std::size_t constraints_;
  std::vector<double> goals_;  // by index
  std::vector<double> sums_;
  std::vector<int> parents_;
  std::vector<std::size_t> order_;  // indices, each goal before all looser ones
  std::vector<double> rows_;        // goals in that order, read from one end to the other
};

}  // namespace walle::search
