// Memory plan: random programs of rasters and of operators that mix all of their inputs, run with the plan and with each value in
// memory of its own.
#include <algorithm>
#include <cstring>
#include <map>

#include "check.h"
#include "geometry/raster.h"
#include "plan/memory.h"

using namespace walle;

namespace {

using Values = std::vector<std::int32_t>;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Region stretch(int source, std::int64_t from, std::int64_t to, std::int64_t count, std::int64_t step, std::int64_t in,
               std::int64_t out) {
  const std::int64_t one = 1;
  return Region::make(source, {&count, 1}, {&step, 1}, from, {&one, 1}, to, in, out);
}

std::int64_t count_of(const Program& program, int value) { return element_count(program.values[at(value)].shape); }

int add_value(Program& program, std::int64_t count) {
  program.values.push_back({DType::i32, {count}, {}, -1});
  return static_cast<int>(program.values.size() - 1);
}

int add_input(Program& program, std::int64_t count, int number) {
  const int value = add_value(program, count);
  program.values[at(value)].input = number;
  return value;
}

int add_constant(Program& program, std::int64_t count) {
  const int value = add_value(program, count);
  Tensor tensor = Tensor::empty(DType::i32, {count});
  for (std::int64_t i = 0; i < count; ++i) tensor.data<std::int32_t>()[i] = static_cast<std::int32_t>(1000 * value + i);
  program.values[at(value)].constant = tensor;
  return value;
}

int add_op(Program& program, std::vector<int> inputs, std::int64_t count) {
  ProgramOp op;
  op.op = find_operator("Add");  // what it computes here is mix()
  op.inputs = std::move(inputs);
  op.output = add_value(program, count);
  program.ops.push_back(op);
  return op.output;
}

// Whole values, one after the other.
int add_concat(Program& program, std::vector<int> inputs) {
  ProgramOp op;
  std::int64_t total = 0, place = 0;
  for (const int input : inputs) total += count_of(program, input);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int64_t count = count_of(program, inputs[i]);
    op.regions.push_back(stretch(static_cast<int>(i), 0, place, count, 1, count, total));
    place += count;
  }
  op.inputs = std::move(inputs);
  op.output = add_value(program, total);
  program.ops.push_back(op);
  return op.output;
}

// Part of a value, every `step`-th element of it.
int add_slice(Program& program, int input, std::int64_t first, std::int64_t count, std::int64_t step) {
  ProgramOp op;
  op.inputs = {input};
  op.regions = {stretch(0, first, 0, count, step, count_of(program, input), count)};
  op.output = add_value(program, count);
  program.ops.push_back(op);
  return op.output;
}

// Each element depends on all elements of all inputs.
void mix(const std::vector<const std::int32_t*>& inputs, const std::vector<std::int64_t>& counts, int op, std::int32_t* out,
         std::int64_t count) {
  std::uint32_t sum = 17U * static_cast<std::uint32_t>(op);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (std::int64_t j = 0; j < counts[i]; ++j) sum = sum * 31U + static_cast<std::uint32_t>(inputs[i][j]);
  for (std::int64_t j = 0; j < count; ++j) out[j] = static_cast<std::int32_t>(sum * 7U + static_cast<std::uint32_t>(j));
}

// Stands for a step whose result may have the memory of the operands with as many elements.
class ElementwiseStep final : public Step {
 public:
  explicit ElementwiseStep(std::vector<bool> aligned) : aligned_(std::move(aligned)) {}
  bool may_overwrite(std::size_t operand) const noexcept override { return aligned_[operand]; }

 private:
  std::vector<bool> aligned_;
};

int add_elementwise(Program& program, std::vector<int> inputs) {
  const std::int64_t count = count_of(program, inputs[0]);
  std::vector<bool> aligned;
  for (const int input : inputs) aligned.push_back(count_of(program, input) == count);
  const int result = add_op(program, std::move(inputs), count);
  program.ops.back().step = std::make_shared<ElementwiseStep>(aligned);
  return result;
}

// Each element depends on one element of each input: of those with as many elements, the same one.
void map(const std::vector<const std::int32_t*>& inputs, const std::vector<std::int64_t>& counts, std::int32_t* out,
         std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) {
    std::uint32_t sum = 5;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      sum = sum * 31U + static_cast<std::uint32_t>(inputs[i][counts[i] == count ? j : (7 * j + 3) % counts[i]]);
    out[j] = static_cast<std::int32_t>(sum);
  }
}

