// A session: a graph made ready and run (§4.2). Order → shapes → geometry and merging → memory plan → run.
#pragma once
#include <mutex>

#include "plan/plan.h"

namespace walle {

// Thread-safe: runs of one session follow each other; sessions on one graph share its constants and run side by side.
class Session {
 public:
  // Plans at once where every input shape is known, and no shape hangs on an input's value. Throws Error, of kind unsupported for
  // a graph that only a module can run.
  Session(std::shared_ptr<const Graph> graph, const Target& target, bool merging = true);

  const Graph& graph() const noexcept { return *graph_; }

  // The outputs, in the graph's order, in memory of their own. Inputs are in the graph's order, of its dtypes, and contiguous.
  // A new set of input shapes (or of values of inputs that shapes hang on) is planned first; the last Plans::kPlans sets are
  // kept. Nothing is allocated between the first and the last kernel. Throws Error (shape, dtype) for inputs that do not fit the
  // model.
  std::vector<Tensor> run(std::span<const Tensor> inputs);
  // The same, and the microseconds of each op of the plan.
  std::vector<Tensor> run(std::span<const Tensor> inputs, std::vector<double>& us);

  // The plan of the last run (or of construction); null before.
  std::shared_ptr<const Plan> plan() const;

 private:
  void check(std::span<const Tensor> inputs) const;
  std::shared_ptr<Plan> plan_for(std::span<const Tensor> inputs);

  std::shared_ptr<const Graph> graph_;
  Target target_;
  Team team_;
  bool merging_;
  mutable std::mutex mutex_;
  std::vector<bool> needed_;  // by input: whether shapes hang on its value
  Plans plans_;
};

// Throws Error (shape, dtype) where a tensor is not what the graph's input asks for, or is not contiguous.
void check_input(const Value& input, const Tensor& given);
// Whether dtype and every dimension are known.
bool known(const Value& input);

}  // namespace walle
