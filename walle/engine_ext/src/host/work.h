// Work of operators that have one algorithm, and of changes of layout (Q of eq. 3); costs as numbers that compare exactly.
#pragma once
#include "atomic/rates.h"
#include "plan/program.h"

namespace walle {

// Return the work of an op that has one algorithm, on plain values or on packed ones.
Work work_of(const Program& program, const ProgramOp& op, const Table& table, bool packed = false);

// Return the rates of an instruction set for a program, by its weights: the constant second operands of its products.
Rates program_rates(const Program& program, const Table& table);

// Return the work of changing a float32 value of `plain` elements between its plain form and a packed one of `packed` elements.
Work layout_work(std::int64_t plain, std::int64_t packed);

// Return a cost in steps of 1/64 microsecond. Sums of such costs are exact, so that equal costs compare as equal.
double quantised(double us);

}  // namespace walle
