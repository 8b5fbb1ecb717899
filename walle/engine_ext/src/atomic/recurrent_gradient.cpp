// RecurrentGradient: the steps of one direction of an RNN, GRU or LSTM backwards in one call, the sequential part of the gradient
// of RecurrentSteps (atomic/recurrent.cpp). The products over all steps at once are around it (operators/gradient/recurrent.cpp).
//
// Inputs, some of them for one cell type alone: gates (steps, batch, gates * h), of an RNN its states, of a GRU its gates and new
// states, of an LSTM its sums before their activations; weights (gates * h, h); gradient, of the flat result of RecurrentSteps;
// previous (steps, batch, h), the state before each step (GRU); candidate (steps, batch, h), the product that the reset gate
// multiplies (GRU with linear_before_reset); cell (batch, h) and peephole (3 * h) (LSTM); sequence_lens (batch).
// Output, flat: the gradients of the sums before the activations (steps, batch, gates * h), of the state (batch, h), and of an
// LSTM those of the cell (batch, h) and the peephole (3 * h).
#include <algorithm>
#include <cstring>

#include "atomic/atomic.h"
#include "atomic/product_pieces.h"
#include "atomic/recurrent.h"
#include "atomic/scratch.h"

namespace walle {

namespace {

// Inputs of the operator.
struct Backward {
  enum : std::size_t { kGates, kWeights, kGradient, kPrevious, kCandidate, kCell, kPeephole, kLens };
};

template <class T>
class RecurrentGradientStep final : public HostStep {
 public:
  explicit RecurrentGradientStep(const StepRequest& request)
      : steps_(request.inputs[Backward::kGates].shape[0]),
        batch_(request.inputs[Backward::kGates].shape[1]),
        gates_(recurrent_gates(request.attributes)),
        hidden_(request.inputs[Backward::kGates].shape[2] / gates_),
        backward_(request.attributes.get_int("backward", 0) != 0),
        before_reset_(request.attributes.get_int("linear_before_reset", 0) != 0),
        coupled_(request.attributes.get_int("input_forget", 0) != 0) {
    const auto has = [&](std::size_t index) { return index < request.inputs.size() && !request.inputs[index].absent; };
    has_peephole_ = has(Backward::kPeephole);
    has_lens_ = has(Backward::kLens);
    wide_lens_ = has_lens_ && request.inputs[Backward::kLens].dtype == DType::i64;
    const auto type = static_cast<std::size_t>(compute_index(request.result.dtype));
    sigmoid_ = request.table.unary[static_cast<std::size_t>(UnaryOp::Sigmoid)][type];
    tanh_ = request.table.unary[static_cast<std::size_t>(UnaryOp::Tanh)][type];
    gemm_ = request.table.gemm[type];
    state_ = batch_ * hidden_;
    product_bytes_ = scratch_part(gemm_.scratch_bytes(batch_, hidden_, gates_ * hidden_));
    // What a step's products pass back, a row of activated cells or what the reset gate's product passes back, the operand of a
    // GRU's product, and the cells of all steps.
    const std::int64_t numbers = 2 * state_ + gates_ * state_ + (gates_ == 4 ? (steps_ + 1) * state_ : 0);
    scratch_bytes_ = product_bytes_ + static_cast<std::size_t>(numbers) * sizeof(T);
  }

