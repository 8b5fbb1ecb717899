// Execution of a plan: its kernels, one after the other (step 5 of a session, §4.2).
#pragma once
#include "plan/plan.h"

namespace walle {

// Return the outputs, in the graph's order, in memory of their own. Inputs are contiguous and of the plan's types. Nothing is
// allocated between the first and the last kernel. The arena is the plan's: one run at a time. Throws Error (shape) where a
// kernel refuses a value. `us`, where it is not null, receives the microseconds of each op.
std::vector<Tensor> run_plan(Plan& plan, std::span<const Tensor> inputs, Team& team, double* us = nullptr);

}  // namespace walle