// Returns the program's outputs; `address` returns a value's memory.
template <class Address>
std::vector<Values> run(const Program& program, const std::vector<bool>& skipped, const Address& address) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    if (i < skipped.size() && skipped[i]) continue;
    if (op.is_raster()) {
      for (const Region& region : op.regions)
        raster(region, reinterpret_cast<const std::byte*>(address(op.inputs[at(region.source)])),
               reinterpret_cast<std::byte*>(address(op.output)), 4);
      continue;
    }
    std::vector<const std::int32_t*> inputs;
    std::vector<std::int64_t> counts;
    for (const int input : op.inputs) {
      inputs.push_back(address(input));
      counts.push_back(count_of(program, input));
    }
    if (op.step != nullptr)
      map(inputs, counts, address(op.output), count_of(program, op.output));
    else
      mix(inputs, counts, static_cast<int>(op.output), address(op.output), count_of(program, op.output));
  }
  std::vector<Values> outputs;
  for (const int output : program.outputs) outputs.emplace_back(address(output), address(output) + count_of(program, output));
  return outputs;
}

std::vector<Values> given(const Program& program, int inputs) {
  std::vector<Values> result(at(inputs));
  for (const ProgramValue& value : program.values)
    if (value.input >= 0)
      for (std::int64_t i = 0; i < element_count(value.shape); ++i)
        result[at(value.input)].push_back(static_cast<std::int32_t>(100 * value.input + i));
  return result;
}

std::vector<Values> run_apart(const Program& program, int inputs) {
  const auto input = given(program, inputs);
  std::map<int, Values> memory;
  return run(program, {}, [&](int value) {
    const ProgramValue& what = program.values[at(value)];
    auto [found, is_new] = memory.try_emplace(value, at(element_count(what.shape)), -1);
    if (is_new && what.input >= 0) found->second = input[at(what.input)];
    if (is_new && what.is_constant())
      std::memcpy(found->second.data(), what.constant.raw(), found->second.size() * sizeof(std::int32_t));
    return found->second.data();
  });
}

std::vector<Values> run_planned(const Program& program, const MemoryPlan& plan, int inputs) {
  auto input = given(program, inputs);
  std::vector<std::int32_t> arena(plan.arena_bytes / 4, -1);
  std::vector<Values> outputs;
  for (const int output : program.outputs) outputs.emplace_back(at(count_of(program, output)), -1);
  return run(program, plan.skipped, [&](int value) {
    const Place& place = plan.places[at(value)];
    const int first_output = MemoryPlan::input_buffer(inputs), first_constant = first_output + static_cast<int>(outputs.size());
    std::int32_t* base = nullptr;
    if (place.buffer == MemoryPlan::kArena)
      base = arena.data();
    else if (place.buffer < first_output)
      base = input[at(place.buffer - MemoryPlan::input_buffer(0))].data();
    else if (place.buffer < first_constant)
      base = outputs[at(place.buffer - first_output)].data();
    else
      base = program.values[at(plan.constants[at(place.buffer - first_constant)])].constant.data<std::int32_t>();
    return base + place.offset / 4;
  });
}

std::int64_t regions_left(const Program& program) {
  std::int64_t left = 0;
  for (const ProgramOp& op : program.ops) left += static_cast<std::int64_t>(op.regions.size());
  return left;
}

// Plans the program and compares the results; returns the number of regions that still run.
std::int64_t compare(Program program, int inputs, const Updates& updates = {}) {
  const auto expected = run_apart(program, inputs);
  std::vector<TensorType> types(at(inputs));
  for (const ProgramValue& value : program.values)
    if (value.input >= 0) types[at(value.input)] = {value.dtype, value.shape};
  const std::size_t first_update = updates.empty() ? program.ops.size() : separate_updates(program, updates, types);
  const MemoryPlan plan = plan_memory(program, inputs, Storage::kAlignment, updates);
  for (std::size_t i = 0; i < first_update; ++i)
    for (const int input : updates.replaced)
      CHECK(plan.skipped[i] || input < 0 || plan.places[at(program.ops[i].output)].buffer != MemoryPlan::input_buffer(input));
  CHECK(run_planned(program, plan, inputs) == expected);
  for (std::size_t i = 0; i < program.ops.size(); ++i)
    CHECK(plan.skipped[i] == (program.ops[i].is_raster() && program.ops[i].regions.empty()));
  return regions_left(program);
}