  std::string_view algorithm() const noexcept override { return "fused steps"; }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto in = [&](std::size_t index) { return reinterpret_cast<const T*>(inputs[index]); };
    Memory memory;
    memory.product = scratch;
    memory.back = reinterpret_cast<T*>(scratch + product_bytes_);
    memory.reset_back = memory.back + state_;
    memory.sums = memory.reset_back + state_;
    memory.cells = memory.sums + gates_ * state_;
    T* sums = reinterpret_cast<T*>(output);
    T* state = sums + steps_ * gates_ * state_;
    T* cell = state + state_;
    T* peephole = cell + state_;
    const T* gradient = in(Backward::kGradient);
    std::copy_n(gradient + steps_ * state_, state_, state);
    StopPoll poll;
    if (gates_ == 4) {
      std::copy_n(gradient + (steps_ + 1) * state_, state_, cell);
      std::fill_n(peephole, 3 * hidden_, T{0});
      if (!cells_forward(inputs, sums, memory.cells, poll)) return;
    }
    for (std::int64_t i = steps_; i-- > 0;) {
      if (!poll.proceed(kRowWork * batch_ * gates_ * hidden_)) return;
      const std::int64_t step = step_of(i);
      T* own = sums + step * gates_ * state_;
      for (std::int64_t row = 0; row < batch_; ++row) {
        T *to = own + row * gates_ * hidden_, *back = state + row * hidden_;
        if (!is_active(inputs, step, row)) {
          std::fill_n(to, gates_ * hidden_, T{0});
          continue;
        }
        const T* of_all = gradient + step * state_ + row * hidden_;
        const T* gates = in(Backward::kGates) + (step * batch_ + row) * gates_ * hidden_;
        for (std::int64_t j = 0; j < hidden_; ++j) back[j] += of_all[j];
        if (gates_ == 1)
          for (std::int64_t j = 0; j < hidden_; ++j) to[j] = back[j] * (1 - gates[j] * gates[j]);
        else if (gates_ == 3)
          gru_row(gates, in(Backward::kPrevious) + step * state_ + row * hidden_, back, to);
        else
          lstm_row(to, memory.cells + i * state_ + row * hidden_, has_peephole_ ? in(Backward::kPeephole) : nullptr, back,
                   cell + row * hidden_, peephole, memory.reset_back);
      }
      if (gates_ == 3)
        gru_products(inputs, step, own, state, memory, poll);
      else
        product(own, gates_, in(Backward::kWeights), gates_, memory.back, memory.product, poll);
      add_back(inputs, step, memory.back, state);
    }
  }

 private:
  static constexpr std::int64_t kRowWork = 8;  // passes over the gates, beside the products

  struct Memory {
    std::byte* product;
    T *back, *reset_back, *sums, *cells;
  };

  std::int64_t step_of(std::int64_t i) const noexcept { return backward_ ? steps_ - 1 - i : i; }
  bool is_active(std::byte* const* inputs, std::int64_t step, std::int64_t row) const noexcept {
    if (!has_lens_) return true;
    return step < (wide_lens_ ? reinterpret_cast<const std::int64_t*>(inputs[Backward::kLens])[row]
                              : reinterpret_cast<const std::int32_t*>(inputs[Backward::kLens])[row]);
  }

  // out (batch, h) = the first `used` blocks of h columns of sums (batch, blocks * h) @ weights (used * h, h)
  void product(const T* sums, std::int64_t blocks, const T* weights, std::int64_t used, T* out, std::byte* scratch,
               StopPoll& poll) const noexcept {
    GemmArgs args;
    args.m = batch_;
    args.n = hidden_;
    args.k = used * hidden_;
    args.a = sums;
    args.a_row = blocks * hidden_;
    args.a_col = 1;
    args.b = weights;
    args.b_row = hidden_;
    args.b_col = 1;
    args.out = out;
    args.out_row = hidden_;
    args.scratch = scratch;
    run_product(gemm_, args, sizeof(T), poll);
  }

  // The gradient of the state of active rows becomes what their step left in `state` (GRU; 0 for the others) and `more`.
  void add_back(std::byte* const* inputs, std::int64_t step, const T* more, T* state) const noexcept {
    for (std::int64_t row = 0; row < batch_; ++row) {
      if (!is_active(inputs, step, row)) continue;
      T* to = state + row * hidden_;
      for (std::int64_t j = 0; j < hidden_; ++j) to[j] = (gates_ == 3 ? to[j] : T{0}) + more[row * hidden_ + j];
    }
  }

  // Gates (update z, reset r, new n), n as a state. Writes the gradients of the sums of z and n, and leaves the part of the
  // previous state that z keeps in `back`.
  void gru_row(const T* gates, const T* previous, T* back, T* to) const noexcept {
    const T *update = gates, *made = gates + 2 * hidden_;
    for (std::int64_t j = 0; j < hidden_; ++j) {
      const T z = update[j], n = made[j];
      to[j] = back[j] * (previous[j] - n) * z * (1 - z);
      to[2 * hidden_ + j] = back[j] * (1 - z) * (1 - n * n);
      back[j] *= z;
    }
  }

