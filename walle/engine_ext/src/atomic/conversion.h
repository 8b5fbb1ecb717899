// Conversion as steps: Cast, and whole operators of 16-bit floats done in float32.
#pragma once
#include <functional>

#include "atomic/atomic.h"
#include "core/loop_nest.h"

namespace walle {

// The kernels that turn one dtype into another, run over blocks one after the other: one where the table has it, up to three
// where a type that is stored only is on either side. `encoding` is the column of Table::encode.
class Conversion {
 public:
  Conversion(DType from, DType to, std::size_t encoding, const Table& table);

  // out[i] = in[i * stride]; any alignment of `out` that its type asks for.
  void run(const std::byte* in, std::int64_t stride, std::byte* out, std::int64_t count) const noexcept;
  // The same in blocks; returns false once a stop was requested.
  bool run(const std::byte* in, std::int64_t stride, std::byte* out, std::int64_t count, StopPoll& poll) const noexcept;

 private:
  void add(UnaryFn stage) { stages_[count_++] = stage; }

  std::size_t from_size_, to_size_;
  std::array<UnaryFn, 3> stages_{};
  std::size_t count_ = 0;
};

// The column of Table::encode that a Cast's attributes `saturate` and `round_mode` ask for. Throws Error (model).
std::size_t cast_encoding(DType to, const Attributes& attributes);

class CastStep final : public HostStep {
 public:
  CastStep(const Layout& input, const TensorType& result, std::size_t encoding, const Table& table);
  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override;

 private:
  Conversion conversion_;
  LoopNest<2> nest_;
  std::int64_t stride_;
};

// An operator of float16 or bfloat16 operands as the same one of float32: operands are widened into scratch memory, the result is
// rounded once. `make` makes the step of float32 for the layouts it is given.
class WidenedStep final : public HostStep {
 public:
  using Make = std::function<std::unique_ptr<HostStep>(std::span<const Layout> inputs, const TensorType& result)>;
  WidenedStep(std::span<const Layout> inputs, const TensorType& result, const Table& table, const Make& make);
  void run(std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override;
  std::string_view algorithm() const noexcept override { return inner_->algorithm(); }

 private:
  struct Widened {
    std::size_t input;
    std::size_t offset;  // place in scratch
    std::unique_ptr<CastStep> cast;
  };
  std::unique_ptr<HostStep> inner_;
  std::vector<Widened> widened_;
  std::optional<Conversion> narrow_;
  std::size_t inputs_, result_offset_ = 0, inner_offset_ = 0;
  std::int64_t count_;
};

// The step that `make` gives, of float32 where the first operand is float16 or bfloat16.
std::unique_ptr<HostStep> widened(const StepRequest& request, StepFn make);

}  // namespace walle
