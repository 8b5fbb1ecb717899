// RecurrentSteps: all steps of one direction of an RNN, GRU or LSTM in one call, in memory that stays in the cache. It computes
// the decomposition in geometry/composite/recurrent.cpp; a test compares the two.
//
// Inputs: projected (steps, batch, gates * h), weights (gates * h, h), state (batch, h), and if the cell type has them: cell
// (batch, h), new_bias (h), peephole (3 * h), sequence_lens (batch). Output, flat: all states (steps, batch, h), the last state
// (batch, h) and, for an LSTM, the last cell (batch, h).
#include "atomic/recurrent.h"

#include <cstring>

#include "atomic/atomic.h"
#include "atomic/element_work.h"
#include "atomic/product_pieces.h"
#include "atomic/scratch.h"

namespace walle {

namespace {

enum : std::size_t { kProjected, kWeights, kState, kCell, kNewBias, kPeephole, kLens };

class RecurrentStep final : public HostStep {
 public:
  explicit RecurrentStep(const StepRequest& request) {
    const Dims& shape = request.inputs[kProjected].shape;
    gates_ = recurrent_gates(request.attributes);
    steps_ = shape[0];
    batch_ = shape[1];
    hidden_ = shape[2] / gates_;
    item_ = item_size(request.inputs[kProjected].dtype);
    backward_ = request.attributes.get_int("backward", 0) != 0;
    before_reset_ = request.attributes.get_int("linear_before_reset", 0) != 0;
    coupled_ = request.attributes.get_int("input_forget", 0) != 0;
    const auto has = [&](std::size_t index) { return index < request.inputs.size() && !request.inputs[index].absent; };
    has_bias_ = has(kNewBias);
    has_peephole_ = has(kPeephole);
    has_lens_ = has(kLens);
    wide_lens_ = has_lens_ && request.inputs[kLens].dtype == DType::i64;
    const auto type = static_cast<std::size_t>(compute_index(request.inputs[kProjected].dtype));
    const Table& table = request.table;
    add_ = table.binary[static_cast<std::size_t>(BinaryOp::Add)][type];
    sub_ = table.binary[static_cast<std::size_t>(BinaryOp::Sub)][type];
    mul_ = table.binary[static_cast<std::size_t>(BinaryOp::Mul)][type];
    sigmoid_ = table.unary[static_cast<std::size_t>(UnaryOp::Sigmoid)][type];
    tanh_ = table.unary[static_cast<std::size_t>(UnaryOp::Tanh)][type];
    gemm_ = table.gemm[type];
    const std::size_t product =
        std::max(gemm_.scratch_bytes(batch_, gates_ * hidden_, hidden_), gemm_.scratch_bytes(batch_, hidden_, hidden_));
    is_long_ = batch_ * gates_ * hidden_ * hidden_ > StopPoll::kInterval;
    gate_bytes_ = scratch_part(bytes(batch_ * gates_ * hidden_));
    row_bytes_ = scratch_part(bytes(batch_ * hidden_));
    scratch_bytes_ = gate_bytes_ + 2 * row_bytes_ + product;
    if (item_ == sizeof(float))
      reinterpret_cast<float&>(one_) = 1.0f;
    else
      reinterpret_cast<double&>(one_) = 1.0;
  }

  std::string_view algorithm() const noexcept override { return "fused steps"; }

  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    Memory memory{scratch, scratch + gate_bytes_, scratch + gate_bytes_ + row_bytes_, scratch + gate_bytes_ + 2 * row_bytes_};
    std::byte* state = output + bytes(steps_ * batch_ * hidden_);
    std::byte* cell = state + bytes(batch_ * hidden_);
    std::memcpy(state, inputs[kState], bytes(batch_ * hidden_));
    if (gates_ == 4) std::memcpy(cell, inputs[kCell], bytes(batch_ * hidden_));
    StopPoll poll;
    for (std::int64_t i = 0; i < steps_; ++i) {
      if (!poll.proceed(kRowWork * batch_ * gates_ * hidden_)) return;
      const std::int64_t step = backward_ ? steps_ - 1 - i : i;
      const std::byte* projected = inputs[kProjected] + bytes(step * batch_ * gates_ * hidden_);
      std::byte* all = output + bytes(step * batch_ * hidden_);
      if (gates_ == 3)
        gru(inputs, projected, state, all, memory, poll);
      else
        product(state, inputs[kWeights], gates_ * hidden_, memory.gates, memory.product, poll);
      for (std::int64_t row = 0; row < batch_; ++row) {
        std::byte* to = all + bytes(row * hidden_);
        if (has_lens_ && step >= length(inputs[kLens], row)) {
          std::memset(to, 0, bytes(hidden_));
          continue;
        }
        std::byte* gates = memory.gates + bytes(row * gates_ * hidden_);
        const std::byte* own = projected + bytes(row * gates_ * hidden_);
        if (gates_ == 1) {
          add_(own, 1, gates, 1, to, hidden_);
          tanh_(to, 1, to, hidden_);
        } else if (gates_ == 4) {
          add_(own, 1, gates, 1, gates, 4 * hidden_);
          lstm(inputs, gates, cell + bytes(row * hidden_), to, memory.rows);
        }
        std::memcpy(state + bytes(row * hidden_), to, bytes(hidden_));
      }
    }
  }

