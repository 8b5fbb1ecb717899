// Predicted cost of a program on an instruction set (eq. 1): the least cost of each operator over its algorithms.
#include <algorithm>

#include "graph/index.h"
#include "host/host_kernels.h"
#include "host/problems.h"

namespace walle {

namespace {

// Of an operator without a choice of algorithms: the bytes of its values, and the multiplications of a matrix product.
Work plain_work(const Program& program, const ProgramOp& op) {
  constexpr double kBytesOfElement = 4;  // products of bytes in one operation of the tile kernel
  const auto shape = [&](int value) -> const Dims& { return program.values[at(value)].shape; };
  const auto count = [&](int value) { return static_cast<double>(element_count(shape(value))); };
  const auto bytes = [&](int value) {
    return value < 0 ? 0.0 : count(value) * static_cast<double>(item_size(program.values[at(value)].dtype));
  };
  Work work;
  for (const int input : op.inputs) work.moved += bytes(input);
  work.moved += bytes(op.output);
  if (op.is_raster()) return work;
  if (op.op->name == "MatMul") work.panel = 2.0 * count(op.output) * static_cast<double>(shape(op.inputs[0]).back());
  if (is_integer_product(op)) {
    const double columns = std::max<double>(1, static_cast<double>(shape(op.output).back()));
    work.panel = 2.0 * count(op.output) * count(op.inputs[1]) / columns / kBytesOfElement;
  }
  return work;
}

}  // namespace

double HostKernels::predict_us(const Program& program) const {
  const Rates rate = rates(table_);
  double us = 0;
  for (const ProgramOp& op : program.ops) {
    if (const auto conv = conv_problem(program, op, table_, false); conv && conv->shape.dtype == DType::f32)
      us += weigh_conv(*conv, rate, op.attributes.get_string("algorithm", "")).front().us;
    else if (const auto linear = linear_problem(program, op, table_))
      us += weigh(linear_algorithms(), *linear, rate).front().us;
    else
      us += rate.us(plain_work(program, op));
  }
  return us;
}

}  // namespace walle
