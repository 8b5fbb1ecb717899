#include "atomic/elementwise.h"

#include <bit>

#include "atomic/rows.h"
#include "core/loop_nest.h"

namespace walle {

namespace {

template <std::size_t N>
LoopNest<N + 1> broadcast_nest(std::span<const Layout> inputs, const TensorType& result) {
  std::array<Dims, N + 1> strides;
  std::array<std::size_t, N + 1> item;
  for (std::size_t i = 0; i < N; ++i) {
    strides[i] = broadcast_strides(inputs[i].shape, inputs[i].strides, result.shape);
    item[i] = item_size(inputs[i].dtype);
  }
  strides[N] = contiguous_strides(result.shape);
  item[N] = item_size(result.dtype);
  return LoopNest<N + 1>::make(result.shape, strides, item);
}

// Runs one kernel over every element of N inputs, broadcast.
template <std::size_t N>
class ElementwiseStep : public SharedStep {
 public:
  ElementwiseStep(std::span<const Layout> inputs, const TensorType& result) : nest_(broadcast_nest<N>(inputs, result)) {
    std::array<std::size_t, N> items;
    for (std::size_t i = 0; i < N; ++i) items[i] = item_size(inputs[i].dtype);
    rows_ = Rows<N>(nest_, items, item_size(result.dtype));
  }

 protected:
  template <class F>
  void each_row(Team& team, std::byte* const* inputs, std::byte* output, F&& f) const noexcept {
    std::array<std::byte*, N + 1> at;
    for (std::size_t i = 0; i < N; ++i) at[i] = inputs[i];
    at[N] = output;
    nest_.split(team, at, 1, [&](const auto& piece, const auto& from, int) { rows_.walk(piece, from, f); });
  }

 private:
  LoopNest<N + 1> nest_;
  Rows<N> rows_;
};

class UnaryStep final : public ElementwiseStep<1> {
 public:
  UnaryStep(UnaryFn kernel, std::span<const Layout> inputs, const TensorType& result)
      : ElementwiseStep(inputs, result), kernel_(kernel) {}
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    each_row(team, inputs, output, [this](const auto& in, const auto& stride, std::byte* out, std::int64_t count) {
      kernel_(in[0], stride[0], out, count);
    });
  }

 private:
  UnaryFn kernel_;
};

class BinaryStep final : public ElementwiseStep<2> {
 public:
  BinaryStep(BinaryFn kernel, std::span<const Layout> inputs, const TensorType& result)
      : ElementwiseStep(inputs, result), kernel_(kernel) {}
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    each_row(team, inputs, output, [this](const auto& in, const auto& stride, std::byte* out, std::int64_t count) {
      kernel_(in[0], stride[0], in[1], stride[1], out, count);
    });
  }

 private:
  BinaryFn kernel_;
};

class SelectStep final : public ElementwiseStep<3> {
 public:
  SelectStep(SelectFn kernel, std::span<const Layout> inputs, const TensorType& result)
      : ElementwiseStep(inputs, result), kernel_(kernel) {}
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    each_row(team, inputs, output, [this](const auto& in, const auto& stride, std::byte* out, std::int64_t count) {
      kernel_(in[0], stride[0], in[1], stride[1], in[2], stride[2], out, count);
    });
  }

 private:
  SelectFn kernel_;
};

}  // namespace

std::unique_ptr<HostStep> make_unary_step(UnaryFn kernel, std::span<const Layout> inputs, const TensorType& result) {
  return std::make_unique<UnaryStep>(kernel, inputs, result);
}

std::unique_ptr<HostStep> make_binary_step(BinaryFn kernel, std::span<const Layout> inputs, const TensorType& result) {
  return std::make_unique<BinaryStep>(kernel, inputs, result);
}

std::unique_ptr<HostStep> make_select_step(std::span<const Layout> inputs, const TensorType& result, const Table& table) {
  const auto log2 = static_cast<std::size_t>(std::bit_width(item_size(result.dtype)) - 1);
  return std::make_unique<SelectStep>(table.select[log2], inputs, result);
}

}  // namespace walle
