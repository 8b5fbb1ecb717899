// Order of updates: each runs as soon as its gradient exists, behind what still needs the parameter, and never takes more memory.
#include <algorithm>

#include "check.h"
#include "graph/index.h"
#include "plan/memory.h"

using namespace walle;

namespace {

constexpr std::int64_t kLarge = 10000;

int add_value(Program& program, std::int64_t count, int input = -1) {
  program.values.push_back({DType::f32, {count}, {}, input, {}});
  return static_cast<int>(program.values.size() - 1);
}

int add_op(Program& program, std::string name, std::vector<int> inputs, std::int64_t count = kLarge) {
  ProgramOp op;
  op.name = std::move(name);
  op.op = find_operator("Add");  // stands for any operator; nothing runs it
  op.inputs = std::move(inputs);
  op.output = add_value(program, count);
  program.ops.push_back(op);
  return op.output;
}

std::vector<std::string> names(const Program& program) {
  std::vector<std::string> found;
  for (const ProgramOp& op : program.ops) found.push_back(op.name);
  return found;
}

std::size_t arena_bytes(Program program, int inputs) { return plan_memory(program, inputs, 64).arena_bytes; }

void updates_follow_gradients() {
  Program program;
  const int a = add_value(program, kLarge, 0), b = add_value(program, kLarge, 1), rate = add_value(program, 1, 2);
  const int forward = add_op(program, "forward", {a, b});
  const int gradient_b = add_op(program, "gradient b", {forward});
  const int back = add_op(program, "back", {forward, b});
  const int gradient_a = add_op(program, "gradient a", {back});
  const int scale = add_op(program, "scale", {rate}, 1);
  const int sum_a = add_op(program, "sum a", {gradient_a}, 1), sum_b = add_op(program, "sum b", {gradient_b}, 1);
  const int total = add_op(program, "total", {sum_a, sum_b}, 1);
  const int new_a = add_op(program, "new a", {a, gradient_a, scale});
  const int new_b = add_op(program, "new b", {b, gradient_b, scale});
  program.outputs = {total, new_a, new_b};
  advance(program);
  CHECK((names(program) == std::vector<std::string>{"scale", "forward", "gradient b", "sum b", "back", "new b", "gradient a",
                                                    "sum a", "total", "new a"}));
}

// Of a chain of layers, three values are in use at once.
void gradients_do_not_pile_up() {
  constexpr int kLayers = 20;
  Program program;
  for (int i = 0; i < kLayers; ++i) add_value(program, kLarge, i);
  int last = add_op(program, "loss", {0});
  std::vector<int> gradients;
  for (int i = kLayers; i-- > 0;) {
    gradients.push_back(add_op(program, "gradient", {last, i}));
    last = add_op(program, "back", {last, i});
  }
  for (int i = kLayers; i-- > 0;) program.outputs.push_back(add_op(program, "new", {i, gradients[at(kLayers - 1 - i)]}));
  constexpr std::size_t kBytes = kLarge * sizeof(float);
  CHECK(arena_bytes(program, kLayers) > kLayers * kBytes);
  advance(program);
  CHECK(arena_bytes(program, kLayers) < 4 * kBytes);
}

// The squares of all gradients would be in use with the gradients, which the updates still read.
void large_results_stay() {
  Program program;
  const int x = add_value(program, kLarge, 0);
  const int gradient = add_op(program, "gradient", {x}), other = add_op(program, "other", {gradient});
  const int sum = add_op(program, "sum", {other}, 1);
  const int square = add_op(program, "square", {gradient}), norm = add_op(program, "norm", {square}, 1);
  program.outputs = {add_op(program, "new", {gradient, norm, sum})};
  const std::vector<std::string> before = names(program);
  advance(program);
  CHECK(names(program) == before);
}

void any_order_is_valid() {
  std::mt19937_64 random(1);
  for (int round = 0; round < check::rounds(2000); ++round) {
    Program program;
    for (int i = 0; i < 3; ++i) add_value(program, check::whole(random, 1, 3) * 5000, i);
    const std::int64_t count = check::whole(random, 1, 25);
    for (std::int64_t i = 0; i < count; ++i) {
      std::vector<int> inputs;
      for (std::int64_t k = check::whole(random, 1, 3); k > 0; --k)
        inputs.push_back(static_cast<int>(check::whole(random, 0, static_cast<std::int64_t>(program.values.size()) - 1)));
      add_op(program, std::to_string(i), inputs, check::whole(random, 0, 3) == 0 ? 1 : check::whole(random, 1, 3) * 5000);
    }
    for (const ProgramOp& op : program.ops)
      if (check::whole(random, 0, 3) == 0) program.outputs.push_back(op.output);
    if (program.outputs.empty()) program.outputs.push_back(program.ops.back().output);
    remove_unread(program);
    const std::size_t ops = program.ops.size();
    advance(program);
    CHECK(program.ops.size() == ops);
    std::vector<bool> exists(program.values.size(), false);
    for (int i = 0; i < 3; ++i) exists[at(i)] = true;
    for (const ProgramOp& op : program.ops) {
      for (const int input : op.inputs) CHECK(exists[at(input)]);
      exists[at(op.output)] = true;
    }
  }
}

}  // namespace

int main() {
  updates_follow_gradients();
  gradients_do_not_pile_up();
  large_results_stay();
  any_order_is_valid();
  return check::failures == 0 ? 0 : 1;
}
