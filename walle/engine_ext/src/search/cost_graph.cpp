#include "search/cost_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"

namespace walle::pbqp {

namespace {

[[noreturn]] void refuse(const CostMatrix& matrix, const std::string& place, bool is_node) {
  for (int i = 0; i < matrix.rows; ++i)
    for (int j = 0; j < matrix.columns; ++j) {
      if (matrix.at(i, j) > -kInfinity) continue;
      const std::string choice = is_node ? std::to_string(j) : "(" + std::to_string(i) + ", " + std::to_string(j) + ")";
      throw Error(ErrorKind::model, place + ": the cost of choice " + choice + " is " +
                                        (matrix.at(i, j) < 0 ? "-infinity" : "NaN") +
                                        "; costs are finite, or +infinity for what is forbidden");
    }
  throw Error(ErrorKind::model, place + ": the costs are too large: the largest of each node and edge may be 1e300 in sum");
}

[[noreturn]] void refuse_all_choices(std::size_t node) {
  throw Error(ErrorKind::model, "every assignment costs infinity: no choice of node " + std::to_string(node) +
                                    " is compatible with those of other nodes");
}

void subtract_finite(CostMatrix& matrix, const std::vector<double>& minima, bool rows) {
  std::vector<double> shift(minima.size());
  bool any = false;
  for (std::size_t i = 0; i < minima.size(); ++i) {
    shift[i] = minima[i] < kInfinity ? -minima[i] : 0;
    any = any || shift[i] != 0;
  }
  if (!any) return;
  if (rows)
    add_to_rows(matrix, shift.data());
  else
    add_to_columns(matrix, shift.data());
}

// Returns whether nothing but rounding remains of a matrix from which these sums were subtracted.
bool is_zero(const CostMatrix& matrix, const std::vector<double>& rows, const std::vector<double>& columns) noexcept {
  constexpr double kRounding = 4 * std::numeric_limits<double>::epsilon();
  for (int i = 0; i < matrix.rows; ++i) {
    if (rows[i] == kInfinity) continue;
    const double* cost = matrix.row(i);
    for (int j = 0; j < matrix.columns; ++j)
      if (cost[j] > 0 && columns[j] < kInfinity && cost[j] > kRounding * (std::abs(rows[i]) + std::abs(columns[j]))) return false;
  }
  return true;
}

// Returns, for each edge, the first one between the same nodes in either direction.
std::vector<int> first_edges(const PbqpProblem& problem) {
  std::vector<std::pair<std::uint64_t, int>> keys;
  keys.reserve(problem.edges.size());
  for (const PbqpEdge& edge : problem.edges) {
    const auto [low, high] = std::minmax(edge.u, edge.v);
    keys.emplace_back(static_cast<std::uint64_t>(low) << 32 | static_cast<std::uint32_t>(high), static_cast<int>(keys.size()));
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int> first(keys.size());
  for (std::size_t k = 0; k < keys.size(); ++k)
    first[keys[k].second] = k > 0 && keys[k].first == keys[k - 1].first ? first[keys[k - 1].second] : keys[k].second;
  return first;
}

}  // namespace

CostGraph::CostGraph(const PbqpProblem& problem) {
  add_nodes(problem);
  const std::vector<int> first = first_edges(problem);
  std::vector<int> edge_of(first.size(), -1);  // by the problem's edge
  edges_.reserve(first.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    const PbqpEdge& given = problem.edges[i];
    CostMatrix matrix = selected(given.costs, nodes_[given.u].choices, nodes_[given.v].choices);
    proceed(matrix.work());
    if (first[i] < static_cast<int>(i)) {
      Edge& edge = edges_[edge_of[first[i]]];
      add_to(edge.costs, edge.ends[0] == given.u ? matrix : transposed(matrix));
      continue;
    }
    edge_of[i] = static_cast<int>(edges_.size());
    for (const int end : {given.u, given.v}) nodes_[end].edges.push_back(edge_of[i]);
    edges_.push_back({{given.u, given.v}, std::move(matrix)});
  }
  for (int e = 0; e < static_cast<int>(edges_.size()); ++e)
    if (edges_[e].exists && is_separable(edges_[e].costs)) normalise(e);
  for (int i = 0; i < node_count(); ++i) touch(i);
}

// Adds the nodes without forbidden choices, after a check of all costs.
void CostGraph::add_nodes(const PbqpProblem& problem) {
  const double limit = PbqpProblem::kMaxCost / static_cast<double>(problem.costs.size() + problem.edges.size());
  double total = 0;
  const auto check = [&](const CostMatrix& costs, const auto& place, bool is_node) {
    proceed(costs.work());
    if (is_within(costs, limit)) return;
    total += largest_finite(costs);
    if (!is_within(costs, PbqpProblem::kMaxCost) || total > PbqpProblem::kMaxCost) refuse(costs, place(), is_node);
  };
  nodes_.resize(problem.costs.size());
  eliminated_.reserve(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const std::vector<double>& costs = problem.costs[i];
    const auto place = [&] { return "node " + std::to_string(i); };
    if (costs.empty()) throw Error(ErrorKind::model, place() + " has no choices; each node needs one or more costs");
    check(CostMatrix::view(1, static_cast<int>(costs.size()), costs.data()), place, true);
    for (std::size_t c = 0; c < costs.size(); ++c) {
      if (costs[c] == kInfinity) continue;
      nodes_[i].choices.push_back(static_cast<int>(c));
      nodes_[i].costs.push_back(costs[c]);
    }
    if (nodes_[i].choices.empty()) refuse_all_choices(i);
  }
  for (const PbqpEdge& edge : problem.edges)
    check(edge.costs, [&] { return "edge (" + std::to_string(edge.u) + ", " + std::to_string(edge.v) + ")"; }, false);
}

void CostGraph::touch(int node) {
  const Node& at = nodes_[node];
  if (!at.exists) return;
  if (at.edges.size() <= 1 || at.count() == 1)
    ready_.push_back(node);
  else if (at.edges.size() == 2)
    paths_.push_back(node);
}

int CostGraph::edge_between(int u, int v) const noexcept {
  const bool fewer = nodes_[u].edges.size() <= nodes_[v].edges.size();
  const int from = fewer ? u : v, to = fewer ? v : u;
  for (const int e : nodes_[from].edges)
    if (edges_[e].other(from) == to) return e;
  return -1;
}

void CostGraph::detach(int edge, int node) {
  std::vector<int>& edges = nodes_[node].edges;
  edges.erase(std::find(edges.begin(), edges.end(), edge));
  touch(node);
}

void CostGraph::add_edge(int u, int v, CostMatrix costs) {
  int e = edge_between(u, v);
  if (e < 0) {
    e = static_cast<int>(edges_.size());
    edges_.push_back({{u, v}, std::move(costs)});
    for (const int end : {u, v}) {
      nodes_[end].edges.push_back(e);
      touch(end);
    }
  } else {
    const CostMatrix added = edges_[e].ends[0] == u ? std::move(costs) : transposed(costs);
    add_to(edges_[e].costs, added);
    touch(u);
    touch(v);
  }
  if (is_separable(edges_[e].costs)) normalise(e);
}

void CostGraph::normalise(int edge) {
  Edge& at = edges_[edge];
  if (!at.exists) return;
  proceed(4 * at.costs.work());
  const std::vector<double> rows = row_minima(at.costs);
  subtract_finite(at.costs, rows, true);
  const std::vector<double> columns = column_minima(at.costs);
  subtract_finite(at.costs, columns, false);
  const auto [u, v] = at.ends;
  if (is_zero(at.costs, rows, columns)) {
    at.exists = false;
    at.costs = {};
    detach(edge, u);
    detach(edge, v);
  }
  add_costs(u, rows);
  add_costs(v, columns);
}

void CostGraph::add_costs(int node, const std::vector<double>& costs) {
  Node& at = nodes_[node];
  bool forbids = false;
  for (int c = 0; c < at.count(); ++c) {
    at.costs[c] += costs[c];
    forbids = forbids || at.costs[c] == kInfinity;
  }
  if (!forbids) return;
  std::vector<char> removed(at.costs.size());
  for (int c = 0; c < at.count(); ++c) removed[c] = at.costs[c] == kInfinity;
  remove_choices(node, removed);
}

void CostGraph::remove_choices(int node, const std::vector<char>& removed) {
  Node& at = nodes_[node];
  std::vector<int> kept;
  for (int c = 0; c < at.count(); ++c)
    if (!removed[c]) kept.push_back(c);
  if (static_cast<int>(kept.size()) == at.count()) return;
  if (kept.empty()) refuse_all_choices(static_cast<std::size_t>(node));
  for (const int e : at.edges) {
    Edge& edge = edges_[e];
    edge.costs = edge.side(node) == 0 ? selected_rows(edge.costs, kept) : selected_columns(edge.costs, kept);
    proceed(edge.costs.work());
  }
  for (std::size_t c = 0; c < kept.size(); ++c) {
    at.costs[c] = at.costs[kept[c]];
    at.choices[c] = at.choices[kept[c]];
  }
  at.costs.resize(kept.size());
  at.choices.resize(kept.size());
  touch(node);
}

void CostGraph::fix(const std::vector<int>& nodes, const std::vector<int>& choices) {
  for (const int node : nodes) {
    Node& at = nodes_[node];
    at.exists = false;
    for (const int e : at.edges) edges_[e].exists = false;
    at.edges.clear();
    eliminated_.push_back({node, {0.0}, {choices[node]}, {}});
  }
}

void CostGraph::fold_single(int node) {
  Node& at = nodes_[node];
  at.exists = false;
  const std::vector<int> edges = std::move(at.edges);
  at.edges.clear();
  for (const int e : edges) {
    Edge& edge = edges_[e];
    const int neighbour = edge.other(node);
    edge.exists = false;
    const std::vector<double> costs(edge.costs.data(), edge.costs.data() + edge.costs.size());  // one row or one column
    detach(e, neighbour);
    add_costs(neighbour, costs);
  }
  eliminated_.push_back({node, {0.0}, std::move(at.choices), {}});
}

void CostGraph::eliminate(int node) {
  Node& at = nodes_[node];
  Elimination elimination{node, std::move(at.costs), std::move(at.choices), {}};
  at.exists = false;
  const std::vector<int> edges = std::move(at.edges);
  at.edges.clear();
  elimination.links.reserve(edges.size());
  CostMatrix ways[2];  // [first neighbour, node] with the node's cost, and [node, second neighbour]
  for (std::size_t k = 0; k < edges.size(); ++k) {
    Edge& edge = edges_[edges[k]];
    const int neighbour = edge.other(node);
    edge.exists = false;
    proceed(edge.costs.work());
    const bool node_is_row = edge.side(node) == 0;
    ways[k] = node_is_row == (k == 0) ? transposed(edge.costs) : edge.costs;
    elimination.links.push_back({neighbour, nodes_[neighbour].choices, std::move(edge)});
    edge.costs = {};
    detach(edges[k], neighbour);
  }
  if (!edges.empty()) add_to_columns(ways[0], elimination.costs.data());
  std::array<int, 2> neighbours{};
  for (std::size_t k = 0; k < edges.size(); ++k) neighbours[k] = elimination.links[k].neighbour;
  eliminated_.push_back(std::move(elimination));
  if (edges.size() == 1) {
    add_costs(neighbours[0], row_minima(ways[0]));
  } else if (edges.size() == 2) {
    proceed(ways[0].work() * ways[1].columns);
    add_edge(neighbours[0], neighbours[1], min_plus(ways[0], ways[1]));
  }
}

void CostGraph::reduce() {
  while (!ready_.empty() || !paths_.empty()) {
    std::vector<int>& from = ready_.empty() ? paths_ : ready_;
    const int node = from.back();
    from.pop_back();
    const Node& at = nodes_[node];
    if (!at.exists) continue;
    if (at.count() == 1)
      fold_single(node);
    else if (at.edges.size() <= 2)
      eliminate(node);
  }
}

std::vector<int> CostGraph::component() {
  while (first_remaining_ < node_count() && !nodes_[first_remaining_].exists) ++first_remaining_;
  if (first_remaining_ == node_count()) return {};
  std::vector<int> found{first_remaining_};
  std::vector<char> seen(nodes_.size());
  seen[first_remaining_] = 1;
  for (std::size_t next = 0; next < found.size(); ++next)
    for (const int e : nodes_[found[next]].edges) {
      const int neighbour = edges_[e].other(found[next]);
      if (!seen[neighbour]) found.push_back(neighbour);
      seen[neighbour] = 1;
    }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<int> CostGraph::choices() const {
  std::vector<int> result(nodes_.size(), -1);
  for (auto at = eliminated_.rbegin(); at != eliminated_.rend(); ++at) {
    std::vector<double> costs = at->costs;
    for (const Elimination::Link& link : at->links) {
      const auto found = std::lower_bound(link.choices.begin(), link.choices.end(), result[link.neighbour]);
      const auto position = static_cast<int>(found - link.choices.begin());
      const int side = link.edge.ends[0] == at->node ? 0 : 1;
      for (std::size_t c = 0; c < costs.size(); ++c) costs[c] += link.edge.at(side, static_cast<int>(c), position);
    }
    result[at->node] = at->choices[std::min_element(costs.begin(), costs.end()) - costs.begin()];
  }
  return result;
}

}  // namespace walle::pbqp
