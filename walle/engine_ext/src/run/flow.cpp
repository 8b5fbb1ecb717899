// Control flow: If, Loop, Scan and SequenceMap, by running their bodies. Other operators on sequences are in sequence.cpp.
#include "run/flow.h"

#include <algorithm>
#include <array>

#include "core/stop.h"
#include "graph/index.h"
#include "operators/eager.h"
#include "run/sequence.h"

namespace walle {

namespace {

Tensor number(std::int64_t value, const Dims& shape = {}) {
  Tensor result = Tensor::empty(DType::i64, shape);
  *result.data<std::int64_t>() = value;
  return result;
}
Tensor truth(bool value) {
  Tensor result = Tensor::empty(DType::b8, {});
  *result.data<bool>() = value;
  return result;
}

bool is_true(const Var& value, const char* what) {
  const Tensor* tensor = std::get_if<Tensor>(&value);
  if (tensor == nullptr || tensor->dtype() != DType::b8 || tensor->size() != 1)
    throw Error(ErrorKind::dtype, std::string(what) + " must be one bool");
  return *tensor->data<bool>();
}

// The shape of a counter as the body declares it: 0-d, or one element.
Dims counter_shape(const Graph& body, std::size_t input) {
  const Value& value = body.values[at(body.inputs[input])];
  return !value.any_rank && value.shape.size() == 1 ? Dims{1} : Dims{};
}

// The part of `x` at `index` of `axis`, without that axis.
Tensor part(const Tensor& x, std::size_t axis, std::int64_t index) {
  Dims shape = x.shape(), strides = x.strides();
  const std::int64_t offset = x.offset() + index * strides[axis];
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(axis));
  return contiguous(Tensor(x.storage(), x.dtype(), std::move(shape), std::move(strides), offset));
}

const Tensor& as_tensor(const Var& value, const char* what) {
  if (const Tensor* tensor = std::get_if<Tensor>(&value)) return *tensor;
  throw Error(ErrorKind::model, std::string(what) + " is " + kind_of(value) + ", it must be a tensor");
}

// Stacks the results of one output of a body in every round along a new axis. `sample` has their dtype and shape where there was
// no round.
Tensor stacked(std::vector<Tensor> parts, std::int64_t axis, bool backward, const Tensor& sample, const Table& table) {
  if (parts.empty()) {
    Dims shape = sample.shape();
    const std::size_t place = normal_axis(axis, shape.size() + 1);
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(place), 0);
    return Tensor::empty(sample.dtype(), std::move(shape));
  }
  if (backward) std::reverse(parts.begin(), parts.end());
  return evaluate(*find_operator("Stack"), parts, {{"axis", axis}}, 1, table)[0];
}

std::vector<Var> run_if(const FlowCall& call) {
  return call.body(is_true(call.inputs[0], "the condition") ? "then_branch" : "else_branch").run({}, call.around, call.run);
}

