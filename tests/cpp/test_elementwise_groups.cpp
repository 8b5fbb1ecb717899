// Groups of elementwise operators: random programs, run with every operator as a step of its own and with groups, on every
// instruction set and by teams of one and of three threads, give the same bits. What may not join stays apart.
#include <algorithm>
#include <bit>
#include <cstring>

#include "atomic/raster_step.h"
#include "check.h"
#include "graph/index.h"
#include "host/elementwise_groups.h"
#include "operators/step.h"

using namespace walle;

namespace {

int add_value(Program& program, DType dtype, Dims shape, int input = -1) {
  program.values.push_back({dtype, std::move(shape), {}, input, {}});
  return static_cast<int>(program.values.size() - 1);
}

int add_input(Program& program, DType dtype, Dims shape) {
  int number = 0;
  for (const ProgramValue& value : program.values) number += value.input >= 0 ? 1 : 0;
  return add_value(program, dtype, std::move(shape), number);
}

int add_op(Program& program, std::string_view name, std::vector<int> inputs, Attributes attributes = {}) {
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
int add_view(Program& program, int source, const Dims& shape, const Dims& strides, std::int64_t offset) {
  const ProgramValue& from = program.values[at(source)];
  ProgramOp op;
  op.inputs = {source};
  op.regions = {
      Region::make(0, shape, strides, offset, contiguous_strides(shape), 0, element_count(from.shape), element_count(shape))};
  op.output = add_value(program, from.dtype, shape);
  program.ops.push_back(std::move(op));
  return program.ops.back().output;
}

using Bytes = std::vector<std::byte>;

// Returns the bytes of every value that is computed; those of the inputs are given.
std::vector<Bytes> run(const Program& program, const Table& table, int threads, std::vector<Bytes> values) {
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
    if (step == nullptr) step = make_step(*op.op, layouts, {result.dtype, result.shape}, op.axes, op.attributes, table);
    std::vector<std::byte> scratch(step->scratch_bytes(threads) + 64);
    std::byte* const aligned = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64);
    values[at(op.output)].resize(at(static_cast<int>(element_count(result.shape))) * item_size(result.dtype));
    static_cast<const HostStep&>(*step).run_by(team, inputs.data(), values[at(op.output)].data(), aligned);
  }
  return values;
}

std::vector<Bytes> random_inputs(const Program& program, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, 2);
  std::vector<Bytes> values(program.values.size());
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

int count_groups(const Program& program) {
  return static_cast<int>(std::count_if(program.ops.begin(), program.ops.end(),
                                        [](const ProgramOp& op) { return !op.is_raster() && op.op->name == "Elementwise"; }));
}

