// Module: a graph with control flow, sequences, and shapes that depend on data (§4.2). The graph is split at such nodes; between
// them lie plain pieces, each planned like a session's graph, for every set of input types that it receives.
//
// Which nodes need their operands' values (a Reshape whose target is computed, say) is known when a piece is planned: where
// planning fails at a node because a value is missing, the piece is split there permanently, and the node is computed eagerly
// from its tensors.
#pragma once
#include <map>
#include <mutex>

#include "run/plan_cache.h"
#include "run/var.h"

namespace walle {

// A graph, or the body of a control-flow node, ready to run. Not thread-safe; the module is.
class Block {
 public:
  // `rounds_left` counts down the rounds that loops may still have in this run; it must outlive the block.
  Block(std::shared_ptr<const Graph> graph, const Target& target, Team& team, std::int64_t& rounds_left);

  const Graph& graph() const noexcept { return *graph_; }

  // Return the outputs, in the graph's order. Inputs are in its order too; `around` are the values of the enclosing graph, by
  // number, and must contain all that this graph reads. Throws Error that names the node.
  std::vector<Var> run(std::span<const Var> inputs, std::span<const Var> around);

  // Plans the first pieces, as far as types are known without running, so that errors show at load.
  void prepare();

  // Calls f(piece's last plan or null, node or null) for each piece in the order of running, bodies included.
  template <class F>
  void visit(F&& f) const {
    for (const Piece& piece : pieces_) {
      f(piece.plans.last(), piece.interpreted ? &graph_->nodes[piece.nodes[0]] : nullptr);
      for (const auto& body : piece.bodies) body->visit(f);
    }
  }

 private:
  struct Piece {
    bool interpreted = false;
    std::vector<std::size_t> nodes;              // one where interpreted
    std::vector<std::unique_ptr<Block>> bodies;  // of its node's subgraphs
    // Of a plain piece: its graph, and the values that are that graph's inputs and outputs.
    std::shared_ptr<const Graph> graph;
    std::vector<int> inputs, outputs;
    PlanCache plans;
    std::vector<int> dead;  // values that no later piece reads
  };

  Piece interpret(std::size_t node) const;
  void finish();  // fills the members that depend on the order of the pieces
  void split(std::size_t piece, std::size_t node);
  std::optional<std::size_t> unfit(const Piece& piece, std::span<const Var> env) const;
  std::shared_ptr<Plan> plan_for(std::size_t piece, std::span<const Tensor> inputs);
  bool run_plain(std::size_t piece, std::vector<Var>& env);
  void run_interpreted(const Piece& piece, std::vector<Var>& env);

  std::shared_ptr<const Graph> graph_;
  const Target& target_;
  Team& team_;
  std::int64_t& rounds_left_;
  std::vector<Piece> pieces_;
};

// Thread-safe: runs of one module are serialised. Modules on one graph share its constants and run concurrently.
class Module {
 public:
  // The limit of rounds of all loops in one run together: hours of rounds, but not indefinitely many.
  static constexpr std::int64_t kMaxRounds = std::int64_t{1} << 32;

  // Throws Error.
  Module(std::shared_ptr<const Graph> graph, const Target& target, std::int64_t max_rounds = kMaxRounds);

  const Graph& graph() const noexcept { return *graph_; }
  const Table& table() const noexcept { return *target_.table; }  // of nodes that are not planned

  // Return the outputs, in the graph's order. Throws Error for inputs that do not fit the model, and where a node refuses its
  // values.
  std::vector<Var> run(std::span<const Var> inputs);

  template <class F>
  void visit(F&& f) const {
    const std::lock_guard lock(mutex_);
    block_.visit(f);
  }

 private:
  const Target target_;
  Team team_;
  std::int64_t max_rounds_, rounds_left_ = 0;
  mutable std::mutex mutex_;
  std::shared_ptr<const Graph> graph_;  // as in the file
  Block block_;                         // of the graph after rewriting
};

}  // namespace walle
