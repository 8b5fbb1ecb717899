// A plan: a program laid out in memory with its steps chosen (steps 2 to 4 of a session, §4.2). Sessions and the plain pieces of
// modules keep one for each set of input types that they met.
#pragma once
#include <list>

#include "operators/step.h"
#include "plan/memory.h"
#include "plan/target.h"

namespace walle {

// One op of a plan, ready to run.
struct PlannedOp {
  std::string node;     // the model's node that it came from
  std::string_view op;  // "Raster" for one
  std::shared_ptr<Step> step;
  std::string_view algorithm;         // empty where there is only one
  std::vector<Candidate> candidates;  // what search weighed, the chosen one first
  double predicted_us = 0;
  int regions = 0;  // of a raster
  std::vector<Place> inputs;
  Place output;
};

// What is run for one set of input types, and of values of those inputs that shapes hang on.
struct Plan {
  std::vector<TensorType> inputs;
  std::vector<Tensor> given;  // copies of the inputs whose values it hangs on, undefined for the others; or empty
  std::vector<TensorType> outputs;
  const Table* table = nullptr;  // of the backend
  std::vector<PlannedOp> ops;
  std::vector<Tensor> constants;  // kept alive
  std::vector<std::byte*> bases;  // arena, inputs, outputs, constants
  std::shared_ptr<Storage> arena;
  std::size_t scratch_offset = 0;
  std::size_t max_inputs = 0;
  int rasters_made = 0, rasters_left = 0;
  double plan_ms = 0;    // all in all, weights packed
  double search_ms = 0;  // of it, weighing backends and algorithms
  std::vector<std::pair<std::string_view, double>>
      costs;  // of every backend that could have been chosen, in microseconds (eq. 1)
};

// `given` as for lower(). `merging` false leaves rasters as they come, to measure what merging saves. Throws Error that names the
// node, InputsNeeded among them.
std::shared_ptr<Plan> make_plan(const Graph& graph, std::vector<TensorType> inputs, std::vector<Tensor> given,
                                const Target& target, bool merging = true);

// The outputs, in the graph's order, in memory of their own. Inputs are contiguous and of the plan's types. Nothing is allocated
// between the first and the last kernel. The arena is the plan's: one run of it at a
// time. Throws Error (shape) where a kernel finds fault with a value.
// `us`, where it is not null, takes the time of each op.
std::vector<Tensor> run_plan(Plan& plan, std::span<const Tensor> inputs, Team& team, double* us = nullptr);

// The plans of the last kPlans sets of input types.
class Plans {
 public:
  static constexpr std::size_t kPlans = 8;

  // The plan that was made for inputs like these, which becomes the last used; null where there is none.
  std::shared_ptr<Plan> find(std::span<const Tensor> inputs);
  void add(std::shared_ptr<Plan> plan);
  // The last used; null where there is none.
  std::shared_ptr<Plan> last() const { return plans_.empty() ? nullptr : plans_.front(); }

 private:
  std::list<std::shared_ptr<Plan>> plans_;  // the last used first
};

}  // namespace walle