 private:
  static constexpr std::int64_t kRowWork = 8;  // passes over the gates, beside the products

  struct Memory {
    std::byte *gates, *rows, *more, *product;
  };

  std::size_t bytes(std::int64_t elements) const noexcept { return static_cast<std::size_t>(elements) * item_; }

  std::int64_t length(const std::byte* lens, std::int64_t row) const noexcept {
    if (wide_lens_) return reinterpret_cast<const std::int64_t*>(lens)[row];
    return reinterpret_cast<const std::int32_t*>(lens)[row];
  }

  // out (batch, n) = state (batch, h) @ weights (n, h) transposed
  void product(const std::byte* state, const std::byte* weights, std::int64_t n, std::byte* out, std::byte* scratch,
               StopPoll& poll) const noexcept {
    GemmArgs args;
    args.m = batch_;
    args.n = n;
    args.k = hidden_;
    args.a = state;
    args.a_row = hidden_;
    args.a_col = 1;
    args.b = weights;
    args.b_row = 1;
    args.b_col = hidden_;
    args.out = out;
    args.out_row = n;
    args.scratch = scratch;
    if (is_long_)
      run_product(gemm_, args, static_cast<std::int64_t>(item_), poll);
    else
      gemm_.run(args);
  }

  // Compute every row's new state for the whole batch, including rows whose sequence has ended, which the caller drops.
  void gru(std::byte* const* inputs, const std::byte* projected, const std::byte* state, std::byte* all, const Memory& memory,
           StopPoll& poll) const noexcept {
    const std::byte* new_weights = inputs[kWeights] + bytes(2 * hidden_ * hidden_);
    product(state, inputs[kWeights], 2 * hidden_, memory.gates, memory.product, poll);
    const auto row_at = [&](std::byte* base, std::int64_t row) { return base + bytes(row * hidden_); };
    for (std::int64_t row = 0; row < batch_; ++row) {
      std::byte* gates = memory.gates + bytes(row * 2 * hidden_);
      add_(projected + bytes(row * 3 * hidden_), 1, gates, 1, gates, 2 * hidden_);
      sigmoid_(gates, 1, gates, 2 * hidden_);
      if (!before_reset_) mul_(gates + bytes(hidden_), 1, state + bytes(row * hidden_), 1, row_at(memory.rows, row), hidden_);
    }
    product(before_reset_ ? state : memory.rows, new_weights, hidden_, memory.more, memory.product, poll);
    for (std::int64_t row = 0; row < batch_; ++row) {
      const std::byte* update = memory.gates + bytes(row * 2 * hidden_);
      std::byte *candidate = row_at(memory.more, row), *to = row_at(all, row), *rest = row_at(memory.rows, row);
      if (before_reset_ && has_bias_) add_(candidate, 1, inputs[kNewBias], 1, candidate, hidden_);
      if (before_reset_) mul_(update + bytes(hidden_), 1, candidate, 1, candidate, hidden_);
      add_(projected + bytes((row * 3 + 2) * hidden_), 1, candidate, 1, candidate, hidden_);
      tanh_(candidate, 1, candidate, hidden_);
      sub_(&one_, 0, update, 1, rest, hidden_);
      mul_(rest, 1, candidate, 1, candidate, hidden_);
      mul_(update, 1, state + bytes(row * hidden_), 1, to, hidden_);
      add_(candidate, 1, to, 1, to, hidden_);
    }
  }

  // One row: gates (input, output, forget, cell) before their activations; updates `cell` and writes the new state to `to`.
  void lstm(std::byte* const* inputs, std::byte* gates, std::byte* cell, std::byte* to, std::byte* row) const noexcept {
    std::byte *in = gates, *out = gates + bytes(hidden_), *forget = gates + bytes(2 * hidden_),
              *candidate = gates + bytes(3 * hidden_);
    const auto peep = [&](std::byte* value, std::int64_t index) {
      if (!has_peephole_) return;
      mul_(cell, 1, inputs[kPeephole] + bytes(index * hidden_), 1, row, hidden_);
      add_(value, 1, row, 1, value, hidden_);
    };
    peep(in, 0);
    sigmoid_(in, 1, in, hidden_);
    if (coupled_) {
      sub_(&one_, 0, in, 1, forget, hidden_);
    } else {
      peep(forget, 2);
      sigmoid_(forget, 1, forget, hidden_);
    }
    tanh_(candidate, 1, candidate, hidden_);
    mul_(forget, 1, cell, 1, cell, hidden_);
    mul_(in, 1, candidate, 1, candidate, hidden_);
    add_(cell, 1, candidate, 1, cell, hidden_);
    peep(out, 1);
    sigmoid_(out, 1, out, hidden_);
    tanh_(cell, 1, to, hidden_);
    mul_(out, 1, to, 1, to, hidden_);
  }

