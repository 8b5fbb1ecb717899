#include "host/work.h"

#include <cmath>

#include "graph/index.h"
#include "host/problems.h"

namespace walle {

Work work_of(const Program& program, const ProgramOp& op) {
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
  if (op.op->name == "PoolMax" || op.op->name == "PoolMean" || op.op->name == "PoolSum") {
    double taps = 1;
    for (const std::int64_t size : op.attributes.get_ints("kernel_shape").value_or(Dims{})) taps *= static_cast<double>(size);
    work.lanes = taps * count(op.output);
  }
  if (op.op->is(Family::reduce) || op.op->is(Family::mean)) work.lanes = 2 * count(op.inputs[0]);
  return work;
}

Work layout_work(std::int64_t plain, std::int64_t packed) {
  Work work;
  work.moved = static_cast<double>((plain + packed) * static_cast<std::int64_t>(sizeof(float)));
  return work;
}

double quantised(double us) {
  constexpr double kSteps = 64;
  return std::ceil(us * kSteps) / kSteps;
}

}  // namespace walle
