#include "host/problems.h"

namespace walle {

namespace {

const ProgramValue& operand_of(const Program& program, const ProgramOp& op, std::size_t operand) {
  return program.values[static_cast<std::size_t>(op.inputs[operand])];
}

}  // namespace

std::optional<ConvProblem> conv_problem(const Program& program, const ProgramOp& op, const Table& table, bool plain_input) {
  if (op.is_raster() || op.op->name != "Conv") return std::nullopt;
  const ProgramValue &x = operand_of(program, op, 0), &w = operand_of(program, op, 1);
  if (is_half(x.dtype)) return std::nullopt;
  const bool has_bias = op.inputs.size() > kBias && op.inputs[kBias] >= 0;
  ConvProblem problem{conv_shape(x.shape, w.shape, x.dtype, op.attributes), &table};
  problem.packable = x.dtype == DType::f32 && w.is_constant() && (!has_bias || operand_of(program, op, kBias).is_constant()) &&
                     op.attributes.get_string("algorithm", "").empty();  // a named one is of plain layouts
  problem.plain_input = plain_input && can_read_plain(problem);
  return problem;
}

bool can_read_plain(const ConvProblem& problem) noexcept {
  // Few channels are read where they lie: blocks of them would be mostly padding.
  return problem.packable && problem.shape.groups == 1 && problem.shape.in_channels * 2 <= problem.pack();
}

std::optional<LinearProblem> linear_problem(const Program& program, const ProgramOp& op, const Table& table) {
  if (op.is_raster() || op.op->name != "Linear") return std::nullopt;
  const ProgramValue& w = operand_of(program, op, 1);
  return linear_problem(program.values[static_cast<std::size_t>(op.output)].shape, w.shape, table, w.is_constant());
}

bool is_integer_product(const ProgramOp& op) {
  return !op.is_raster() && (op.op->name == "IntegerConv" || op.op->name == "IntegerLinear");
}

}  // namespace walle
