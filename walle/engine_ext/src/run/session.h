// Session: a graph without control flow, planned and run (§4.2). Order → shapes → geometry and merging → memory plan → run.
#pragma once
#include <mutex>

#include "run/plan_cache.h"
#include "run/workspace.h"

namespace walle {

// Thread-safe: several threads run one session at once, each in its own workspace (run/workspace.h). Sessions on one graph
// share its constants.
class Session {
 public:
  // With updates in the target, a run writes to the memory of the inputs that they replace, which nothing else may use, and
  // returns these.
  // Plans at once where every input shape is known and no shape depends on an input's value. Throws Error, of kind unsupported
  // for a graph that only a module can run.
  Session(std::shared_ptr<const Graph> graph, const Target& target, bool merging = true);

  const Graph& graph() const noexcept { return *graph_; }

  // Return the outputs, in the graph's order, in their own memory. Inputs are in the graph's order, of its dtypes, and
  // contiguous. A new set of input shapes (or of values of inputs that shapes depend on) is planned first; the last
  // PlanCache::kPlans sets are kept. Nothing is allocated between the first and the last kernel. Throws Error (shape, dtype) for
  // inputs that do not fit the model, and WorkStopped once the limits stop the run, its planning included.
  std::vector<Tensor> run(std::span<const Tensor> inputs, const StopLimits& limits = {});
  // The same, with the microseconds of each op of the plan.
  std::vector<Tensor> run(std::span<const Tensor> inputs, std::vector<double>& us, const StopLimits& limits = {});

  // Return a text that names what made the first number that is not finite, in a run of its own; empty where nothing did.
  std::string find_nonfinite(std::span<const Tensor> inputs);

  // Stops the runs that are in progress on other threads.
  void cancel() noexcept { workspaces_.cancel(); }

  // Return the plan of the last run (or of construction); null before.
  std::shared_ptr<const Plan> plan() const;

 private:
  void check(std::span<const Tensor> inputs) const;
  // Throws Error (model) where an input that is updated shares memory with another one.
  void check_apart(std::span<const Tensor> inputs) const;
  std::shared_ptr<const Plan> plan_for(std::span<const Tensor> inputs);

  std::shared_ptr<const Graph> graph_, planned_;  // the file's graph; the one after rewriting
  Target target_;
  bool merging_;
  std::mutex mutex_;          // guards needed_
  std::vector<bool> needed_;  // by input: whether shapes depend on its value
  PlanCache plans_;
  WorkspacePool workspaces_;
};

// Throws Error (shape, dtype) where a tensor does not have the dtype and shape of the graph's input, or is not contiguous.
void check_input(const Value& input, const Tensor& given);
// Return whether a session runs the node where constants and shapes alone decide what it does.
bool may_be_known(const Node& node) noexcept;
// Return whether dtype and every dimension are known.
bool known(const Value& input);

}  // namespace walle
