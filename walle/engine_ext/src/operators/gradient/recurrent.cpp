// Gradient of RecurrentSteps: the products over all steps at once, around the sequential part (atomic/recurrent_gradient.cpp).
// Gates are computed again from the states, in one product for all steps, so that the forward pass keeps none.
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

class Recurrence {
 public:
  explicit Recurrence(const GradientCall& call)
      : call_(call), emitter_(call.emitter), f_(formula_of(call)), cell_(call.attributes.get_string("cell", "")) {
    const Dims shape = emitter_.operand(call.inputs[kProjected]).shape;
    steps_ = shape[0];
    batch_ = shape[1];
    hidden_ = emitter_.operand(call.inputs[kWeights]).shape[1];
    gates_ = cell_ == "RNN" ? 1 : cell_ == "GRU" ? 3 : 4;
    backward_ = call.attributes.get_int("backward", 0) != 0;
    before_reset_ = call.attributes.get_int("linear_before_reset", 0) != 0;
    states_ = part(call.result, 0, {steps_, batch_, hidden_});
    previous_ = previous();
  }

  std::vector<Ref> gradients() {
    std::vector<Ref> found = no_gradients(call_);
    if (steps_ * batch_ * hidden_ == 0) {
      for (std::size_t i = 0; i < found.size(); ++i)
        if (needs(call_, i)) found[i] = zeros(emitter_, dtype(), emitter_.operand(call_.inputs[i]).shape);
      return found;
    }
    if (cell_ == "RNN") gate_values_ = states_;
    if (cell_ == "LSTM") gate_values_ = f_.add(input(kProjected), product(previous_, input(kWeights)));
    if (cell_ == "GRU") make_gru_gates();
    const Ref flat = emitter_.one("RecurrentGradient",
                                  {gate_values_, input(kWeights), call_.gradient, cell_ == "GRU" ? previous_ : kAbsent,
                                   candidate_, input(kCell), input(kPeephole), input(kLens)},
                                  call_.attributes);
    const std::int64_t state_size = batch_ * hidden_, all = steps_ * gates_ * state_size;
    const Ref sums = part(flat, 0, {steps_, batch_, gates_ * hidden_});
    const auto set = [&](std::size_t index, auto&& make) {
      if (needs(call_, index)) found[index] = make();
    };
    set(kProjected, [&] { return sums; });
    set(kWeights, [&] { return of_weights(sums); });
    set(kState, [&] { return part(flat, all, {batch_, hidden_}); });
    set(kCell, [&] { return part(flat, all + state_size, {batch_, hidden_}); });
    set(kNewBias, [&] {
      return emitter_.one("ReduceSum", {f_.mul(gate(sums, 2, 3), gate(gate_values_, 1, 2))},
                          {{"axes", Dims{0, 1}}, {"keepdims", std::int64_t{0}}});
    });
    set(kPeephole, [&] { return part(flat, all + 2 * state_size, {3 * hidden_}); });
    return found;
  }

 private:
  enum : std::size_t { kProjected, kWeights, kState, kCell, kNewBias, kPeephole, kLens };

  Ref input(std::size_t index) const { return index < call_.inputs.size() ? call_.inputs[index] : kAbsent; }
  DType dtype() const { return emitter_.operand(call_.gradient).dtype; }

  // Return elements of a flat tensor from `begin`, in a shape.
  Ref part(Ref flat, std::int64_t begin, Dims shape) const {
    const std::int64_t count = element_count(shape);
    return reshape(emitter_, sliced(emitter_, flat, 0, begin, begin + count), std::move(shape));
  }
  // Return blocks [first, last) of h elements of the last axis.
  Ref gate(Ref gates, std::int64_t first, std::int64_t last) const {
    return sliced(emitter_, gates, 2, first * hidden_, last * hidden_);
  }
  Ref weight_rows(std::int64_t first, std::int64_t last) const {
    return sliced(emitter_, input(kWeights), 0, first * hidden_, last * hidden_);
  }
  // x (steps, batch, h) @ weights (n, h) transposed
  Ref product(Ref x, Ref weights) const { return emitter_.one("MatMul", {x, transposed(emitter_, weights, {1, 0})}); }
  Ref joined(Ref a, Ref b, std::int64_t axis) const { return emitter_.one("Concat", {a, b}, {{"axis", axis}}); }

  // Return the state before each step. Going backwards, a sequence begins at its own end: its states behind that are 0, and the
  // state before its first step is the initial one.
  Ref previous() const {
    const Ref first = reshape(emitter_, input(kState), {1, batch_, hidden_});
    if (steps_ <= 1) return first;
    if (!backward_) return joined(first, sliced(emitter_, states_, 0, 0, steps_ - 1), 0);
    const Ref shifted = joined(sliced(emitter_, states_, 0, 1, steps_), first, 0);
    if (input(kLens) == kAbsent) return shifted;
    Dims next(static_cast<std::size_t>(steps_));
    for (std::int64_t step = 0; step < steps_; ++step) next[static_cast<std::size_t>(step)] = step + 1;
    const Ref lens = reshape(emitter_, cast(emitter_, input(kLens), DType::i64), {1, batch_, 1});
    return f_.where(f_.less(whole(emitter_, next, {steps_, 1, 1}), lens), shifted, first);
  }

  void make_gru_gates() {
    const Ref projected = input(kProjected);
    const Ref both = f_.unary("Sigmoid", f_.add(gate(projected, 0, 2), product(previous_, weight_rows(0, 2))));
    const Ref reset = gate(both, 1, 2);
    Ref made;
    if (before_reset_) {
      candidate_ = product(previous_, weight_rows(2, 3));
      if (input(kNewBias) != kAbsent) candidate_ = f_.add(candidate_, input(kNewBias));
      made = f_.mul(reset, candidate_);
    } else {
      reset_state_ = f_.mul(reset, previous_);
      made = product(reset_state_, weight_rows(2, 3));
    }
    gate_values_ = joined(both, f_.unary("Tanh", f_.add(gate(projected, 2, 3), made)), 2);
  }

  // sums (steps * batch, n) transposed @ states (steps * batch, h)
  Ref by_states(Ref sums, Ref states) const {
    const std::int64_t rows = steps_ * batch_, width = emitter_.operand(sums).shape[2];
    return emitter_.one("MatMul", {transposed(emitter_, reshape(emitter_, sums, {rows, width}), {1, 0}),
                                   reshape(emitter_, states, {rows, hidden_})});
  }
  Ref of_weights(Ref sums) const {
    if (cell_ != "GRU") return by_states(sums, previous_);
    const Ref made = gate(sums, 2, 3);
    if (before_reset_) return by_states(joined(gate(sums, 0, 2), f_.mul(made, gate(gate_values_, 1, 2)), 2), previous_);
    return joined(by_states(gate(sums, 0, 2), previous_), by_states(made, reset_state_), 0);
  }

  const GradientCall& call_;
  Emitter& emitter_;
  Formula f_;
  std::string cell_;
  std::int64_t steps_ = 0, batch_ = 0, hidden_ = 0, gates_ = 0;
  bool backward_ = false, before_reset_ = false;
  Ref states_ = kAbsent, previous_ = kAbsent;
  Ref gate_values_ = kAbsent, candidate_ = kAbsent, reset_state_ = kAbsent;  // operands of the sequential part
};

}  // namespace

std::vector<Ref> of_recurrent_steps(const GradientCall& call) { return Recurrence(call).gradients(); }

}  // namespace walle::gradient
