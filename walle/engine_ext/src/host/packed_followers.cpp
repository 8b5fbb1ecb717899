// Operators that follow a convolution in its packed layout, because they compute the same there: elementwise ones, pooling, means
// over planes, and rasters that move whole channels or go the same way through every plane.
#include <algorithm>

#include "atomic/fused.h"
#include "atomic/packed_pooling.h"
#include "host/packed_values.h"

namespace walle {

namespace {

// Whether a constant has one number for each channel, or one in all.
bool is_by_channel(const ProgramValue& constant, const Dims& shape) {
  if (element_count(constant.shape) == 1) return true;
  const std::size_t rank = constant.shape.size();
  for (std::size_t i = 0; i < rank; ++i)
    if (constant.shape[i] != (i + shape.size() - rank == 1 ? shape[1] : 1)) return false;
  return rank + 1 >= shape.size();
}

bool can_pack_operand(const ProgramValue& operand, const Dims& shape) {
  if (operand.is_constant()) return is_by_channel(operand, shape);
  return operand.shape.size() == shape.size() && operand.shape[1] == shape[1];
}

int packed_operand(PackedValues& values, int input, const Dims& shape) {
  const ProgramValue given = values.value(input);
  if (!given.is_constant()) return values.need_packed(input);
  if (element_count(given.shape) == 1) {
    Tensor one = Tensor::empty(DType::f32, {});
    *one.data<float>() = *given.constant.data<float>();
    return values.add_constant(std::move(one));
  }
  Dims dims = values.packing().shape(shape);
  for (std::size_t i = 0; i + 1 < dims.size(); ++i)
    if (i != 1) dims[i] = 1;
  Tensor spread = Tensor::empty(DType::f32, dims);
  std::fill_n(spread.data<float>(), element_count(dims), 1.0f);
  std::copy_n(given.constant.data<float>(), shape[1], spread.data<float>());
  return values.add_constant(std::move(spread));
}

void add(PackedValues& values, ProgramOp op, std::vector<int> inputs) {
  op.inputs = std::move(inputs);
  op.output = values.add_packed_result(op.output);
  values.add_op(std::move(op));
}

bool follow_elementwise(PackedValues& values, const ProgramOp& op) {
  const Dims shape = values.value(op.output).shape;
  if (shape.size() < 2) return false;
  for (const int input : op.inputs)
    if (!can_pack_operand(values.value(input), shape)) return false;
  std::vector<int> inputs;
  for (const int input : op.inputs) inputs.push_back(packed_operand(values, input, shape));
  add(values, op, std::move(inputs));
  return true;
}

bool follow_pool(PackedValues& values, const ProgramOp& op, const Table& table) {
  ProgramOp packed = op;
  packed.step = make_packed_pool(op.op->name, values.value(op.inputs[0]).shape, op.attributes, table);
  add(values, std::move(packed), {values.need_packed(op.inputs[0])});
  return true;
}

// Over all spatial axes, which stay with size 1.
bool follow_reduction(PackedValues& values, const ProgramOp& op) {
  const Dims from = values.value(op.inputs[0]).shape, to = values.value(op.output).shape;
  if (from.size() < 3 || op.axes.size() != from.size() - 2 || op.axes.front() != 2 || to.size() != from.size()) return false;
  add(values, op, {values.need_packed(op.inputs[0])});
  return true;
}

bool follow_raster(PackedValues& values, const ProgramOp& op) {
  std::vector<Dims> sources;
  for (const int input : op.inputs) sources.push_back(values.value(input).shape);
  auto regions = values.packing().follow(sources, values.value(op.output).shape, op.regions);
  if (!regions) return false;
  ProgramOp packed = op;
  packed.regions = std::move(*regions);
  std::vector<int> inputs = op.inputs;
  for (int& input : inputs)
    if (element_count(values.value(input).shape) != 1 || values.only_packed(input)) input = values.need_packed(input);
  add(values, std::move(packed), std::move(inputs));
  return true;
}

}  // namespace

bool follow_packed(PackedValues& values, ProgramOp& op, const Table& table) {
  if (op.is_raster())
    for (int& input : op.inputs) input = values.source_of(input);
  const bool any = std::any_of(op.inputs.begin(), op.inputs.end(), [&](int input) { return values.only_packed(input); });
  if (!any || values.value(op.output).dtype != DType::f32) return false;
  if (op.is_raster()) return follow_raster(values, op);
  const std::string_view name = op.op->name;
  if (name == "PoolMax" || name == "PoolMean" || name == "PoolSum") return follow_pool(values, op, table);
  if (is_map(name)) return follow_elementwise(values, op);
  if (op.op->is(Family::unary) || op.op->is(Family::binary)) return follow_elementwise(values, op);
  if (op.op->is(Family::reduce) || op.op->is(Family::mean)) return follow_reduction(values, op);
  return false;
}

}  // namespace walle