  // The gradients of the sums of the reset gate, and what the products of all gates pass to the previous state, in memory.back.
  void gru_products(std::byte* const* inputs, std::int64_t step, T* own, T* state, const Memory& memory,
                    StopPoll& poll) const noexcept {
    const T* weights = reinterpret_cast<const T*>(inputs[Backward::kWeights]);
    const T* gates = reinterpret_cast<const T*>(inputs[Backward::kGates]) + step * gates_ * state_;
    const T* factor =
        reinterpret_cast<const T*>(inputs[before_reset_ ? Backward::kCandidate : Backward::kPrevious]) + step * state_;
    if (!before_reset_)
      product(own + 2 * hidden_, 3, weights + 2 * hidden_ * hidden_, 1, memory.reset_back, memory.product, poll);
    for (std::int64_t row = 0; row < batch_; ++row) {
      T *to = own + row * 3 * hidden_, *sums = memory.sums + row * 3 * hidden_, *reset_back = memory.reset_back + row * hidden_;
      const T* reset = gates + row * 3 * hidden_ + hidden_;
      const bool active = is_active(inputs, step, row);
      for (std::int64_t j = 0; j < hidden_; ++j) {
        const T r = reset[j], of_new = to[2 * hidden_ + j], of_reset = before_reset_ ? of_new : reset_back[j];
        to[hidden_ + j] = active ? of_reset * factor[row * hidden_ + j] * r * (1 - r) : T{0};
        sums[j] = to[j];
        sums[hidden_ + j] = to[hidden_ + j];
        sums[2 * hidden_ + j] = of_new * r;
        if (!before_reset_ && active) state[row * hidden_ + j] += reset_back[j] * r;
      }
    }
    product(memory.sums, 3, weights, before_reset_ ? 3 : 2, memory.back, memory.product, poll);
  }

  // Writes the activated gates of all steps to `gates`, and the cells before each step and behind the last to `cells`, in the
  // order of computing.
  bool cells_forward(std::byte* const* inputs, T* gates, T* cells, StopPoll& poll) const noexcept {
    std::copy_n(reinterpret_cast<const T*>(inputs[Backward::kGates]), steps_ * 4 * state_, gates);
    std::copy_n(reinterpret_cast<const T*>(inputs[Backward::kCell]), state_, cells);
    const T* peephole = has_peephole_ ? reinterpret_cast<const T*>(inputs[Backward::kPeephole]) : nullptr;
    for (std::int64_t i = 0; i < steps_; ++i, cells += state_) {
      if (!poll.proceed(kRowWork * 4 * state_)) return false;
      const std::int64_t step = step_of(i);
      for (std::int64_t row = 0; row < batch_; ++row) {
        T* own = gates + (step * batch_ + row) * 4 * hidden_;
        const T* cell = cells + row * hidden_;
        T* next = cells + state_ + row * hidden_;
        if (!is_active(inputs, step, row)) {
          std::copy_n(cell, hidden_, next);
          continue;
        }
        T *in = own, *out = own + hidden_, *forget = own + 2 * hidden_, *candidate = own + 3 * hidden_;
        for (std::int64_t j = 0; peephole != nullptr && j < hidden_; ++j) {
          in[j] += cell[j] * peephole[j];
          forget[j] += cell[j] * peephole[2 * hidden_ + j];
        }
        activate(sigmoid_, in, 1);
        activate(sigmoid_, forget, 1);
        activate(tanh_, candidate, 1);
        for (std::int64_t j = 0; j < hidden_; ++j) {
          if (coupled_) forget[j] = 1 - in[j];
          next[j] = forget[j] * cell[j] + in[j] * candidate[j];
          if (peephole != nullptr) out[j] += next[j] * peephole[hidden_ + j];
        }
        activate(sigmoid_, out, 1);
      }
    }
    return true;
  }
  void activate(UnaryFn function, T* row, std::int64_t blocks) const noexcept {
    function(reinterpret_cast<const std::byte*>(row), 1, reinterpret_cast<std::byte*>(row), blocks * hidden_);
  }

