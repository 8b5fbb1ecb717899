// Execution of a plan on its device (step 5 of a session, §4.2).
#pragma once
#include "run/workspace.h"

namespace walle {

// Return the outputs, in the graph's order, in their own memory. Inputs are contiguous and of the plan's types. Nothing is
// allocated between the first and the last kernel. The workspace is this run's alone meanwhile. Throws Error (shape) where a
// kernel refuses a value, and WorkStopped. `us`, where it is not null, receives the microseconds of each op.
std::vector<Tensor> run_plan(const Plan& plan, std::span<const Tensor> inputs, Workspace& workspace, double* us = nullptr);

// Runs the plan op by op, and returns which op was the first to make a number that is not finite, or which input has one; an
// empty text where none is found, or the device has its own memory.
std::string find_nonfinite(const Graph& graph, const Plan& plan, std::span<const Tensor> inputs, Workspace& workspace);

}  // namespace walle