// A program of the shape's values, of values that are broadcast to it, and of numbers.
Program random_program(std::mt19937_64& random, const Dims& shape) {
  Program program;
  std::vector<int> values[3];  // float32, float64, bool
  const auto type_of = [&](int value) {
    const DType dtype = program.values[at(value)].dtype;
    return dtype == DType::f32 ? 0 : dtype == DType::f64 ? 1 : 2;
  };
  const auto add = [&](int value) { values[type_of(value)].push_back(value); };
  for (const DType dtype : {DType::f32, DType::f32, DType::f32, DType::f64, DType::b8}) {
    Dims part = shape;
    for (std::int64_t& size : part)
      if (check::whole(random, 0, 2) == 0) size = 1;
    if (check::whole(random, 0, 3) == 0)
      part.erase(part.begin(), part.begin() + check::whole(random, 0, at(static_cast<int>(part.size()))));
    add(add_input(program, dtype, shape));
    add(add_input(program, dtype, part));
  }
  const auto any = [&](int type) {
    const auto last = static_cast<std::int64_t>(values[type].size()) - 1;
    return values[type][static_cast<std::size_t>(std::min(last, check::whole(random, 0, last + 2)))];  // the last one more often
  };
  if (!shape.empty() && element_count(shape) > 0) {  // rasters: an expanded value, and the last half of another's rows
    Dims part = shape, twice = shape;
    for (std::int64_t& size : part)
      if (check::whole(random, 0, 1) == 0) size = 1;
    const int small = add_input(program, DType::f32, part);
    add(add_view(program, small, shape, broadcast_strides(part, contiguous_strides(part), shape), 0));
    twice.back() *= 2;
    const int wide = add_input(program, DType::f32, twice);
    add(add_view(program, wide, shape, contiguous_strides(twice), shape.back()));
  }
  const std::int64_t count = check::whole(random, 2, 40);
  for (std::int64_t i = 0; i < count; ++i) {
    const int type = static_cast<int>(check::whole(random, 0, 9)) < 7 ? 0 : 1;
    switch (check::whole(random, 0, 11)) {
      case 0: add(add_op(program, "Add", {any(type), any(type)})); break;
      case 1: add(add_op(program, "Sub", {any(type), any(type)})); break;
      case 2: add(add_op(program, "Mul", {any(type), any(type)})); break;
      case 3: add(add_op(program, "Maximum", {any(type), any(type)})); break;
      case 4: add(add_op(program, "Tanh", {any(type)})); break;
      case 5: add(add_op(program, "Neg", {any(type)})); break;
      case 6: add(add_op(program, "Less", {any(type), any(type)})); break;
      case 7: add(add_op(program, "Where", {any(2), any(type), any(type)})); break;
      case 8: add(add_op(program, "And", {any(2), add_op(program, "Not", {any(2)})})); break;
      case 9: add(add_op(program, "Cast", {any(type)}, {{"to", std::string(type == 0 ? "float64" : "float32")}})); break;
      case 10: add(add_op(program, "Cast", {any(2)}, {{"to", std::string("float32")}})); break;
      default: add(add_op(program, "IsNaN", {any(type)}));
    }
  }
  for (int value = 0; value < static_cast<int>(program.values.size()); ++value)
    if (program.values[at(value)].input < 0 && check::whole(random, 0, 5) == 0) program.outputs.push_back(value);
  if (program.outputs.empty()) program.outputs.push_back(program.ops.back().output);
  remove_unread(program);
  return program;
}

void equal_bits() {
  std::mt19937_64 random(1);
  const Dims shapes[] = {{},        {1},       {7},          {3, 5},       {2, 3, 4, 4}, {4, 300}, {3000},    {1, 40, 1, 9},
                         {2, 0, 3}, {6, 8, 1}, {2, 5, 1, 3}, {9, 2, 2, 2}, {5, 1030},    {70, 33}, {1, 1, 3}, {3, 257}};
  int groups = 0;
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    const Table& table = kernels(set.name);
    for (int round = 0; round < 40; ++round)
      for (const Dims& shape : shapes) {
        const Program plain = random_program(random, shape);
        Program grouped = plain;
        join_elementwise(grouped, table);
        CHECK(grouped.ops.size() <= plain.ops.size());
        groups += count_groups(grouped);
        const std::vector<Bytes> inputs = random_inputs(plain, random);
        const std::vector<Bytes> expected = run(plain, table, 1, inputs);
        const std::vector<Bytes> found = run(grouped, table, 1, inputs);
        for (const int output : plain.outputs) CHECK(expected[at(output)] == found[at(output)]);
      }
  }
  CHECK(groups > 1000);
}

// Large enough that a team shares it.
void equal_bits_by_teams() {
  std::mt19937_64 random(2);
  for (const Dims& shape : {Dims{200000}, Dims{16, 40, 13, 13}, Dims{3000, 70}}) {
    const Program plain = random_program(random, shape);
    Program grouped = plain;
    join_elementwise(grouped, kernels());
    const std::vector<Bytes> inputs = random_inputs(plain, random);
    const std::vector<Bytes> expected = run(plain, kernels(), 1, inputs), found = run(grouped, kernels(), 3, inputs);
    for (const int output : plain.outputs) CHECK(expected[at(output)] == found[at(output)]);
  }
}

void joins_a_chain() {
  Program program;
  const int x = add_input(program, DType::f32, {2, 3}), rate = add_input(program, DType::f32, {});
  const int parameter = add_input(program, DType::f32, {2, 3});
  program.outputs = {add_op(program, "Sub", {parameter, add_op(program, "Mul", {x, rate})})};
  program.ops[0].predicted_us = 1;
  program.ops[1].predicted_us = 2;
  join_elementwise(program, kernels());
  CHECK(program.ops.size() == 1);
  const ProgramOp& group = program.ops[0];
  CHECK(group.op->name == "Elementwise" && group.name == "Sub 1");
  CHECK(group.step->algorithm() == "Mul+Sub");
  CHECK((group.inputs == std::vector<int>{x, rate, parameter}) && group.output == program.outputs[0]);
  CHECK(group.predicted_us == 3);
}