// Inputs: trip count, condition (both optional), carried values. The body takes (iteration, condition, carried values) and
// returns (condition, carried values, scan values).
std::vector<Var> run_loop(const FlowCall& call) {
  Block& body = call.body("body");
  const Graph& graph = body.graph();
  if (graph.inputs.size() < 2 || call.inputs.size() > graph.inputs.size() || graph.outputs.size() + 1 < graph.inputs.size())
    throw Error(ErrorKind::model, "its body takes " + std::to_string(graph.inputs.size()) + " values and gives " +
                                      std::to_string(graph.outputs.size()));
  const std::size_t carried = graph.inputs.size() - 2, scans = graph.outputs.size() - 1 - carried;
  const std::int64_t rounds = call.given(0) ? call.whole_number(0) : INT64_MAX;
  bool go = !call.given(1) || is_true(call.inputs[1], "the condition");
  const Dims counter = counter_shape(graph, 0);
  std::vector<Var> values(carried + 2);
  for (std::size_t i = 2; i < call.inputs.size(); ++i) values[i] = call.inputs[i];
  std::vector<std::vector<Tensor>> gathered(scans);
  const auto run_body = [&](std::int64_t round, bool condition) {
    call.begin_round();
    values[0] = number(round, counter);
    values[1] = truth(condition);
    return body.run(values, call.around, call.run);
  };
  std::vector<Tensor> samples(scans);
  if ((rounds <= 0 || !go) && scans > 0) {  // one round, whose results are dropped, for the type and shape of the scan values
    const auto results = run_body(0, true);
    for (std::size_t i = 0; i < scans; ++i) samples[i] = as_tensor(results[1 + carried + i], "a scan value");
  }
  for (std::int64_t round = 0; round < rounds && go; ++round) {
    auto results = run_body(round, go);
    go = is_true(results[0], "the body's condition");
    for (std::size_t i = 0; i < carried; ++i) values[2 + i] = std::move(results[1 + i]);
    for (std::size_t i = 0; i < scans; ++i) gathered[i].push_back(as_tensor(results[1 + carried + i], "a scan value"));
  }
  std::vector<Var> outputs(values.begin() + 2, values.end());
  for (std::size_t i = 0; i < scans; ++i) outputs.push_back(stacked(std::move(gathered[i]), 0, false, samples[i], call.table));
  return outputs;
}

struct ScanForm {
  std::size_t states, scanned, gathered;
  Dims input_axes, input_backward, output_axes, output_backward;  // an entry for each scanned or gathered value
};

std::vector<Var> scan(Block& body, const ScanForm& form, std::vector<Var> states, std::span<const Tensor> scanned,
                      std::int64_t rounds, const FlowCall& call) {
  std::vector<std::vector<Tensor>> gathered(form.gathered);
  std::vector<Tensor> samples(form.gathered);
  for (std::int64_t round = 0; round < std::max<std::int64_t>(rounds, 1); ++round) {
    call.begin_round();
    std::vector<Var> values = states;
    for (std::size_t i = 0; i < form.scanned; ++i) {
      const auto axis = normal_axis(form.input_axes[i], scanned[i].shape().size());
      if (rounds == 0) {  // no elements: the body runs once on zeros, for the types and shapes of its results
        Dims shape = scanned[i].shape();
        shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
        Tensor zeros = Tensor::empty(scanned[i].dtype(), shape);
        std::fill_n(zeros.raw(), static_cast<std::size_t>(zeros.size()) * item_size(zeros.dtype()), std::byte{0});
        values.push_back(std::move(zeros));
      } else {
        values.push_back(part(scanned[i], axis, form.input_backward[i] != 0 ? rounds - 1 - round : round));
      }
    }
    auto results = body.run(values, call.around, call.run);
    for (std::size_t i = 0; i < form.gathered; ++i) {
      const Tensor& value = as_tensor(results[form.states + i], "a scan value");
      if (rounds == 0)
        samples[i] = value;
      else
        gathered[i].push_back(value);
    }
    if (rounds == 0) break;
    results.resize(form.states);
    states = std::move(results);
  }
  for (std::size_t i = 0; i < form.gathered; ++i)
    states.push_back(stacked(std::move(gathered[i]), form.output_axes[i], form.output_backward[i] != 0, samples[i], call.table));
  return states;
}

