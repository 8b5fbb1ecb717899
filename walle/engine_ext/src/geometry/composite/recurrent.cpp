// RNN, GRU and LSTM, unrolled over their sequence. The input's part of all gates is one product over all steps; each step
// computes the state's part. The steps also have a fused form, the atomic operator RecurrentSteps (atomic/recurrent.cpp), which
// is used where it computes the same: with the default activations and no clip. The engine's own attribute algorithm =
// "decomposed" selects the decomposition, which defines the operator.
//
// Shapes, in ONNX's layout 0 (layout 1 has the batch in front): X (steps, batch, input), W (directions, gates * h, input),
// R (directions, gates * h, h), B (directions, 2 * gates * h), sequence_lens (batch), initial states (directions, batch, h),
// P (directions, 3 * h); outputs Y (steps, directions, batch, h), Y_h and Y_c (directions, batch, h).
#include <algorithm>

#include "geometry/composite/composite.h"
#include "geometry/composite/expressions.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

enum class Kind { rnn, gru, lstm };

struct Activation {
  std::string op;
  Attributes attributes;
};

// The operands of one direction; absent if they were left out.
struct Direction {
  bool backward;
  Ref projected;    // (steps, batch, gates * h): X @ W^T and every bias that can be added in advance
  Ref weights;      // R: (gates * h, h)
  Ref new_bias;     // bias of a GRU with linear_before_reset: (h)
  Ref state, cell;  // (batch, h)
  Ref peephole;     // (3 * h)
  std::vector<Activation> activations;
};

struct Result {
  Ref all, state, cell;  // (steps, batch, h), (batch, h), (batch, h)
};

class Recurrence {
 public:
  Recurrence(Kind kind, Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes)
      : kind_(kind),
        emitter_(emitter),
        inputs_(inputs),
        gates_(kind == Kind::rnn   ? 1
               : kind == Kind::gru ? 3
                                   : 4) {
    const std::string direction = attributes.get_string("direction", "forward");
    if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
      throw Error(ErrorKind::model, "direction is '" + direction + "'; known are forward, reverse and bidirectional");
    directions_ = direction == "bidirectional" ? 2 : 1;
    backward_first_ = direction == "reverse";
    batch_first_ = attributes.get_int("layout", 0) != 0;
    clip_ = attributes.get_float("clip", 0);
    before_reset_ = attributes.get_int("linear_before_reset", 0) != 0;
    coupled_ = attributes.get_int("input_forget", 0) != 0;
    decomposed_ = attributes.get_string("algorithm", "") == "decomposed";
    read_shapes(attributes.get_int("hidden_size", -1));
    read_activations(attributes);
  }

  std::vector<Ref> run(int outputs) {
    const Ref x = batch_first_ ? transposed(inputs_[0], {1, 0, 2}) : inputs_[0];
    std::vector<Ref> all, states, cells;
    for (std::int64_t d = 0; d < directions_; ++d) {
      const Direction direction = prepare(x, d);
      const Result result = fused() ? steps_at_once(direction) : steps(direction);
      all.push_back(result.all);
      states.push_back(result.state);
      cells.push_back(result.cell);
    }
    std::vector<Ref> results{emitter_.one("Stack", all, {{"axis", std::int64_t{1}}})};
    if (batch_first_) results[0] = transposed(results[0], {2, 0, 1, 3});
    const Attributes joined{{"axis", std::int64_t{batch_first_ ? 1 : 0}}};
    if (outputs > 1) results.push_back(emitter_.one("Stack", states, joined));
    if (outputs > 2 && kind_ == Kind::lstm) results.push_back(emitter_.one("Stack", cells, joined));
    return results;
  }

 private:
  bool given(std::size_t index) const { return index < inputs_.size() && inputs_[index] != kAbsent; }
  Ref input(std::size_t index) const { return given(index) ? inputs_[index] : kAbsent; }

  Ref one(std::string_view op, std::vector<Ref> inputs) { return emitter_.one(op, std::move(inputs)); }
  Ref slice(Ref x, std::int64_t axis, std::int64_t start, std::int64_t end) {
    return emitter_.one("Slice", {x}, {{"starts", Dims{start}}, {"ends", Dims{end}}, {"axes", Dims{axis}}});
  }
  // Return x at `index` of `axis`, without that axis.
  Ref part(Ref x, std::int64_t axis, std::int64_t index) {
    return emitter_.one("Squeeze", {slice(x, axis, index, index + 1)}, {{"axes", Dims{axis}}});
  }
  Ref transposed(Ref x, Dims order) { return emitter_.one("Transpose", {x}, {{"perm", std::move(order)}}); }
  Ref gate(Ref gates, std::int64_t index) { return slice(gates, 1, index * hidden_, (index + 1) * hidden_); }