std::int64_t random_program(std::mt19937_64& random) {
  Program program;
  const int inputs = static_cast<int>(check::whole(random, 1, 2));
  const std::int64_t size = check::whole(random, 1, 9);
  for (int i = 0; i < inputs; ++i) add_input(program, check::whole(random, 0, 1) ? size : check::whole(random, 1, 9), i);
  add_constant(program, check::whole(random, 1, 9));
  const auto any = [&] {
    return static_cast<int>(check::whole(random, 0, static_cast<std::int64_t>(program.values.size()) - 1));
  };
  const auto late = [&] {  // mostly what was computed last
    const auto last = static_cast<std::int64_t>(program.values.size()) - 1;
    return static_cast<int>(check::whole(random, std::max<std::int64_t>(0, last - 3), last));
  };
  for (std::int64_t ops = check::whole(random, 1, 12); ops > 0; --ops) {
    std::vector<int> of{late()};
    while (check::whole(random, 0, 1) == 1 && of.size() < 4) of.push_back(check::whole(random, 0, 2) ? late() : any());
    switch (check::whole(random, 0, 4)) {
      case 4: add_elementwise(program, of); break;
      case 0:
        if (count_of(program, of[0]) < 200) {
          add_concat(program, of);
          break;
        }
        [[fallthrough]];
      case 1: add_op(program, of, check::whole(random, 1, 40)); break;
      case 2: add_op(program, {of[0]}, check::whole(random, 1, 40)); break;
      default: {
        const std::int64_t whole = count_of(program, of[0]), step = check::whole(random, 1, 2);
        const std::int64_t first = check::whole(random, 0, 1) ? 0 : check::whole(random, 0, whole - 1);
        add_slice(program, of[0], first, (whole - first + step - 1) / step, step);
      }
    }
  }
  for (std::int64_t outputs = check::whole(random, 1, 3); outputs > 0; --outputs) program.outputs.push_back(late());
  const std::int64_t before = regions_left(program);
  const std::int64_t gone = before - compare(program, inputs);
  Updates updates;
  for (const int output : program.outputs) {
    updates.replaced.push_back(-1);
    for (int input = 0; input < inputs; ++input)
      if (count_of(program, input) == count_of(program, output) &&
          std::find(updates.replaced.begin(), updates.replaced.end(), input) == updates.replaced.end())
        updates.replaced.back() = input;
  }
  compare(program, inputs, updates);
  return gone;
}

}  // namespace

int main() {
  std::mt19937_64 random(7);
  std::int64_t gone = 0;
  for (int round = 0; round < check::rounds(30000) && check::failures < 5; ++round) gone += random_program(random);
  std::printf("%lld regions less\n", static_cast<long long>(gone));

  {  // two results side by side, read together and apart: nothing to move
    Program program;
    const int x = add_input(program, 5, 0), a = add_op(program, {x}, 7), b = add_op(program, {a}, 3);
    const int both = add_concat(program, {a, b}), c = add_op(program, {both, a}, 2);
    program.outputs = {add_op(program, {c, b}, 4)};
    CHECK(compare(program, 1) == 0);
  }
  {  // a gathering of gatherings, into an output
    Program program;
    const int x = add_input(program, 5, 0), a = add_op(program, {x}, 7), b = add_op(program, {a}, 3), c = add_op(program, {b}, 2);
    const int inner = add_concat(program, {a, b}), used = add_op(program, {inner}, 5);
    program.outputs = {add_concat(program, {used, inner, c})};
    CHECK(compare(program, 1) == 0);
  }
  {  // an input, a constant, an output, a part, and what is placed already are copied
    Program program;
    const int x = add_input(program, 5, 0), w = add_constant(program, 4), a = add_op(program, {x}, 7),
              y = add_op(program, {a}, 6);
    const int part = add_slice(program, a, 1, 3, 1);
    const int all = add_concat(program, {x, w, a, a, y, part});
    program.outputs = {y, add_op(program, {all}, 3)};
    CHECK(compare(program, 1) == 5);  // a once; the slice is a rename
  }
  {  // two inputs that change places, and one that takes its old value to another
    Program program;
    const int x = add_input(program, 5, 0), y = add_input(program, 5, 1);
    program.outputs = {y, x, x, add_elementwise(program, {x, y})};
    compare(program, 2, {{0, 1, -1, -1}, -1});
    compare(program, 2, {{1, -1, -1, 0}, -1});
  }
  {  // a chain of elementwise ops takes the memory of one value
    Program program;
    int last = add_op(program, {add_input(program, 5, 0)}, 9000);
    for (int i = 0; i < 5; ++i) last = add_elementwise(program, {last});
    program.outputs = {add_op(program, {last}, 4)};
    compare(program, 1);
    CHECK(plan_memory(program, 1, Storage::kAlignment).arena_bytes < 2 * 9000 * sizeof(std::int32_t));
  }
  return check::failures != 0;
}
