#include "host/work.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "atomic/element_work.h"
#include "atomic/recurrent.h"
#include "graph/index.h"
#include "host/problems.h"
#include "kernels/bytes.h"

namespace walle {

namespace {

// Bytes moved in the time of one element alone, of beginning a row, and of a greatest element alone, whose branch is
// mispredicted.
constexpr double kAloneBytes = 64, kRowBytes = 200, kGreatestBytes = 400;

// Adds what the regions of a raster read and write. Elements that do not follow each other are moved one by one, unless a kernel
// transposes them.
void add_movement(const ProgramOp& op, double item, Work& work) {
  double elements = 0, rows = 0, alone = 0;
  for (const Region& region : op.regions) {
    const auto count = static_cast<double>(region.count());
    elements += count;
    if (region.axes == 0) continue;
    const auto last = static_cast<std::size_t>(region.axes) - 1;
    const bool is_even = region.src.stride[last] == region.dst.stride[last];  // rows, or lanes of packed blocks
    constexpr std::int64_t kTransposed = 8;  // shortest rows and columns of the transposing kernel
    const bool is_transposed =
        item == sizeof(float) && region.axes >= 2 && region.size[last] >= kTransposed && region.size[last - 1] >= kTransposed;
    if (!is_even && !is_transposed) alone += count;
    if (region.src.stride[last] == 1) rows += count / static_cast<double>(std::max<std::int64_t>(1, region.size[last]));
  }
  work.move(2 * elements * item);
  work.moved += alone * kAloneBytes + rows * kRowBytes;
}

// Return the products of bytes in the time of one of the tile kernel (Emerald Rapids): VNNI sums four at once, others widen
// first.
double byte_products(const Table& table) {
  const Bytes& kernels = bytes(table);
  return (kernels.name.ends_with("VNNI") ? 4 : 1.13) * static_cast<double>(kernels.pack) / static_cast<double>(table.pack);
}

// Adds the taps of a pooling. In the plain layout, a tap joins a row of a plane to the result; one by one where strides are
// not 1.
void add_pooling(const ProgramOp& op, const Dims& result, bool packed, Work& work) {
  constexpr double kTapRowBytes = 800;  // moved in the time of joining a row
  double taps = static_cast<double>(element_count(result));
  for (const std::int64_t size : op.attributes.get_ints("kernel_shape").value_or(Dims{})) taps *= static_cast<double>(size);
  if (packed) {
    work.lanes = taps;
    return;
  }
  work.moved += kTapRowBytes * taps / std::max(1.0, static_cast<double>(result.back()));
  const Dims strides = op.attributes.get_ints("strides").value_or(Dims{1});
  if (strides.back() == 1)
    work.lanes = taps;
  else
    work.moved += (op.op->name == "PoolMax" ? kGreatestBytes : kAloneBytes) * taps;
}

}  // namespace

Work work_of(const Program& program, const ProgramOp& op, const Table& table, bool packed) {
  const auto value = [&](int index) -> const ProgramValue& { return program.values[at(index)]; };
  const auto shape = [&](int index) -> const Dims& { return value(index).shape; };
  const auto count = [&](int index) { return static_cast<double>(element_count(shape(index))); };
  const auto item = [&](int index) { return static_cast<double>(item_size(value(index).dtype)); };
  const auto bytes = [&](int index) { return index < 0 ? 0.0 : count(index) * item(index); };
  Work work;
  if (op.is_raster()) {
    add_movement(op, item(op.output), work);
    return work;
  }
  const std::string_view name = op.op->name;
  // A step backwards does about as much as one forwards.
  if (name == "RecurrentSteps" || name == "RecurrentGradient")
    return recurrent_work(shape(op.inputs[0]), shape(op.inputs[1]), value(op.output).dtype);
  double values = bytes(op.output), weights = 0;
  for (const int input : op.inputs) {
    const bool is_table = name == "IndexedGather" && input == op.inputs[0];  // read where the result comes from
    values += is_table ? std::min(bytes(op.output), bytes(input)) : bytes(input);
  }
  // Products of float32 may round their operands to bfloat16.
  double& products = value(op.output).dtype == DType::f32 && table.bfloat16 != nullptr ? work.pairs : work.panel;
  if (name == "MatMul") products = 2.0 * count(op.output) * static_cast<double>(shape(op.inputs[0]).back());
  if (name == "ConvWeightGradient") {
    const double channels = std::max<double>(1, static_cast<double>(shape(op.output)[0]));
    products = 2.0 * count(op.inputs[1]) * count(op.output) / channels;
  }
  if (is_integer_product(op)) {
    const double columns = std::max<double>(1, static_cast<double>(shape(op.output).back()));
    work.panel = 2.0 * count(op.output) * count(op.inputs[1]) / columns / byte_products(table);
    weights = bytes(op.inputs[1]);
    work.streamed = weights;
  }
  work.move(values - weights);
  if (name == "PoolMax" || name == "PoolMean" || name == "PoolSum") add_pooling(op, shape(op.output), packed, work);
  const double size = item(op.output) / sizeof(float);
  if (!op.inputs.empty() && op.inputs[0] >= 0) {
    const double elements = count(op.inputs[0]);
    work.lanes += element_operations(name) * elements * std::max(1.0, size);
    if (!shape(op.inputs[0]).empty())
      work.moved += row_bytes(name) * elements / std::max<double>(1, static_cast<double>(shape(op.inputs[0]).back()));
  }
  if (op.op->is(Family::reduce) || op.op->is(Family::mean)) {
    constexpr double kPackedSums = 10;  // operations of an element: a plane is a few sums, each of which waits for the last one
    work.lanes += (packed ? kPackedSums : 2) * count(op.inputs[0]);
  }
  return work;
}

Rates program_rates(const Program& program, const Table& table) {
  const auto is_product = [](const ProgramOp& op) {
    return takes_epilogue(op.op->name) || op.op->name == "MatMul" || op.op->name == "RecurrentSteps" ||
           op.op->name == "RecurrentGradient" || is_integer_product(op);
  };
  std::vector<int> weights;
  for (const ProgramOp& op : program.ops)
    if (!op.is_raster() && is_product(op) && program.values[at(op.inputs[1])].is_constant()) weights.push_back(op.inputs[1]);
  std::sort(weights.begin(), weights.end());
  double bytes = 0, each = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const ProgramValue& value = program.values[at(weights[i])];
    const double size = static_cast<double>(element_count(value.shape)) * static_cast<double>(item_size(value.dtype));
    each += size;
    if (i == 0 || weights[i] != weights[i - 1]) bytes += size;
  }
  return rates(table).for_weights(bytes, weights.empty() ? 0 : each / static_cast<double>(weights.size()));
}

Work layout_work(std::int64_t plain, std::int64_t packed) {
  Work work;
  work.move(static_cast<double>((plain + packed) * static_cast<std::int64_t>(sizeof(float))));
  return work;
}

double quantised(double us) {
  constexpr double kSteps = 64;
  return std::ceil(us * kSteps) / kSteps;
}

}  // namespace walle
