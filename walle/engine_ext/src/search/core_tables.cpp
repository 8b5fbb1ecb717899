#include "search/core_tables.h"

#include <algorithm>
#include <limits>

namespace walle::pbqp {

CoreTables::CoreTables(const CostGraph& graph, const std::vector<int>& nodes) : costs(nodes.size()), arcs(nodes.size()) {
  const auto number = [&](int node) {
    return static_cast<int>(std::lower_bound(nodes.begin(), nodes.end(), node) - nodes.begin());
  };
  for (int s = 0; s < size(); ++s) {
    const CostGraph::Node& node = graph.node(nodes[s]);
    costs[s] = node.costs;
    penalty += *std::max_element(node.costs.begin(), node.costs.end());
    arcs[s].reserve(node.edges.size());
    for (const int e : node.edges) {
      const CostGraph::Edge& edge = graph.edge(e);
      arcs[s].push_back({number(edge.other(nodes[s])), edge.side(nodes[s]) == 0 ? edge.costs : transposed(edge.costs), 0});
      penalty += largest_finite(edge.costs);
    }
    std::sort(arcs[s].begin(), arcs[s].end(), [](const Arc& a, const Arc& b) { return a.to < b.to; });
  }
  for (int s = 0; s < size(); ++s)
    for (Arc& arc : arcs[s]) {
      const auto found =
          std::lower_bound(arcs[arc.to].begin(), arcs[arc.to].end(), s, [](const Arc& a, int to) { return a.to < to; });
      arc.back = static_cast<int>(found - arcs[arc.to].begin());
    }
}

double CoreTables::cost(const std::vector<int>& positions) const noexcept {
  double sum = 0;
  for (int s = 0; s < size(); ++s) {
    sum += costs[s][positions[s]];
    for (const Arc& arc : arcs[s])
      if (arc.to > s) sum += arc.costs.at(positions[s], positions[arc.to]);
  }
  return sum;
}

}  // namespace walle::pbqp
