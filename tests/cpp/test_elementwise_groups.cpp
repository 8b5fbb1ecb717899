// Groups of elementwise operators: random programs, run with every operator as a step of its own and with groups, on every
// instruction set and by teams of one and of three threads, give the same bits. What may not join stays apart.
#include <algorithm>
#include <bit>
#include <cstring>

#include "host/elementwise_groups.h"
#include "programs.h"

using namespace walle;
using namespace programs;

namespace {

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
        const std::vector<ValueBytes> inputs = random_inputs(plain, random);
        const std::vector<ValueBytes> expected = run(plain, table, 1, inputs);
        const std::vector<ValueBytes> found = run(grouped, table, 1, inputs);
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
    const std::vector<ValueBytes> inputs = random_inputs(plain, random);
    const std::vector<ValueBytes> expected = run(plain, kernels(), 1, inputs), found = run(grouped, kernels(), 3, inputs);
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
  const std::vector<ValueBytes> inputs = random_inputs(plain, random);
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