  // Gates (input, output, forget, cell), activated, become the gradients of their sums; `cell` that of the cell before the step.
  void lstm_row(T* gates, const T* cells, const T* peephole, const T* back, T* cell, T* of_peephole, T* shown) const noexcept {
    const T* next = cells + state_;
    tanh_(reinterpret_cast<const std::byte*>(next), 1, reinterpret_cast<std::byte*>(shown), hidden_);
    for (std::int64_t j = 0; j < hidden_; ++j) {
      const T in = gates[j], out = gates[hidden_ + j], forget = gates[2 * hidden_ + j], candidate = gates[3 * hidden_ + j];
      const T of_out = back[j] * shown[j] * out * (1 - out);
      T of_cell = cell[j] + back[j] * out * (1 - shown[j] * shown[j]);
      if (peephole != nullptr) of_cell += of_out * peephole[hidden_ + j];
      const T by_forget = of_cell * cells[j];
      const T of_in = (of_cell * candidate - (coupled_ ? by_forget : T{0})) * in * (1 - in);
      const T of_forget = coupled_ ? T{0} : by_forget * forget * (1 - forget);
      cell[j] = of_cell * forget;
      if (peephole != nullptr) {
        cell[j] += of_in * peephole[j] + of_forget * peephole[2 * hidden_ + j];
        of_peephole[j] += of_in * cells[j];
        of_peephole[hidden_ + j] += of_out * next[j];
        of_peephole[2 * hidden_ + j] += of_forget * cells[j];
      }
      gates[j] = of_in;
      gates[hidden_ + j] = of_out;
      gates[2 * hidden_ + j] = of_forget;
      gates[3 * hidden_ + j] = of_cell * in * (1 - candidate * candidate);
    }
  }

  std::int64_t steps_, batch_, gates_, hidden_, state_ = 0;
  std::size_t product_bytes_ = 0;
  bool backward_, before_reset_, coupled_, has_peephole_ = false, has_lens_ = false, wide_lens_ = false;
  UnaryFn sigmoid_, tanh_;
  Gemm gemm_;
};

}  // namespace

TensorType infer_recurrent_gradient(std::span<const Operand> operands, const Attributes& attributes) {
  const Operand& given = operands[Backward::kGates];
  const std::int64_t gates = recurrent_gates(attributes);
  if (given.dtype != DType::f32 && given.dtype != DType::f64)
    throw Error(ErrorKind::dtype, "RecurrentGradient takes float32 or float64, not " + std::string(dtype_name(given.dtype)));
  if (given.absent || given.shape.size() != 3 || given.shape[2] % gates != 0)
    throw Error(ErrorKind::shape, "RecurrentGradient of shape " + to_string(given.shape));
  const std::int64_t steps = given.shape[0], batch = given.shape[1], hidden = given.shape[2] / gates;
  const auto absent = [&](std::size_t index) { return index >= operands.size() || operands[index].absent; };
  const auto check = [&](std::size_t index, bool needed, const Dims& shape) {
    const bool lens = index == Backward::kLens;
    if (absent(index)
            ? needed
            : operands[index].shape != shape || (lens ? operands[index].dtype != DType::i32 && operands[index].dtype != DType::i64
                                                      : operands[index].dtype != given.dtype))
      throw Error(ErrorKind::shape,
                  "input " + std::to_string(index) + " of RecurrentGradient must have shape " + to_string(shape));
  };
  const bool before_reset = attributes.get_int("linear_before_reset", 0) != 0;
  check(Backward::kWeights, true, {gates * hidden, hidden});
  check(Backward::kGradient, true, {(steps + (gates == 4 ? 2 : 1)) * batch * hidden});
  check(Backward::kPrevious, gates == 3, {steps, batch, hidden});
  check(Backward::kCandidate, gates == 3 && before_reset, {steps, batch, hidden});
  check(Backward::kCell, gates == 4, {batch, hidden});
  check(Backward::kPeephole, false, {3 * hidden});
  check(Backward::kLens, false, {batch});
  return {given.dtype, {steps * batch * gates * hidden + batch * hidden + (gates == 4 ? batch * hidden + 3 * hidden : 0)}};
}

std::unique_ptr<HostStep> make_recurrent_gradient(const StepRequest& request) {
  if (request.result.dtype == DType::f64) return std::make_unique<RecurrentGradientStep<double>>(request);
  return std::make_unique<RecurrentGradientStep<float>>(request);
}

}  // namespace walle
