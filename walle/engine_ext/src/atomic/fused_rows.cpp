// Softmax and normalisations of float32, a row at a time.
#include <algorithm>

#include "atomic/fused.h"
#include "core/loop_nest.h"
#include "core/stop.h"

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
                                    ? std::min(args_.rows, 1 + args_.rows * row / StopPoll::kInterval)
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
  explicit ScoresStep(const CompositeProblem& problem) : softmax_(problem.table.softmax) {
    const auto binary = [&](BinaryOp op) { return problem.table.binary[static_cast<std::size_t>(op)][0]; };
    scale_ = binary(problem.score_scale == ScoreScale::divides ? BinaryOp::Div : BinaryOp::Mul);
    add_ = binary(BinaryOp::Add);
    const Dims& shape = problem.operands[0].shape;
    count_ = shape.back();
    Dims rows(shape.begin(), shape.end() - 1), strides = contiguous_strides(shape), mask(shape.size(), 0);
    const Operand& given = problem.operands[2];
    if (!given.absent) mask = broadcast_strides(given.shape, contiguous_strides(given.shape), shape);
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

bool softmax_applies(const CompositeProblem& problem) {
  const Operand& x = problem.operands[0];
  if (problem.outputs != 1 || x.dtype != DType::f32 || x.shape.empty() || !has_fused_kernels(problem.table)) return false;
  axis_of(problem.attributes, x.shape);  // throws where the axis is wrong
  return true;
}

std::unique_ptr<HostStep> make_along_axis(const CompositeProblem& problem, RowsFn kernel) {
  const Dims& shape = problem.operands[0].shape;
  return std::make_unique<RowsStep>(kernel, shape, axis_of(problem.attributes, shape), 1);
}

std::unique_ptr<HostStep> softmax_make(const CompositeProblem& problem) {
  if (problem.operands.size() < 3) return make_along_axis(problem, problem.table.softmax);
  problem.attributes.get_int("axis", -1);  // the last
  return std::make_unique<ScoresStep>(problem);
}

std::unique_ptr<HostStep> log_softmax_make(const CompositeProblem& problem) {
  return make_along_axis(problem, problem.table.log_softmax);
}

// Scale and shift are whole rows: those that broadcast are left to the decomposition.
bool norm_applies(const CompositeProblem& problem) {
  const Dims& shape = problem.operands[0].shape;
  if (problem.outputs != 1 || problem.operands[0].dtype != DType::f32 || shape.empty() || !has_fused_kernels(problem.table))
    return false;
  if (problem.attributes.get_int("stash_type", 1) != 1) return false;
  const std::size_t axis = axis_of(problem.attributes, shape);
  const Dims row(shape.begin() + static_cast<std::ptrdiff_t>(axis), shape.end());
  return std::all_of(problem.operands.begin() + 1, problem.operands.end(), [&](const Operand& operand) {
    return operand.absent || (operand.dtype == DType::f32 && operand.shape == row);
  });
}

std::unique_ptr<HostStep> make_norm(const CompositeProblem& problem, RowsFn kernel) {
  const Dims& shape = problem.operands[0].shape;
  const std::size_t axis = axis_of(problem.attributes, shape);
  auto step = std::make_unique<RowsStep>(kernel, shape, axis, shape.size() - axis, problem.attributes.get_float("epsilon", 1e-5));
  step->scaled_ = true;
  step->shifted_ = problem.operands.size() > 2 && !problem.operands[2].absent;
  return step;
}

std::unique_ptr<HostStep> layer_norm_make(const CompositeProblem& problem) {
  return make_norm(problem, problem.table.layer_norm);
}

std::unique_ptr<HostStep> rms_norm_make(const CompositeProblem& problem) { return make_norm(problem, problem.table.rms_norm); }

}  // namespace

const Fused kFusedSoftmax{&softmax_applies, &softmax_make};
const Fused kFusedLogSoftmax{&softmax_applies, &log_softmax_make};
const Fused kFusedLayerNorm{&norm_applies, &layer_norm_make};
const Fused kFusedRmsNorm{&norm_applies, &rms_norm_make};

}  // namespace walle
