#include "host/packed_followers.h"

#include <algorithm>

#include "atomic/fused.h"
#include "atomic/packed_pooling.h"
#include "graph/index.h"

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
  if (operand.is_constant()) return operand.constant.storage() != nullptr && is_by_channel(operand, shape);
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

enum class Kind { none, elementwise, pool, reduction, raster };

Kind kind_of(const ProgramOp& op) {
  if (op.is_raster()) return Kind::raster;
  const std::string_view name = op.op->name;
  if (name == "PoolMax" || name == "PoolMean" || name == "PoolSum") return Kind::pool;
  if (is_map(name) || op.op->is(Family::unary) || op.op->is(Family::binary)) return Kind::elementwise;
  if (op.op->is(Family::reduce) || op.op->is(Family::mean)) return Kind::reduction;
  return Kind::none;
}

// Over all spatial axes, which stay with size 1.
bool reduces_planes(const ProgramOp& op, const Dims& from, const Dims& to) {
  return from.size() >= 3 && op.axes.size() == from.size() - 2 && op.axes.front() == 2 && to.size() == from.size();
}

std::vector<const Dims*> shapes(const Program& program, std::span<const int> values) {
  std::vector<const Dims*> found;
  found.reserve(values.size());
  for (const int value : values) found.push_back(&program.values[at(value)].shape);
  return found;
}

}  // namespace

bool can_follow_packed(const Program& program, const Packing& packing, const ProgramOp& op, std::span<const int> inputs) {
  const auto value = [&](int index) -> const ProgramValue& { return program.values[at(index)]; };
  const Dims& shape = value(op.output).shape;
  if (value(op.output).dtype != DType::f32) return false;
  for (const int input : inputs)
    if (input < 0 || value(input).dtype != DType::f32) return false;
  switch (kind_of(op)) {
    case Kind::none: return false;
    case Kind::pool: return true;
    case Kind::reduction: return reduces_planes(op, value(inputs[0]).shape, shape);
    case Kind::raster: return packing.can_follow(shapes(program, inputs), shape, op.regions);
    case Kind::elementwise:
      return shape.size() >= 2 &&
             std::all_of(inputs.begin(), inputs.end(), [&](int input) { return can_pack_operand(value(input), shape); });
  }
  return false;
}

void follow_packed(PackedValues& values, ProgramOp op, std::vector<int> inputs, const Table& table) {
  const Kind kind = kind_of(op);
  if (kind == Kind::raster) {
    op.regions = *values.packing().follow(shapes(values.program(), inputs), values.value(op.output).shape, op.regions);
    for (int& input : inputs)
      input = element_count(values.value(input).shape) == 1 ? values.need_plain(input) : values.need_packed(input);
  } else if (kind == Kind::elementwise) {
    const Dims shape = values.value(op.output).shape;
    for (int& input : inputs) input = packed_operand(values, input, shape);
  } else {
    if (kind == Kind::pool) op.step = make_packed_pool(op.op->name, values.value(inputs[0]).shape, op.attributes, table);
    inputs[0] = values.need_packed(inputs[0]);
  }
  op.inputs = std::move(inputs);
  op.output = values.add_packed_result(op.output);
  values.add_op(std::move(op));
}

}  // namespace walle