  void read_shapes(std::int64_t hidden_size) {
    const Operand x = emitter_.operand(inputs_[0]);
    const Dims r = emitter_.operand(inputs_[2]).shape, w = emitter_.operand(inputs_[1]).shape;
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::shape, what + "; X has shape " + to_string(x.shape) + ", W " + to_string(w) + ", R " + to_string(r));
    };
    if (x.shape.size() != 3 || r.size() != 3 || w.size() != 3) refuse("X, W and R need three dimensions");
    dtype_ = x.dtype;
    steps_ = x.shape[batch_first_ ? 1 : 0];
    batch_ = x.shape[batch_first_ ? 0 : 1];
    hidden_ = r[2];
    if (hidden_size >= 0 && hidden_size != hidden_) refuse("hidden_size is " + std::to_string(hidden_size));
    if (w[0] != directions_ || r != Dims{directions_, gates_ * hidden_, hidden_} || w[1] != gates_ * hidden_ ||
        w[2] != x.shape[2])
      refuse("the weights do not fit " + std::to_string(directions_) + " directions of " + std::to_string(gates_) + " gates");
    if (steps_ < 1) refuse("a sequence without steps");
    const auto check = [&](std::size_t index, const char* name, const Dims& expected) {
      if (given(index) && emitter_.operand(inputs_[index]).shape != expected)
        throw Error(ErrorKind::shape, std::string(name) + " has shape " + to_string(emitter_.operand(inputs_[index]).shape) +
                                          ", not " + to_string(expected));
    };
    const Dims state = batch_first_ ? Dims{batch_, directions_, hidden_} : Dims{directions_, batch_, hidden_};
    check(3, "B", {directions_, 2 * gates_ * hidden_});
    check(4, "sequence_lens", {batch_});
    check(5, "initial_h", state);
    if (kind_ == Kind::lstm) {
      check(6, "initial_c", state);
      check(7, "P", {directions_, 3 * hidden_});
    }
  }

  void read_activations(const Attributes& attributes) {
    const Texts defaults = kind_ == Kind::rnn   ? Texts{"Tanh"}
                           : kind_ == Kind::gru ? Texts{"Sigmoid", "Tanh"}
                                                : Texts{"Sigmoid", "Tanh", "Tanh"};
    Texts names;
    for (std::int64_t d = 0; d < directions_; ++d) names.insert(names.end(), defaults.begin(), defaults.end());
    const Texts usual = names;
    if (auto chosen = attributes.get_strings("activations")) names = *std::move(chosen);
    if (names.size() != usual.size())
      throw Error(ErrorKind::model,
                  "activations names " + std::to_string(names.size()) + " functions, not " + std::to_string(usual.size()));
    usual_ = names == usual;
    const auto alphas = attributes.get_floats("activation_alpha").value_or(std::vector<double>{});
    const auto betas = attributes.get_floats("activation_beta").value_or(std::vector<double>{});
    std::size_t alpha = 0, beta = 0;
    const auto next = [](const std::vector<double>& list, std::size_t& at, double fallback) {
      return at < list.size() ? list[at++] : fallback;
    };
    for (const std::string& name : names) {
      if (name == "Tanh" || name == "Sigmoid" || name == "Relu" || name == "Softsign" || name == "Softplus") {
        activations_.push_back({name, {}});
      } else if (name == "LeakyRelu" || name == "ThresholdedRelu" || name == "Elu") {
        activations_.push_back({name, {{"alpha", next(alphas, alpha, name == "LeakyRelu" ? 0.01 : 1.0)}}});
      } else if (name == "HardSigmoid" || name == "Affine" || name == "ScaledTanh") {
        const double a = next(alphas, alpha, name == "HardSigmoid" ? 0.2 : 1.0), b = next(betas, beta,
                                                                                          name == "HardSigmoid" ? 0.5
                                                                                          : name == "Affine"    ? 0.0
                                                                                                                : 1.0);
        activations_.push_back({name, {{"alpha", a}, {"beta", b}}});
      } else {
        throw Error(ErrorKind::unsupported, "activation '" + name + "'");
      }
    }
  }

  Ref activated(const Direction& direction, std::size_t index, Ref x) {
    const Activation& activation = direction.activations[index];
    if (clip_ > 0) x = one("Clip", {x, emitter_.number(-clip_, dtype_), emitter_.number(clip_, dtype_)});
    if (activation.op != "Affine" && activation.op != "ScaledTanh")
      return emitter_.one(activation.op, {x}, activation.attributes);
    const Ref alpha = emitter_.number(activation.attributes.get_float("alpha", 1), dtype_),
              beta = emitter_.number(activation.attributes.get_float("beta", 0), dtype_);
    if (activation.op == "Affine") return one("Add", {one("Mul", {x, alpha}), beta});
    return one("Mul", {one("Tanh", {one("Mul", {x, beta})}), alpha});
  }

  Direction prepare(Ref x, std::int64_t d) {
    Direction result{};
    result.backward = backward_first_ != (d == 1);
    result.weights = part(inputs_[2], 0, d);
    result.projected = one("MatMul", {x, transposed(part(inputs_[1], 0, d), {1, 0})});
    result.new_bias = result.peephole = result.cell = kAbsent;
    if (given(3)) {
      const Ref bias = part(inputs_[3], 0, d);
      const std::int64_t width = gates_ * hidden_;
      const Ref of_input = slice(bias, 0, 0, width), of_state = slice(bias, 0, width, 2 * width);
      if (kind_ == Kind::gru && before_reset_) {
        result.new_bias = slice(of_state, 0, 2 * hidden_, width);
        const Ref both = one("Add", {slice(of_input, 0, 0, 2 * hidden_), slice(of_state, 0, 0, 2 * hidden_)});
        const Ref joined = emitter_.one("Concat", {both, slice(of_input, 0, 2 * hidden_, width)}, {{"axis", std::int64_t{0}}});
        result.projected = one("Add", {result.projected, joined});
      } else {
        result.projected = one("Add", {result.projected, one("Add", {of_input, of_state})});
      }
    }
    const auto state = [&](std::size_t index) {
      if (given(index)) return part(inputs_[index], batch_first_ ? 1 : 0, d);
      return emitter_.one("Expand", {emitter_.number(0, dtype_)}, {{"shape", Dims{batch_, hidden_}}});
    };
    result.state = state(5);
    if (kind_ == Kind::lstm) {
      result.cell = state(6);
      if (given(7)) result.peephole = part(inputs_[7], 0, d);
    }
    const auto per = static_cast<std::ptrdiff_t>(activations_.size()) / directions_;
    result.activations.assign(activations_.begin() + d * per, activations_.begin() + (d + 1) * per);
    return result;
  }

  bool fused() const { return usual_ && clip_ <= 0 && !decomposed_ && (dtype_ == DType::f32 || dtype_ == DType::f64); }

  // One atomic operator for all steps; its result holds all states, the last state and the last cell, in this order.
  Result steps_at_once(const Direction& direction) {
    constexpr const char* names[] = {"RNN", "GRU", "LSTM"};
    const Ref flat = emitter_.one("RecurrentSteps",
                                  {direction.projected, direction.weights, direction.state, direction.cell, direction.new_bias,
                                   direction.peephole, input(4)},
                                  {{"cell", std::string(names[static_cast<int>(kind_)])},
                                   {"backward", std::int64_t{direction.backward}},
                                   {"linear_before_reset", std::int64_t{before_reset_}},
                                   {"input_forget", std::int64_t{coupled_}}});
    std::int64_t at = 0;
    const auto next = [&](Dims shape) {
      const std::int64_t begin = at;
      at += element_count(shape);
      return emitter_.one("Reshape", {slice(flat, 0, begin, at)}, {{"shape", std::move(shape)}, {"allowzero", std::int64_t{1}}});
    };
    Result result{};
    result.all = next({steps_, batch_, hidden_});
    result.state = next({batch_, hidden_});
    result.cell = kind_ == Kind::lstm ? next({batch_, hidden_}) : kAbsent;
    return result;
  }

  Result steps(const Direction& direction) {
    const Ref weights = transposed(direction.weights, {1, 0});
    Ref state = direction.state, cell = direction.cell;
    std::vector<Ref> states(static_cast<std::size_t>(steps_));
    const Ref zero = emitter_.number(0, dtype_);
    for (std::int64_t i = 0; i < steps_; ++i) {
      const std::int64_t step = direction.backward ? steps_ - 1 - i : i;
      const auto [new_state, new_cell] = kind_ == Kind::rnn ? rnn(direction, part(direction.projected, 0, step), weights, state)
                                         : kind_ == Kind::gru
                                             ? gru(direction, part(direction.projected, 0, step), weights, state)
                                             : lstm(direction, part(direction.projected, 0, step), weights, state, cell);
      Ref& all = states[static_cast<std::size_t>(step)];
      if (!given(4)) {
        all = state = new_state;
        cell = new_cell;
        continue;
      }
      // After a sequence's end its state is unchanged, and Y is 0.
      Tensor now = Tensor::empty(DType::i32, {});
      *now.data<std::int32_t>() = static_cast<std::int32_t>(step);
      const Ref lens = emitter_.one("Cast", {inputs_[4]}, {{"to", std::string("int32")}});
      const Ref going =
          emitter_.one("Unsqueeze", {one("Greater", {lens, emitter_.constant(std::move(now))})}, {{"axes", Dims{1}}});
      state = one("Where", {going, new_state, state});
      if (cell != kAbsent) cell = one("Where", {going, new_cell, cell});
      all = one("Where", {going, new_state, zero});
    }
    return {emitter_.one("Stack", states, {{"axis", std::int64_t{0}}}), state, cell};
  }

  std::pair<Ref, Ref> rnn(const Direction& direction, Ref now, Ref weights, Ref state) {
    return {activated(direction, 0, one("Add", {now, one("MatMul", {state, weights})})), kAbsent};
  }

  // Gates in the order update, reset, new.
  std::pair<Ref, Ref> gru(const Direction& direction, Ref now, Ref weights, Ref state) {
    const Ref gate_weights = slice(weights, 1, 0, 2 * hidden_), new_weights = slice(weights, 1, 2 * hidden_, 3 * hidden_);
    const Ref gates = activated(direction, 0, one("Add", {slice(now, 1, 0, 2 * hidden_), one("MatMul", {state, gate_weights})}));
    const Ref update = gate(gates, 0), reset = gate(gates, 1);
    Ref candidate;
    if (before_reset_) {
      candidate = one("MatMul", {state, new_weights});
      if (direction.new_bias != kAbsent) candidate = one("Add", {candidate, direction.new_bias});
      candidate = one("Mul", {reset, candidate});
    } else {
      candidate = one("MatMul", {one("Mul", {reset, state}), new_weights});
    }
    candidate = activated(direction, 1, one("Add", {gate(now, 2), candidate}));
    const Ref rest = one("Sub", {emitter_.number(1, dtype_), update});
    return {one("Add", {one("Mul", {rest, candidate}), one("Mul", {update, state})}), kAbsent};
  }

  // Gates in the order input, output, forget, cell.
  std::pair<Ref, Ref> lstm(const Direction& direction, Ref now, Ref weights, Ref state, Ref cell) {
    const Ref gates = one("Add", {now, one("MatMul", {state, weights})});
    const auto peeped = [&](std::int64_t index, std::int64_t peephole, Ref seen) {
      const Ref value = gate(gates, index);
      if (direction.peephole == kAbsent) return value;
      return one("Add", {value, one("Mul", {seen, slice(direction.peephole, 0, peephole * hidden_, (peephole + 1) * hidden_)})});
    };
    const Ref in = activated(direction, 0, peeped(0, 0, cell));
    const Ref forget = coupled_ ? one("Sub", {emitter_.number(1, dtype_), in}) : activated(direction, 0, peeped(2, 2, cell));
    const Ref candidate = activated(direction, 1, gate(gates, 3));
    const Ref next = one("Add", {one("Mul", {forget, cell}), one("Mul", {in, candidate})});
    const Ref out = activated(direction, 0, peeped(1, 1, next));
    Activation last = direction.activations[2];
    Direction unclipped = direction;
    unclipped.activations = {last};
    const double clip = std::exchange(clip_, 0.0);  // the cell itself is not clipped
    const Ref shown = activated(unclipped, 0, next);
    clip_ = clip;
    return {one("Mul", {out, shown}), next};
  }

  Kind kind_;
  Emitter& emitter_;
  std::span<const Ref> inputs_;
  std::int64_t gates_, directions_ = 1, steps_ = 0, batch_ = 0, hidden_ = 0;
  DType dtype_ = DType::f32;
  bool backward_first_ = false, batch_first_ = false, before_reset_ = false, coupled_ = false, usual_ = true, decomposed_ = false;
  double clip_ = 0;
  std::vector<Activation> activations_;  // those of the first direction, then those of the second
};

}  // namespace

std::vector<Ref> decompose_gru(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  return Recurrence(Kind::gru, emitter, inputs, attributes).run(outputs);
}

std::vector<Ref> decompose_lstm(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  return Recurrence(Kind::lstm, emitter, inputs, attributes).run(outputs);
}

std::vector<Ref> decompose_rnn(Emitter& emitter, std::span<const Ref> inputs, const Attributes& attributes, int outputs) {
  return Recurrence(Kind::rnn, emitter, inputs, attributes).run(outputs);
}

}  // namespace walle
