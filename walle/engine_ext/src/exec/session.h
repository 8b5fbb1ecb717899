// A session: a graph made ready and run (§4.2). Order → shapes → geometry and merging → memory plan → run.
#pragma once
#include <list>
#include <mutex>

#include "exec/memory.h"
#include "exec/step.h"

namespace walle {

// One op of a plan, ready to run.
struct PlannedOp {
  std::string node;  // the model's node that it came from
  std::string_view op;
  std::unique_ptr<Step> step;   // null: a raster
  std::vector<Region> regions;  // of a raster
  std::size_t item = 0;
  std::vector<Place> inputs;
  Place output;
};

// What a session does for one set of input shapes, and of values of those inputs that shapes hang on.
struct Plan {
  std::vector<Dims> input_shapes;
  std::vector<Tensor> given;  // copies of the inputs whose values it hangs on, undefined for the others; or empty
  std::vector<TensorType> outputs;
  std::vector<PlannedOp> ops;
  std::vector<Tensor> constants;    // kept alive
  std::vector<std::byte*> bases;    // arena, inputs, outputs, constants
  std::shared_ptr<Storage> arena;
  std::size_t scratch_offset = 0;
  std::size_t max_inputs = 0;
  int rasters_made = 0, rasters_left = 0;
  double plan_ms = 0;
};

// Thread-safe: runs of one session follow each other; sessions on one graph share its constants and run side by side.
class Session {
 public:
  // Plans at once where every input shape is known, and no shape hangs on an input's value. Throws Error.
  Session(std::shared_ptr<const Graph> graph, const Table& table);

  const Graph& graph() const noexcept { return *graph_; }
  const Table& table() const noexcept { return table_; }

  // The outputs, in the graph's order, in memory of their own. Inputs are in the graph's order, of its dtypes, and contiguous.
  // A new set of input shapes (or of values of inputs that shapes hang on) is planned first; the last kPlans sets are kept. Nothing is allocated between the first and the
  // last kernel. Throws Error (shape, dtype) for inputs that do not fit the model.
  std::vector<Tensor> run(std::span<const Tensor> inputs);

  // The plan of the last run (or of construction); null before.
  std::shared_ptr<const Plan> plan() const;

 private:
  static constexpr std::size_t kPlans = 8;

  std::shared_ptr<Plan> plan_for(std::span<const Tensor> inputs);

  std::shared_ptr<const Graph> graph_;
  const Table& table_;
  mutable std::mutex mutex_;
  std::vector<bool> needed_;                // by input: whether shapes hang on its value
  std::list<std::shared_ptr<Plan>> plans_;  // the last used first
};

}  // namespace walle