  std::int64_t gates_, steps_, batch_, hidden_;
  std::size_t item_, gate_bytes_, row_bytes_;
  bool backward_, before_reset_, coupled_, has_bias_, has_peephole_, has_lens_, wide_lens_;
  bool is_long_;  // one product, which is then made in pieces
  BinaryFn add_, sub_, mul_;
  UnaryFn sigmoid_, tanh_;
  Gemm gemm_;
  alignas(8) std::byte one_[8] = {};
};

}  // namespace

std::int64_t recurrent_gates(const Attributes& attributes) {
  const std::string cell = attributes.get_string("cell", "");
  if (cell == "RNN") return 1;
  if (cell == "GRU") return 3;
  if (cell == "LSTM") return 4;
  throw Error(ErrorKind::model, "RecurrentSteps has no cell '" + cell + "'");
}

TensorType infer_recurrent_steps(std::span<const Operand> operands, const Attributes& attributes) {
  const Operand& projected = operands[kProjected];
  const std::int64_t gates = recurrent_gates(attributes);
  const auto absent = [&](std::size_t index) { return index >= operands.size() || operands[index].absent; };
  if (projected.dtype != DType::f32 && projected.dtype != DType::f64)
    throw Error(ErrorKind::dtype, "RecurrentSteps takes float32 or float64, not " + std::string(dtype_name(projected.dtype)));
  if (absent(kProjected) || projected.shape.size() != 3 || projected.shape[2] % gates != 0)
    throw Error(ErrorKind::shape, "RecurrentSteps of shape " + to_string(projected.shape));
  const std::int64_t steps = projected.shape[0], batch = projected.shape[1], hidden = projected.shape[2] / gates;
  const auto check = [&](std::size_t index, bool needed, const Dims& shape, bool lens = false) {
    if (absent(index)
            ? needed
            : operands[index].shape != shape || (lens ? operands[index].dtype != DType::i32 && operands[index].dtype != DType::i64
                                                      : operands[index].dtype != projected.dtype))
      throw Error(ErrorKind::shape, "input " + std::to_string(index) + " of RecurrentSteps must have shape " + to_string(shape));
  };
  check(kWeights, true, {gates * hidden, hidden});
  check(kState, true, {batch, hidden});
  check(kCell, gates == 4, {batch, hidden});
  check(kNewBias, false, {hidden});
  check(kPeephole, false, {3 * hidden});
  check(kLens, false, {batch}, true);
  return {projected.dtype, {(steps + (gates == 4 ? 2 : 1)) * batch * hidden}};
}

Work recurrent_work(const Dims& projected, const Dims& weights, DType dtype) {
  // Calls of row kernels in a step beside the product, each of which takes as long as moving some bytes; a product is as many.
  constexpr double kCallBytes = 1200, kProductCalls = 4;
  constexpr double kRowCalls[] = {0, 3, 0, 8, 12};
  // Rows whose products read the weights in place, once each (kernels/generic/gemm-inl.h). For more, each step packs them, one
  // number at a time.
  constexpr double kRowsInPlace = 4, kPackedNumberBytes = 75;
  const auto real = [](std::int64_t x) { return static_cast<double>(x); };
  const double steps = real(projected[0]), batch = real(projected[1]), hidden = real(weights[1]);
  const auto gates = hidden == 0 ? 0 : static_cast<std::size_t>(weights[0] / weights[1]);
  const double numbers = real(weights[0]) * hidden, bytes = numbers * static_cast<double>(item_size(dtype));
  const double calls = gates < std::size(kRowCalls) ? kRowCalls[gates] : 0, products = gates == 3 ? 2 : 1;
  Work work;
  work.panel = 2 * steps * batch * numbers;
  work.lanes = steps * batch * hidden *
               (gates == 1   ? element_operations("Tanh")
                : gates == 3 ? 2 * element_operations("Sigmoid") + element_operations("Tanh")
                             : 3 * element_operations("Sigmoid") + 2 * element_operations("Tanh"));
  if (batch <= kRowsInPlace) {
    // The kernel waits for the weights: that is all of a product of few rows.
    work.panel = 0;
    (bytes <= kNearBytes ? work.moved : work.streamed) += steps * batch * bytes;
  } else {
    work.moved += steps * numbers * kPackedNumberBytes;
    if (bytes > kNearBytes) work.streamed += steps * bytes;
  }
  work.moved += steps * kCallBytes * (batch * calls + kProductCalls * products);
  return work;
}

std::unique_ptr<HostStep> make_recurrent_steps(const StepRequest& request) { return std::make_unique<RecurrentStep>(request); }

}  // namespace walle
