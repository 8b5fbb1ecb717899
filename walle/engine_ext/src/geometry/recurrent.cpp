// GRU, unrolled over its sequence. ONNX layout 0: X (steps, batch, input), W (1, 3h, input), R (1, 3h, h), B (1, 6h), initial
// state (1, batch, h); gates in the order z, r, h. Outputs: every state (steps, 1, batch, h) and the last (1, batch, h).
#include "geometry/composite.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

Ref slice(Emitter& emitter, Ref x, std::int64_t axis, std::int64_t start, std::int64_t end) {
  return emitter.one("Slice", {x}, {{"starts", Dims{start}}, {"ends", Dims{end}}, {"axes", Dims{axis}}});
}
Ref squeezed(Emitter& emitter, Ref x) { return emitter.one("Squeeze", {x}, {{"axes", Dims{0}}}); }

}  // namespace

std::vector<Ref> decompose_gru(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  const auto given = [&](std::size_t index) { return index < inputs.size() && inputs[index] != Emitter::kAbsent; };
  if (attributes.get_string("direction", "forward") != "forward" || attributes.has("activations") || attributes.has("clip") ||
      attributes.get_int("layout", 0) != 0 || given(4))
    throw Error(ErrorKind::unsupported, "GRU takes direction forward, layout 0, and no activations, clip or sequence_lens");
  const Operand x = emitter.operand(inputs[0]), r = emitter.operand(inputs[2]);
  if (x.shape.size() != 3 || r.shape.size() != 3 || r.shape[0] != 1 || r.shape[1] != 3 * r.shape[2] || x.shape[0] < 1)
    throw Error(ErrorKind::shape, "GRU with X of shape " + to_string(x.shape) + " and R of shape " + to_string(r.shape));
  const std::int64_t steps = x.shape[0], batch = x.shape[1], hidden = r.shape[2];
  const bool linear_before_reset = attributes.get_int("linear_before_reset", 0) != 0;

  const Ref input_weights = emitter.one("Transpose", {squeezed(emitter, inputs[1])});
  const Ref state_weights = emitter.one("Transpose", {squeezed(emitter, inputs[2])});
  const Ref gate_weights = slice(emitter, state_weights, 1, 0, 2 * hidden);
  const Ref new_weights = slice(emitter, state_weights, 1, 2 * hidden, 3 * hidden);
  const auto bias = [&](std::int64_t start, std::int64_t end) {
    return slice(emitter, squeezed(emitter, inputs[3]), 0, start, end);
  };

  // All steps' input halves at once: (steps, batch, 3h).
  Ref projected = emitter.one("MatMul", {inputs[0], input_weights});
  if (given(3)) projected = emitter.one("Add", {projected, bias(0, 3 * hidden)});
  Ref state;
  if (given(5)) {
    state = squeezed(emitter, inputs[5]);
  } else {
    const Ref zero = emitter.number(0.0, x.dtype);
    state = emitter.one("Expand", {zero}, {{"shape", Dims{batch, hidden}}});
  }
  const Ref one = emitter.number(1.0, x.dtype);
  std::vector<Ref> states;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Ref now = squeezed(emitter, slice(emitter, projected, 0, step, step + 1));
    Ref gates = emitter.one("Add", {slice(emitter, now, 1, 0, 2 * hidden), emitter.one("MatMul", {state, gate_weights})});
    if (given(3)) gates = emitter.one("Add", {gates, bias(3 * hidden, 5 * hidden)});
    gates = emitter.one("Sigmoid", {gates});
    const Ref update = slice(emitter, gates, 1, 0, hidden), reset = slice(emitter, gates, 1, hidden, 2 * hidden);
    Ref candidate;
    if (linear_before_reset) {
      candidate = emitter.one("MatMul", {state, new_weights});
      if (given(3)) candidate = emitter.one("Add", {candidate, bias(5 * hidden, 6 * hidden)});
      candidate = emitter.one("Mul", {reset, candidate});
    } else {
      candidate = emitter.one("MatMul", {emitter.one("Mul", {reset, state}), new_weights});
      if (given(3)) candidate = emitter.one("Add", {candidate, bias(5 * hidden, 6 * hidden)});
    }
    candidate = emitter.one("Tanh", {emitter.one("Add", {slice(emitter, now, 1, 2 * hidden, 3 * hidden), candidate})});
    // (1 - z) * candidate + z * state
    state = emitter.one(
        "Add", {emitter.one("Mul", {emitter.one("Sub", {one, update}), candidate}), emitter.one("Mul", {update, state})});
    states.push_back(state);
  }
  std::vector<Ref> results;
  results.push_back(emitter.one("Unsqueeze", {emitter.one("Stack", states, {{"axis", std::int64_t{0}}})}, {{"axes", Dims{1}}}));
  if (outputs > 1) results.push_back(emitter.one("Unsqueeze", {state}, {{"axes", Dims{0}}}));
  return results;
}

}  // namespace walle