// Version 8, "batched": input 0 is the length of each row's sequence (optional); every other input has a batch axis first, and a
// scanned input its sequence axis second. Rows run one after the other; the end of a short row is padded with zeros.
std::vector<Var> scan_batch(Block& body, const ScanForm& form, const FlowCall& call) {
  const std::int64_t batch = call.tensor(1).ndim() > 0 ? call.tensor(1).shape()[0] : 0;
  if (batch < 1) throw Error(ErrorKind::shape, "a batched Scan needs a batch of at least one");
  std::vector<std::vector<Tensor>> rows(form.states + form.gathered);
  for (std::int64_t row = 0; row < batch; ++row) {
    std::vector<Var> states;
    std::vector<Tensor> scanned;
    for (std::size_t i = 1; i < call.inputs.size(); ++i) {
      const Tensor& input = call.tensor(i);
      if (input.ndim() < 1 || input.shape()[0] != batch || (i > form.states && input.ndim() < 2))
        throw Error(ErrorKind::shape, "input " + std::to_string(i) + " of a batched Scan has shape " + to_string(input.shape()));
      (i <= form.states ? static_cast<void>(states.push_back(part(input, 0, row))) : scanned.push_back(part(input, 0, row)));
    }
    const std::int64_t longest = scanned[0].shape()[0];
    std::int64_t rounds = longest;
    if (call.given(0)) {
      const Tensor& lengths = call.tensor(0);
      if (lengths.dtype() != DType::i64 || lengths.size() != batch)
        throw Error(ErrorKind::shape, "sequence_lens of a batched Scan has one int64 for each row");
      rounds = lengths.data<std::int64_t>()[row];
    }
    for (const Tensor& one : scanned)
      if (rounds < 0 || rounds > one.shape()[0])
        throw Error(ErrorKind::shape,
                    "a row of " + std::to_string(rounds) + " steps in a batched Scan over " + to_string(one.shape()));
    auto results = scan(body, form, std::move(states), scanned, rounds, call);
    for (std::size_t i = 0; i < results.size(); ++i) {
      Tensor value = as_tensor(results[i], "a result");
      if (i >= form.states && rounds < longest) {
        Dims pads(2 * value.shape().size(), 0);
        pads[value.shape().size()] = longest - rounds;
        value = evaluate_one("Pad", std::span(&value, 1), {{"pads", pads}});
      }
      rows[i].push_back(std::move(value));
    }
  }
  std::vector<Var> outputs;
  for (auto& parts : rows) outputs.push_back(stacked(std::move(parts), 0, false, {}, call.table));
  return outputs;
}

std::vector<Var> run_scan(const FlowCall& call) {
  Block& body = call.body("body");
  const Attributes& attributes = call.node.attributes;
  const bool batched = attributes.get_int("batched", 0) != 0;
  const std::size_t given = call.inputs.size() - (batched ? 1 : 0);
  const std::int64_t count = attributes.get_int("num_scan_inputs", 0);
  const auto scan_count = static_cast<std::size_t>(count);
  if (count < 1 || count > static_cast<std::int64_t>(given) || body.graph().inputs.size() != given ||
      body.graph().outputs.size() + scan_count < given)
    throw Error(ErrorKind::model, "num_scan_inputs is " + std::to_string(count) + " with " + std::to_string(given) +
                                      " inputs; its body takes " + std::to_string(body.graph().inputs.size()) +
                                      " values and gives " + std::to_string(body.graph().outputs.size()));
  const std::size_t state_count = given - scan_count;
  ScanForm form{state_count, scan_count, body.graph().outputs.size() - state_count, {}, {}, {}, {}};
  const auto entries = [&](const char* name, std::size_t expected) {
    Dims list = attributes.get_ints(name).value_or(Dims(expected, 0));
    if (list.size() != expected)
      throw Error(ErrorKind::model,
                  std::string(name) + " has " + std::to_string(list.size()) + " entries, not " + std::to_string(expected));
    return list;
  };
  form.input_axes = entries("scan_input_axes", form.scanned);
  form.input_backward = entries(batched ? "directions" : "scan_input_directions", form.scanned);
  form.output_axes = entries("scan_output_axes", form.gathered);
  form.output_backward = entries("scan_output_directions", form.gathered);
  if (batched) return scan_batch(body, form, call);
  std::vector<Var> states(call.inputs.begin(), call.inputs.begin() + static_cast<std::ptrdiff_t>(form.states));
  std::vector<Tensor> scanned;
  std::int64_t rounds = -1;
  for (std::size_t i = 0; i < form.scanned; ++i) {
    scanned.push_back(call.tensor(form.states + i));
    const std::int64_t length = scanned[i].shape()[normal_axis(form.input_axes[i], scanned[i].shape().size())];
    if (rounds >= 0 && length != rounds)
      throw Error(ErrorKind::shape,
                  "it scans sequences of " + std::to_string(rounds) + " and " + std::to_string(length) + " steps");
    rounds = length;
  }
  return scan(body, form, std::move(states), scanned, rounds, call);
}

