// Choices that other choices of the same node make needless.
#include <algorithm>
#include <bit>
#include <limits>

#include "search/cost_graph.h"

namespace walle::pbqp {

namespace {

constexpr int kFewest = 8;  // choices of a node that are worth the comparison: fewer are reduced in less time

// Returns whether two choices of an end have the same cost with each choice of the other.
bool equal_lines(const CostGraph::Edge& edge, int side, int a, int b, int others) noexcept {
  for (int j = 0; j < others; ++j)
    if (edge.at(side, a, j) != edge.at(side, b, j)) return false;
  return true;
}

// Adds a hash of the costs of each choice of an end. The products are independent, so that they overlap.
void add_hashes(const CostGraph::Edge& edge, int side, std::uint64_t seed, std::vector<std::uint64_t>& hashes) noexcept {
  const CostMatrix& m = edge.costs;
  const auto bits = [](double cost) { return std::bit_cast<std::uint64_t>(cost + 0.0) >> 7; };  // -0 becomes 0
  for (int i = 0; i < m.rows; ++i) {
    const double* cost = m.row(i);
    if (side == 0) {
      std::uint64_t sum = 0;
      for (int j = 0; j < m.columns; ++j) sum += bits(cost[j]) * (seed + 2 * static_cast<std::uint64_t>(j));
      hashes[i] += sum;
    } else {
      const std::uint64_t factor = seed + 2 * static_cast<std::uint64_t>(i);
      for (int j = 0; j < m.columns; ++j) hashes[j] += bits(cost[j]) * factor;
    }
  }
}

}  // namespace

void CostGraph::prune_equal(int node) {
  const Node& at = nodes_[node];
  const int count = at.count();
  if (count < kFewest || !at.exists) return;
  if (!at.edges.empty()) {  // most often, costs with one choice of one neighbour differ already
    const Edge& edge = edges_[at.edges[0]];
    std::vector<double> line(at.costs.size());
    for (int c = 0; c < count; ++c) line[c] = edge.at(edge.side(node), c, 0);
    std::sort(line.begin(), line.end());
    if (std::adjacent_find(line.begin(), line.end()) == line.end()) return;
  }
  std::vector<std::uint64_t> hashes(at.costs.size());
  for (std::size_t k = 0; k < at.edges.size(); ++k) {
    const Edge& edge = edges_[at.edges[k]];
    proceed(edge.costs.work());
    add_hashes(edge, edge.side(node), 0x9E3779B97F4A7C15ull * (2 * k + 1) | 1, hashes);
    std::vector<std::uint64_t> sorted = hashes;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) return;
  }
  std::vector<char> removed(at.costs.size());
  std::vector<int> order(at.costs.size());
  for (int c = 0; c < count; ++c) order[c] = c;
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    if (hashes[a] != hashes[b]) return hashes[a] < hashes[b];
    if (at.costs[a] != at.costs[b]) return at.costs[a] < at.costs[b];
    return a < b;
  });
  for (int first = 0, k = 1; k < count; ++k) {
    const int kept = order[first], c = order[k];
    const bool is_equal = hashes[kept] == hashes[c] && std::all_of(at.edges.begin(), at.edges.end(), [&](int e) {
                            return equal_lines(edges_[e], edges_[e].side(node), kept, c, nodes_[edges_[e].other(node)].count());
                          });
    if (is_equal)
      removed[c] = 1;
    else
      first = k;
  }
  remove_choices(node, removed);
}

bool CostGraph::prune_dominated(int node, int& known) {
  const Node& at = nodes_[node];
  const int count = at.count();
  // Lines of a choice are contiguous.
  std::vector<CostMatrix> matrices;
  matrices.reserve(at.edges.size());
  std::int64_t others = 0;
  for (const int e : at.edges) {
    matrices.push_back(edges_[e].side(node) == 0 ? edges_[e].costs : transposed(edges_[e].costs));
    others += matrices.back().columns;
  }
  proceed(others * count);
  std::vector<char> removed(at.costs.size());
  bool any = false;
  // Whether b is never cheaper than a: the largest differences of its edges are at most the difference of the costs. Where all
  // pairs would take long, the first edge that exceeds it ends the comparison, though others might make up for it.
  constexpr std::int64_t kThorough = 1 << 20;
  const bool is_thorough = others * count * count <= kThorough;
  const auto dominates = [&](int a, int b) {
    double difference = at.costs[b] - at.costs[a];
    for (const CostMatrix& matrix : matrices) {
      const double *of_a = matrix.row(a), *of_b = matrix.row(b);
      double largest = -kInfinity;
      for (int j = 0; j < matrix.columns; ++j) {
        if (of_b[j] == kInfinity) continue;
        largest = std::max(largest, of_a[j] - of_b[j]);
        if (largest > difference && (!is_thorough || largest == kInfinity)) return false;
      }
      difference -= largest;
    }
    return difference > 0 || (difference == 0 && a < b);
  };
  for (int b = 0; b < count; ++b) {
    for (int a = 0; a < count && !removed[b]; ++a) {
      if (a == b || removed[a] || !dominates(a, b)) continue;
      removed[b] = 1;
      any = true;
      if (known == at.choices[b]) known = at.choices[a];
    }
    proceed(others * count);
  }
  remove_choices(node, removed);
  return any;
}

}  // namespace walle::pbqp
