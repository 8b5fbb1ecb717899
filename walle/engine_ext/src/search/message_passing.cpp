#include "search/message_passing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace walle::pbqp {

void MessagePassing::collect(int node) {
  std::vector<double>& costs = graph_.costs_of(node);
  bool forbids = false;
  for (const int e : graph_.node(node).edges) {
    CostMatrix& matrix = graph_.matrix_of(e);
    const bool is_row = graph_.edge(e).side(node) == 0;
    graph_.proceed(4 * matrix.work());
    std::vector<double>& minima = minima_;
    if (is_row)
      row_minima(matrix, minima);
    else
      column_minima(matrix, minima);
    bool any = false;
    for (std::size_t c = 0; c < minima.size(); ++c) {
      costs[c] += minima[c];
      any = any || minima[c] != 0;
      forbids = forbids || minima[c] == kInfinity;
      minima[c] = minima[c] == kInfinity ? 0 : -minima[c];
    }
    if (!any) continue;
    if (is_row)
      add_to_rows(matrix, minima.data());
    else
      add_to_columns(matrix, minima.data());
  }
  if (forbids) {
    std::vector<char> removed(costs.size());
    for (std::size_t c = 0; c < costs.size(); ++c) removed[c] = costs[c] == kInfinity;
    graph_.remove_choices(node, removed);
  }
  const double least = *std::min_element(costs.begin(), costs.end());
  bound_ += least;
  magnitude_ += std::abs(least);
  for (double& cost : costs) cost -= least;
}

void MessagePassing::distribute(int node, bool forward) {
  int ahead = 0, behind = 0;
  for (const int e : graph_.node(node).edges) ++(graph_.edge(e).other(node) > node ? ahead : behind);
  if (!forward) std::swap(ahead, behind);
  if (ahead == 0) return;
  std::vector<double>& costs = graph_.costs_of(node);
  std::vector<double>& share = share_;
  share.resize(costs.size());
  for (std::size_t c = 0; c < costs.size(); ++c) {
    share[c] = costs[c] / std::max(ahead, behind);
    costs[c] = ahead >= behind ? 0 : costs[c] - ahead * share[c];
  }
  for (const int e : graph_.node(node).edges) {
    if ((graph_.edge(e).other(node) > node) != forward) continue;
    if (graph_.edge(e).side(node) == 0)
      add_to_rows(graph_.matrix_of(e), share.data());
    else
      add_to_columns(graph_.matrix_of(e), share.data());
  }
}

void MessagePassing::pass() {
  for (const int node : nodes_) {
    collect(node);
    distribute(node, true);
  }
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    collect(*node);
    distribute(*node, false);
  }
}

void MessagePassing::settle() {
  for (const int node : nodes_) collect(node);
}

void MessagePassing::forbid_above(double slack, const std::vector<int>& kept) {
  for (const int node : nodes_) {
    const CostGraph::Node& at = graph_.node(node);
    for (const int e : at.edges) {
      if (graph_.edge(e).side(node) != 0) continue;
      CostMatrix& matrix = graph_.matrix_of(e);
      const int neighbour = graph_.edge(e).other(node);
      const CostGraph::Node& other = graph_.node(neighbour);
      graph_.proceed(matrix.work());
      for (int i = 0; i < matrix.rows; ++i) {
        double* cost = matrix.mutable_row(i);
        const bool is_kept = at.choices[i] == kept[node];
        for (int j = 0; j < matrix.columns; ++j)
          if (cost[j] + at.costs[i] + other.costs[j] > slack && !(is_kept && other.choices[j] == kept[neighbour]))
            cost[j] = kInfinity;
      }
    }
  }
  for (const int node : nodes_) {
    const CostGraph::Node& at = graph_.node(node);
    std::vector<char> removed(at.costs.size());
    for (std::size_t c = 0; c < removed.size(); ++c) removed[c] = at.costs[c] > slack && at.choices[c] != kept[node];
    graph_.remove_choices(node, removed);
  }
}

}  // namespace walle::pbqp
