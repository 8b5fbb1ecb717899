// Programs made by hand, and their values.
#pragma once
#include <algorithm>

#include "atomic/raster_step.h"
#include "check.h"
#include "graph/index.h"
#include "operators/step.h"
#include "plan/program.h"

namespace programs {

using namespace walle;

inline int add_value(Program& program, DType dtype, Dims shape, int input = -1) {
  program.values.push_back({dtype, std::move(shape), {}, input, {}});
  return static_cast<int>(program.values.size() - 1);
}

inline int add_input(Program& program, DType dtype, Dims shape) {
  int number = 0;
  for (const ProgramValue& value : program.values) number += value.input >= 0 ? 1 : 0;
  return add_value(program, dtype, std::move(shape), number);
}

inline int add_op(Program& program, std::string_view name, std::vector<int> inputs, Attributes attributes = {}) {
  std::vector<Operand> operands;
  for (const int input : inputs)
    operands.push_back({program.values[at(input)].dtype, program.values[at(input)].shape, nullptr, false});
  ProgramOp op;
  op.name = std::string(name) + ' ' + std::to_string(program.ops.size());
  op.op = find_operator(name);
  op.attributes = std::move(attributes);
  TensorType type{operands[0].dtype, operands[0].shape};
  if (op.op->fused() == nullptr) type = infer_atomic(*op.op, operands, op.attributes);
  op.inputs = std::move(inputs);
  op.output = add_value(program, type.dtype, type.shape);
  program.ops.push_back(std::move(op));
  return program.ops.back().output;
}

// Adds a raster whose result has this shape and reads a value with these strides, from `offset` on.
inline int add_view(Program& program, int source, const Dims& shape, const Dims& strides, std::int64_t offset) {
  const ProgramValue& from = program.values[at(source)];
  ProgramOp op;
  op.inputs = {source};
  op.regions = {
      Region::make(0, shape, strides, offset, contiguous_strides(shape), 0, element_count(from.shape), element_count(shape))};
  op.output = add_value(program, from.dtype, shape);
  program.ops.push_back(std::move(op));
  return program.ops.back().output;
}

// Adds a raster that puts matrices side by side; `turned`: one below the other, each transposed.
inline int add_joined(Program& program, const std::vector<int>& sources, bool turned = false) {
  std::int64_t all = 0, begin = 0;
  for (const int source : sources) all += program.values[at(source)].shape[1];
  const std::int64_t rows = program.values[at(sources[0])].shape[0];
  const Dims shape = turned ? Dims{all, rows} : Dims{rows, all};
  ProgramOp op;
  op.inputs = sources;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::int64_t columns = program.values[at(sources[i])].shape[1];
    const Dims strides = turned ? Dims{1, rows} : Dims{all, 1};
    op.regions.push_back(Region::make(static_cast<int>(i), Dims{rows, columns}, Dims{columns, 1}, 0, strides,
                                      turned ? begin * rows : begin, rows * columns, rows * all));
    begin += columns;
  }
  op.output = add_value(program, program.values[at(sources[0])].dtype, shape);
  program.ops.push_back(std::move(op));
  return program.ops.back().output;
}

using ValueBytes = std::vector<std::byte>;

// Returns the bytes of every value that is computed; those of the inputs are given.
inline std::vector<ValueBytes> run(const Program& program, const Table& table, int threads, std::vector<ValueBytes> values) {
  Team team(threads);
  for (const ProgramOp& op : program.ops) {
    const ProgramValue& result = program.values[at(op.output)];
    std::vector<Layout> layouts;
    std::vector<std::byte*> inputs;
    for (const int input : op.inputs) {
      const ProgramValue& value = program.values[at(input)];
      layouts.push_back({value.dtype, value.shape, contiguous_strides(value.shape), nullptr, false});
      inputs.push_back(values[at(input)].data());
    }
    std::shared_ptr<const Step> step = op.step;
    if (step == nullptr && op.is_raster()) step = make_raster_step(op.regions, layouts, {result.dtype, result.shape}, table);
    if (step == nullptr)
      step = make_step(*op.op, layouts, {result.dtype, result.shape}, op.axes, op.attributes, table, op.epilogue);
    std::vector<std::byte> scratch(step->scratch_bytes(threads) + 64);
    std::byte* const aligned = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64);
    values[at(op.output)].resize(at(static_cast<int>(element_count(result.shape))) * item_size(result.dtype));
    static_cast<const HostStep&>(*step).run_by(team, inputs.data(), values[at(op.output)].data(), aligned);
  }
  return values;
}

inline std::vector<ValueBytes> random_inputs(const Program& program, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, 2);
  std::vector<ValueBytes> values(program.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ProgramValue& value = program.values[i];
    if (value.input < 0) continue;
    const auto count = static_cast<std::size_t>(element_count(value.shape));
    values[i].resize(count * item_size(value.dtype));
    for (std::size_t k = 0; k < count; ++k) {
      const double number = normal(random);
      if (value.dtype == DType::f32) reinterpret_cast<float*>(values[i].data())[k] = static_cast<float>(number);
      if (value.dtype == DType::f64) reinterpret_cast<double*>(values[i].data())[k] = number;
      if (value.dtype == DType::b8) values[i][k] = static_cast<std::byte>(number > 0);
    }
  }
  return values;
}

}  // namespace programs
