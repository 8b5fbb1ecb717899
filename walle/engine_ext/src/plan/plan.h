// Plan: a program with its steps chosen and its memory laid out (steps 2 to 4 of a session, §4.2). Sessions and the plain pieces
// of modules keep one for each set of input types (run/plan_cache.h). It does not change once made: several threads run it at
// once, each in its own workspace (run/workspace.h).
#pragma once
#include "plan/memory.h"
#include "plan/target.h"

namespace walle {

// Description of a command of a plan.
struct PlannedOp {
  std::string node;                       // the model's node that it came from
  std::string_view op;                    // "Raster" for one
  std::string_view algorithm;             // empty where there is only one
  std::vector<AlgorithmCost> candidates;  // what search weighed, the chosen one first
  double predicted_us = 0;
  int regions = 0;  // regions of a raster
  TensorType result;

  std::string title() const { return "node '" + node + "' (" + std::string(op) + ")"; }  // for messages
};

// The plan for one set of input types, and of values of those inputs that shapes depend on.
struct Plan {
  std::vector<TensorType> inputs;
  std::vector<Tensor> given;  // copies of the inputs whose values it depends on, undefined for the others; or empty
  std::vector<TensorType> outputs;
  const KernelSet* kernels = nullptr;
  CommandList commands;
  CommandList updates;                         // run behind the commands, where the condition holds, and not stopped
  std::vector<int> replaced;                   // by output: the input that has it; -1: memory of its own. Empty: no updates
  int condition = -1;                          // output that tells whether the updates run; -1: always
  std::vector<PlannedOp> ops;                  // description of each command, then of each update
  std::vector<Buffer> constants;               // kept alive; a device that copies has them once for each plan
  std::vector<BufferHandle> buffers;           // arena, inputs, outputs (each run has its own), constants
  std::size_t arena_bytes = 0;                 // memory of a run, scratch included
  std::size_t largest = 0, largest_bytes = 0;  // op with the largest result in the arena, and its bytes
  int rasters_made = 0, rasters_left = 0;
  double plan_ms = 0;                                      // time of all planning, packing of weights included
  double search_ms = 0;                                    // time of weighing kernel sets and algorithms
  std::vector<std::pair<std::string_view, double>> costs;  // cost of every kernel set to choose from, in microseconds (eq. 1)
  std::string source;                                      // where they come from, such as "calibrated"
};

// Return the plan of a graph. `given`: as for lower(). `merging` false leaves rasters unmerged, to measure what merging saves.
// Throws Error and OutOfMemory that name the node, InputsNeeded among them, and WorkStopped.
std::shared_ptr<const Plan> make_plan(const Graph& graph, std::vector<TensorType> inputs, std::vector<Tensor> given,
                                      const Target& target, bool merging = true);

}  // namespace walle