// Runs the body for each element of the first sequence, with the element at the same place of further sequences; tensors are
// passed unchanged.
std::vector<Var> run_sequence_map(const FlowCall& call) {
  Block& body = call.body("body");
  const std::size_t count = call.sequence(0).items.size();
  std::vector<std::shared_ptr<Sequence>> results(body.graph().outputs.size());
  for (auto& result : results) result = std::make_shared<Sequence>();
  for (std::size_t round = 0; round < count; ++round) {
    call.begin_round();
    std::vector<Var> values;
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      if (!std::holds_alternative<std::shared_ptr<const Sequence>>(call.inputs[i])) {
        values.push_back(call.inputs[i]);
        continue;
      }
      const Sequence& sequence = call.sequence(i);
      if (sequence.items.size() != count)
        throw Error(ErrorKind::shape, "its sequences have " + std::to_string(count) + " and " +
                                          std::to_string(sequence.items.size()) + " elements");
      values.push_back(sequence.items[round]);
    }
    const auto given = body.run(values, call.around, call.run);
    for (std::size_t i = 0; i < results.size(); ++i) {
      results[i]->items.push_back(as_tensor(given[i], "a result of the body"));
      results[i]->dtype = results[i]->items[0].dtype();
    }
  }
  return {results.begin(), results.end()};
}

}  // namespace

void FlowCall::begin_round() const {
  throw_if_stopped();  // the body may be empty
  if (run.rounds_left-- <= 0)
    throw Error(ErrorKind::model, "it exceeds the limit of loop rounds in one run; the loop may never end");
}

Block& FlowCall::body(std::string_view key) const {
  for (std::size_t i = 0; i < node.graphs.size(); ++i)
    if (node.graphs[i].first == key) return *bodies[i];
  throw Error(ErrorKind::model, "attribute '" + std::string(key) + "' (a subgraph) is missing");
}

const Tensor& FlowCall::tensor(std::size_t index) const {
  if (index >= inputs.size()) throw Error(ErrorKind::model, "input " + std::to_string(index) + " is missing");
  return as_tensor(inputs[index], ("input " + std::to_string(index)).c_str());
}

const Sequence& FlowCall::sequence(std::size_t index) const {
  if (index < inputs.size())
    if (const auto* sequence = std::get_if<std::shared_ptr<const Sequence>>(&inputs[index])) return **sequence;
  throw Error(ErrorKind::model, "input " + std::to_string(index) + " is " +
                                    (index < inputs.size() ? kind_of(inputs[index]) : "missing") + ", it must be a sequence");
}

std::int64_t FlowCall::whole_number(std::size_t index) const {
  const Tensor& value = tensor(index);
  if (value.size() == 1 && value.dtype() == DType::i64) return *value.data<std::int64_t>();
  if (value.size() == 1 && value.dtype() == DType::i32) return *value.data<std::int32_t>();
  throw Error(ErrorKind::dtype, "input " + std::to_string(index) + " must be one int64 or int32, not " +
                                    std::string(dtype_name(value.dtype())) + " of shape " + to_string(value.shape()));
}

FlowFn flow_function(std::string_view op) noexcept {
  static constexpr std::array<std::pair<std::string_view, FlowFn>, 4> table{{
      {"If", &run_if},
      {"Loop", &run_loop},
      {"Scan", &run_scan},
      {"SequenceMap", &run_sequence_map},
  }};
  for (const auto& [name, run] : table)
    if (name == op) return run;
  return sequence_function(op);
}

}  // namespace walle
