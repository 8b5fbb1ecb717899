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
#include "run/workspace.h"

namespace walle {

// One run of a module.
struct ModuleRun {
  Workspace& workspace;
  std::int64_t rounds_left;  // loop rounds that are left, for all loops together
};

// A graph, or the body of a control-flow node, ready to run. Thread-safe: its pieces are replaced as a whole where one is split,
// and a run keeps those that it began with.
class Block {
 public:
  Block(std::shared_ptr<const Graph> graph, const Target& target);

  const Graph& graph() const noexcept { return *graph_; }

  // Return the outputs, in the graph's order. Inputs are in its order too; `around` are the values of the enclosing graph, by
  // number, and must contain all that this graph reads. Throws Error that names the node, and WorkStopped.
  std::vector<Var> run(std::span<const Var> inputs, std::span<const Var> around, ModuleRun& run);

  // Plans the first pieces, as far as types are known without running, so that errors show at load. Returns the plan
  // with the largest arena, null without one.
  std::shared_ptr<const Plan> prepare();

  // Calls f(piece's last plan or null, node or null) for each piece in the order of running, bodies included.
  template <class F>
  void visit(F&& f) const {
    for (const auto pieces = this->pieces(); const auto& piece : *pieces) {
      f(piece->plans.last(), piece->interpreted ? &graph_->nodes[piece->nodes[0]] : nullptr);
      for (const auto& body : piece->bodies) body->visit(f);
    }
  }

 private:
  struct Piece {
    bool interpreted = false;
    std::vector<std::size_t> nodes;              // one where interpreted
    std::vector<std::shared_ptr<Block>> bodies;  // bodies of the node's subgraphs
    // Of a plain piece: its graph, and the values that are that graph's inputs and outputs.
    std::shared_ptr<const Graph> graph;
    std::vector<int> inputs, outputs;
    mutable PlanCache plans;
    std::vector<int> dead;  // values that no later piece reads
  };
  using Pieces = std::vector<std::shared_ptr<const Piece>>;

  // A piece that is being made.
  struct Draft {
    bool interpreted = false;
    std::vector<std::size_t> nodes;
    std::shared_ptr<const Piece> piece;  // made piece that has these nodes already, or null
  };

  std::shared_ptr<const Pieces> pieces() const;
  std::shared_ptr<const Pieces> finished(const std::vector<Draft>& drafts) const;
  std::shared_ptr<const Pieces> split(const std::shared_ptr<const Pieces>& from, std::size_t index, std::size_t node);
  std::optional<std::size_t> unfit(const Piece& piece, std::span<const Var> env) const;
  std::shared_ptr<const Plan> plan_for(std::shared_ptr<const Pieces>& pieces, std::size_t index, std::span<const Tensor> inputs);
  bool run_plain(std::shared_ptr<const Pieces>& pieces, std::size_t index, std::vector<Var>& env, ModuleRun& run);
  void run_interpreted(const Piece& piece, std::vector<Var>& env, ModuleRun& run) const;

  std::shared_ptr<const Graph> graph_;
  const Target& target_;
  mutable std::mutex mutex_;  // guards the pointer below
  std::shared_ptr<const Pieces> pieces_;
};

// Thread-safe: several threads run one module at once, each in its own workspace (run/workspace.h). Modules on one graph
// share its constants.
class Module {
 public:
  // The limit of rounds of all loops in one run together: hours of rounds, but not indefinitely many.
  static constexpr std::int64_t kMaxRounds = std::int64_t{1} << 32;

  // Throws Error.
  Module(std::shared_ptr<const Graph> graph, const Target& target, std::int64_t max_rounds = kMaxRounds);

  const Graph& graph() const noexcept { return *graph_; }
  const KernelSet& kernels() const noexcept { return *target_.kernels; }

  // Return the outputs, in the graph's order. Throws Error for inputs that do not fit the model, and where a node refuses its
  // values; WorkStopped once the limits stop the run, its planning included.
  std::vector<Var> run(std::span<const Var> inputs, const StopLimits& limits = {});

  // Stops the runs that are in progress on other threads.
  void cancel() noexcept { workspaces_.cancel(); }

  template <class F>
  void visit(F&& f) const {
    block_.visit(f);
  }

 private:
  const Target target_;
  const std::int64_t max_rounds_;
  std::shared_ptr<const Graph> graph_;  // the file's graph
  Block block_;                         // the graph after rewriting
  WorkspacePool workspaces_;
};

}  // namespace walle
