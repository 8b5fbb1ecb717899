// A match: the view of a graph that one pass has from the node at which it is tried, the root.
#pragma once
#include <vector>

#include "rewrite/rewrite.h"

namespace walle {

// What is known of the values of a graph: who computes and who reads each.
class Values {
 public:
  explicit Values(const Graph& graph);

  const Graph& graph() const noexcept { return graph_; }
  // The node that computes the value; null for an input or a constant.
  const Node* producer(int value) const noexcept;
  // How often the value is read; outputs of the graph count as more than one reader.
  int readers(int value) const noexcept { return readers_[static_cast<std::size_t>(value)]; }

 private:
  const Graph& graph_;
  std::vector<int> producer_, readers_;
};

class Match {
 public:
  Match(const Values& values, const Pass& pass, const Node& root, Graph& result)
      : values_(values), pass_(pass), root_(root), result_(result) {}

  const Node& root() const noexcept { return root_; }
  // Return the node that computes an operand, if the pass's crossings permit that node as it is; else null.
  const Node* producer(const Node& node, std::size_t operand) const;
  // Return the value of an operand that is a constant of the graph; else null.
  const Tensor* constant(const Node& node, std::size_t operand) const noexcept;
  // Return the type of an operand that is an input or a constant.
  std::optional<DType> dtype(const Node& node, std::size_t operand) const noexcept;

  // Add a constant that nodes of the replacement read. Return its value number.
  int add(std::string name, Tensor constant);
  int add(std::string name, ScaledWeights scaled);
  // Add a value that a node of the replacement computes.
  int add(std::string name);
  // Return a constant made of another one, shared by all sessions on the graph.
  Tensor derived(const Tensor& constant, const std::string& key, const std::function<Tensor()>& make);

  // Put a node in the root's place, behind those that were put before; the last one computes the root's output. What nothing
  // reads afterwards is removed.
  void put(Node node) { put_.push_back(std::move(node)); }
  // Put a node in the place of another one of the pattern, which computes its operands there already.
  void put_at(const Node& place, Node node) {
    place_ = &place;
    put(std::move(node));
  }
  const Node& place() const noexcept { return *place_; }
  std::vector<Node>& replacement() noexcept { return put_; }

  // Whether a crossing permits this node as it is.
  static bool permits(const Crossing& crossing, const Node& node, int readers);

 private:
  const Values& values_;
  const Pass& pass_;
  const Node& root_;
  Graph& result_;
  const Node* place_ = &root_;
  std::vector<Node> put_;
};

}  // namespace walle
