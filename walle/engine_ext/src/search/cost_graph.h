// Working copy of a PBQP problem: reductions that eliminate nodes exactly, and their choices once the others' are known.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/stop.h"
#include "search/cost_matrix.h"
#include "search/pbqp.h"

namespace walle::pbqp {

// A choice has a position, which changes when another choice of its node is removed, and the problem's index of it. Positions are
// in the order of the indices. Costs of nodes are finite, and differ from the problem's by constants: the least cost of the
// whole graph is not kept.
class CostGraph {
 public:
  struct Edge {
    std::array<int, 2> ends{};
    CostMatrix costs;  // [position of ends[0], position of ends[1]]
    bool exists = true;

    int side(int node) const noexcept { return ends[0] == node ? 0 : 1; }
    int other(int node) const noexcept { return ends[0] == node ? ends[1] : ends[0]; }
    // The cost of a choice of one end with one of the other.
    double at(int end, int position, int other_position) const noexcept {
      return end == 0 ? costs.at(position, other_position) : costs.at(other_position, position);
    }
  };
  struct Node {
    std::vector<double> costs;
    std::vector<int> choices;  // the problem's index of each position, ascending
    std::vector<int> edges;
    bool exists = true;

    int count() const noexcept { return static_cast<int>(choices.size()); }
  };

  // Keeps views of the problem's matrices. Throws Error (model) for costs that are not allowed.
  explicit CostGraph(const PbqpProblem& problem);

  const Node& node(int index) const noexcept { return nodes_[index]; }
  const Edge& edge(int index) const noexcept { return edges_[index]; }
  int node_count() const noexcept { return static_cast<int>(nodes_.size()); }

  // Moves the least cost of each row and column of an edge to its nodes. An edge of which nothing remains is removed.
  void normalise(int edge);
  // Removes choices that equal a cheaper one of the node in each edge, of nodes with many choices.
  void prune_equal(int node);
  // Removes choices for which another one costs at most as much, whatever the neighbours choose; returns whether it removed any.
  // Replaces `known`, the problem's index of a choice, by the other one where it is removed.
  bool prune_dominated(int node, int& known);
  // Eliminates nodes of one choice (folded into their neighbours) and of degrees 0 to 2, until none exists.
  void reduce();
  // Returns the connected nodes that contain the smallest remaining one, ascending; empty where none remains.
  std::vector<int> component();
  // Eliminates nodes that have no edges to others, with these choices: the problem's indices, by node.
  void fix(const std::vector<int>& nodes, const std::vector<int>& choices);
  // Removes the choices whose flag is set. Throws Error (model) where that leaves none.
  void remove_choices(int node, const std::vector<char>& removed);
  // Returns the problem's index of the choice of each node, once all are eliminated.
  std::vector<int> choices() const;

  // For message passing, which moves costs between nodes and edges such that every assignment keeps its cost.
  std::vector<double>& costs_of(int node) noexcept { return nodes_[node].costs; }
  CostMatrix& matrix_of(int edge) noexcept { return edges_[edge].costs; }

  // Counts elements of work, and throws WorkStopped once a stop was requested.
  void proceed(std::int64_t elements) {
    if (!poll_.proceed(elements)) throw_if_stopped();
  }

 private:
  // A node that was eliminated, with the neighbours that it had then.
  struct Elimination {
    struct Link {
      int neighbour = 0;
      std::vector<int> choices;  // the neighbour's, as then
      Edge edge;
    };
    int node = 0;
    std::vector<double> costs;
    std::vector<int> choices;
    std::vector<Link> links;
  };

  void add_nodes(const PbqpProblem& problem);
  void add_edge(int u, int v, CostMatrix costs);
  void add_costs(int node, const std::vector<double>& costs);
  void fold_single(int node);
  void eliminate(int node);
  void detach(int edge, int node);
  void touch(int node);
  int edge_between(int u, int v) const noexcept;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<int> ready_, paths_;  // nodes to look at again: of one choice or degree 0 and 1, of degree 2
  std::vector<Elimination> eliminated_;
  int first_remaining_ = 0;
  StopPoll poll_;
};

}  // namespace walle::pbqp
