// Softmax and normalisations of float32, a row at a time.
#include <algorithm>

#include "atomic/fused.h"
#include "core/loop_nest.h"

namespace walle {

namespace {

class RowsStep final : public SharedStep {
 public:
  // Along `axes` axes from `axis` on.
  RowsStep(RowsFn kernel, const Dims& shape, std::size_t axis, std::size_t axes, double epsilon = 0) : kernel_(kernel) {
    const auto product = [&](std::size_t from, std::size_t to) {
      return element_count(
          Dims(shape.begin() + static_cast<std::ptrdiff_t>(from), shape.begin() + static_cast<std::ptrdiff_t>(to)));
    };
    args_.rows = product(0, axis);
    args_.count = product(axis, axis + axes);
    args_.columns = product(axis + axes, shape.size());
    args_.epsilon = static_cast<float>(epsilon);
    if (args_.count == 0 || args_.columns == 0) args_.rows = 0;
  }
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    constexpr std::int64_t kWorth = 1 << 14;
    const std::int64_t row = args_.count * args_.columns;
    const std::int64_t pieces = team.size() == 1
                                    ? std::min<std::int64_t>(1, args_.rows)
                                    : std::min({args_.rows, args_.rows * row / kWorth + 1, std::int64_t{4} * team.size()});
    team.each(pieces, [&](std::int64_t i, int) {
      const std::int64_t first = args_.rows * i / pieces;
      RowsArgs args = args_;
      args.rows = args_.rows * (i + 1) / pieces - first;
      args.in = reinterpret_cast<const float*>(inputs[0]) + first * row;
      args.out = reinterpret_cast<float*>(output) + first * row;
      if (scaled_) args.scale = reinterpret_cast<const float*>(inputs[1]);
      if (shifted_) args.shift = reinterpret_cast<const float*>(inputs[2]);
      kernel_(args);
    });
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

  bool scaled_ = false, shifted_ = false;

 private:
  RowsFn kernel_;
  RowsArgs args_;
};

// Softmax over the last axis of scores, scaled by one number and masked, a row at a time: operands 1 and 2, each null where
// absent.
class ScoresStep final : public SharedStep {
 public:
  explicit ScoresStep(const StepRequest& request) : softmax_(request.table.softmax) {
    const auto binary = [&](BinaryOp op) { return request.table.binary[static_cast<std::size_t>(op)][0]; };
    scale_ = binary(request.attributes.get_int("divides", 0) != 0 ? BinaryOp::Div : BinaryOp::Mul);
    add_ = binary(BinaryOp::Add);
    const Dims& shape = request.result.shape;
    count_ = shape.back();
    Dims rows(shape.begin(), shape.end() - 1), strides = contiguous_strides(shape), mask(shape.size(), 0);
    const Layout& given = request.inputs[2];
    if (!given.absent) mask = broadcast_strides(given.shape, given.strides, shape);
    mask_step_ = mask.back();
    strides.pop_back();
    mask.pop_back();
    rows_ = LoopNest<3>::make(rows, {strides, mask, strides}, {sizeof(float), sizeof(float), sizeof(float)});
  }
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    if (count_ == 0) return;
    rows_.split(team, {inputs[0], inputs[2], output}, count_, [&](const auto& piece, const auto& from, int) {
      piece.walk(from, 0, [&](const auto& at) { run_row(at, inputs); });
    });
  }
  std::string_view algorithm() const noexcept override { return "fused"; }

 private:
  void run_row(const std::array<std::byte*, 3>& at, std::byte* const* inputs) const noexcept {
    const std::byte* from = at[0];
    if (inputs[1] != nullptr) {
      scale_(from, 1, inputs[1], 0, at[2], count_);
      from = at[2];
    }
    if (inputs[2] != nullptr) {
      add_(from, 1, at[1], mask_step_, at[2], count_);
      from = at[2];
    }
    softmax_({reinterpret_cast<const float*>(from), reinterpret_cast<float*>(at[2]), 1, count_, 1, nullptr, nullptr, 0});
  }

  RowsFn softmax_;
  BinaryFn scale_, add_;
  LoopNest<3> rows_;
  std::int64_t count_, mask_step_;
};

std::size_t axis_of(const Attributes& attributes, const Dims& shape) {
  return normal_axis(attributes.get_int("axis", -1), shape.size());
}

std::unique_ptr<Step> make_softmax(const StepRequest& request, RowsFn kernel) {
  const Dims& shape = request.result.shape;
  return std::make_unique<RowsStep>(kernel, shape, axis_of(request.attributes, shape), 1);
}

std::unique_ptr<Step> make_norm(const StepRequest& request, RowsFn kernel) {
  const Dims& shape = request.result.shape;
  const std::size_t axis = axis_of(request.attributes, shape);
  auto step = std::make_unique<RowsStep>(kernel, shape, axis, shape.size() - axis, request.attributes.get_float("epsilon", 1e-5));
  step->scaled_ = true;
  step->shifted_ = request.inputs.size() > 2 && !request.inputs[2].absent;
  return step;
}

}  // namespace

bool softmax_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table) {
  if (outputs != 1 || operands[0].dtype != DType::f32 || operands[0].shape.empty() || table.softmax == nullptr) return false;
  axis_of(attributes, operands[0].shape);  // or an error
  return true;
}

std::unique_ptr<Step> make_softmax(const StepRequest& request) {
  if (request.inputs.size() == 3) {
    request.attributes.get_int("axis", -1);  // the last
    return std::make_unique<ScoresStep>(request);
  }
  return make_softmax(request, request.table.softmax);
}
std::unique_ptr<Step> make_log_softmax(const StepRequest& request) { return make_softmax(request, request.table.log_softmax); }

// Scale and shift are whole rows: those that broadcast are left to the decomposition.
bool norm_applies(std::span<const Operand> operands, const Attributes& attributes, int outputs, const Table& table) {
  const Dims& shape = operands[0].shape;
  if (outputs != 1 || operands[0].dtype != DType::f32 || shape.empty() || table.layer_norm == nullptr) return false;
  if (attributes.get_int("stash_type", 1) != 1) return false;
  const std::size_t axis = axis_of(attributes, shape);
  const Dims row(shape.begin() + static_cast<std::ptrdiff_t>(axis), shape.end());
  return std::all_of(operands.begin() + 1, operands.end(), [&](const Operand& operand) {
    return operand.absent || (operand.dtype == DType::f32 && operand.shape == row);
  });
}

std::unique_ptr<Step> make_layer_norm(const StepRequest& request) { return make_norm(request, request.table.layer_norm); }
std::unique_ptr<Step> make_rms_norm(const StepRequest& request) { return make_norm(request, request.table.rms_norm); }

}  // namespace walle