void keeps_what_others_read() {
  Program program;
  const int x = add_input(program, DType::f32, {4}), y = add_input(program, DType::f32, {3, 4});
  const int shown = add_op(program, "Neg", {x});            // an output
  const int shared = add_op(program, "Exp", {shown});       // read by a sum, too
  const int row = add_op(program, "Mul", {shared, shown});  // a row, whose reader is a matrix
  const int sum = add_op(program, "ReduceSum", {shared});
  program.ops.back().axes = {0};
  program.outputs = {shown, sum, add_op(program, "Add", {row, y})};
  const std::size_t before = program.ops.size();
  join_elementwise(program, kernels());
  CHECK(program.ops.size() == before && count_groups(program) == 0);
}

int count_rasters(const Program& program) {
  return static_cast<int>(
      std::count_if(program.ops.begin(), program.ops.end(), [](const ProgramOp& op) { return op.is_raster(); }));
}

// A gradient that a sum's rule expands, and a stretch of rows; what a product or a function alone reads stays.
void reads_through_rasters() {
  for (const bool alone : {false, true}) {
    Program program;
    const int x = add_input(program, DType::f32, {8, 50}), sum = add_input(program, DType::f32, {8, 1});
    const int wide = add_input(program, DType::f32, {8, 200});
    const int expanded = add_view(program, sum, {8, 50}, {1, 0}, 0), rows = add_view(program, wide, {8, 50}, {200, 1}, 100);
    program.outputs = {add_op(program, "Mul", {x, expanded}), add_op(program, "Sub", {rows, x})};
    if (alone) program.outputs.push_back(add_op(program, "Tanh", {expanded}));
    join_elementwise(program, kernels());
    CHECK(count_rasters(program) == (alone ? 1 : 0));
    CHECK(count_groups(program) == (alone ? 1 : 2));
    if (!alone) CHECK((program.ops[0].inputs == std::vector<int>{x, sum}));
    CHECK((program.ops[alone ? 2 : 1].inputs == std::vector<int>{wide, x}));
  }
}

// Between an operator and its reader, work on other values: its two operands would stay in use until then.
void holds_no_operands_longer() {
  for (const std::int64_t size : {std::int64_t{4}, std::int64_t{4096}}) {
    Program program;
    const int x = add_input(program, DType::f32, {size});
    int a = add_op(program, "Neg", {x}), b = add_op(program, "Exp", {x});
    int sum = add_op(program, "ReduceSum", {a});
    program.ops.back().axes = {0};
    const int sum_b = add_op(program, "ReduceSum", {b});
    program.ops.back().axes = {0};
    const int product = add_op(program, "Mul", {a, b});
    std::vector<int> sums{sum_b};
    for (int i = 0; i < 12; ++i) {
      sum = add_op(program, "ReduceSum", {add_op(program, "Square", {x})});
      program.ops.back().axes = {0};
      sums.push_back(sum);
    }
    program.outputs = sums;
    program.outputs.push_back(add_op(program, "Sub", {product, x}));
    join_elementwise(program, kernels());
    CHECK(count_groups(program) == (size == 4 ? 1 : 0));
  }
}

// More operators and operands than one step has room for.
void splits_long_chains() {
  Program program;
  int last = add_input(program, DType::f32, {5});
  for (int i = 0; i < 50; ++i) last = add_op(program, "Add", {last, add_input(program, DType::f32, {5})});
  for (int i = 0; i < 100; ++i) last = add_op(program, "Neg", {last});
  program.outputs = {last};
  const Program plain = program;
  join_elementwise(program, kernels());
  CHECK(program.ops.size() < 12);
  std::mt19937_64 random(3);
  const std::vector<Bytes> inputs = random_inputs(plain, random);
  CHECK(run(plain, kernels(), 1, inputs)[at(last)] == run(program, kernels(), 1, inputs)[at(last)]);
}

}  // namespace

int main() {
  equal_bits();
  equal_bits_by_teams();
  joins_a_chain();
  keeps_what_others_read();
  reads_through_rasters();
  holds_no_operands_longer();
  splits_long_chains();
  return check::failures == 0 ? 0 : 1;
}
