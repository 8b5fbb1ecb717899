// Problems of a program's convolutions and matrix products: what search weighs for an operator (see atomic/algorithm.h).
#pragma once
#include "atomic/products/convolution.h"
#include "atomic/products/linear.h"
#include "plan/program.h"

namespace walle {

// Return the problem of a Conv; nothing for another operator and for 16-bit floats, which are computed in float32 by a step of
// their own. `plain_input`: x exists in its plain layout.
std::optional<ConvProblem> conv_problem(const Program& program, const ProgramOp& op, const Table& table, bool plain_input);
// Return whether packed algorithms of the problem may read x in its plain layout.
bool can_read_plain(const ConvProblem& problem) noexcept;
// Return the problem of a Linear; nothing for another operator.
std::optional<LinearProblem> linear_problem(const Program& program, const ProgramOp& op, const Table& table);

bool is_integer_product(const ProgramOp& op);

}  // namespace walle
