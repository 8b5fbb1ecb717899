// Depthwise convolution of plain layouts by weights that may be computed, and the gradient by its input: blocks of channels as
// lanes (depthwise_lanes.h).
#include "atomic/products/lane_depthwise.h"

#include "atomic/products/depthwise_lanes.h"

namespace walle {

namespace {

class LaneDepthwiseStep final : public SharedStep {
 public:
  LaneDepthwiseStep(const ConvShape& shape, const Table& table, bool by_input, const EpilogueKernel& epilogue,
                    const std::optional<InputNormal>& normal = {})
      : shape_(shape), table_(table), lanes_(shape, table, by_input), epilogue_(epilogue), normal_(normal) {
    constexpr std::size_t kLine = Storage::kAlignment;  // every member's part is aligned
    factors_at_ = (lanes_.scratch_bytes() + kLine - 1) / kLine * kLine;
    scratch_bytes_ = factors_at_;
    if (normal_) scratch_bytes_ += static_cast<std::size_t>(NormalFactors::floats(shape.groups, table.pack)) * sizeof(float);
  }

  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return normal_ ? "normalised lanes" : kLaneDepthwise.name; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto scratch_of = [&](int member) {
      return reinterpret_cast<float*>(scratch + static_cast<std::size_t>(member) * scratch_bytes_);
    };
    for (int member = 0; member < team.size(); ++member) lanes_.clear(scratch_of(member));
    std::optional<NormalFactors> factors;  // the first member's, for all
    if (normal_) factors.emplace(*normal_, inputs + 2, shape_.groups, table_, reinterpret_cast<float*>(scratch + factors_at_));
    const std::int64_t blocks = lanes_.blocks();
    const StopPoll start;
    team.each(
        shape_.batch * blocks,
        [&](std::int64_t unit, int member) {
          StopPoll poll = start;
          lanes_.run(reinterpret_cast<const float*>(inputs[0]), reinterpret_cast<const float*>(inputs[1]),
                     reinterpret_cast<float*>(output), scratch_of(member), unit / blocks, unit % blocks,
                     factors ? &*factors : nullptr, poll);
          if (!epilogue_.empty()) finish(inputs, output, unit / blocks, unit % blocks * table_.pack);
        },
        2 * shape_.multiplications());
  }

 private:
  void finish(std::byte* const* inputs, std::byte* output, std::int64_t image, std::int64_t first) const noexcept {
    const std::int64_t plane = shape_.window.out_count();
    for (std::int64_t channel = first; channel < std::min<std::int64_t>(first + table_.pack, shape_.groups); ++channel) {
      const std::int64_t at = (image * shape_.groups + channel) * plane;
      epilogue_.run_channel(output + at * kFloat, plane, inputs, channel, at);
    }
  }

  ConvShape shape_;
  const Table& table_;
  DepthwiseLanes lanes_;
  EpilogueKernel epilogue_;
  std::optional<InputNormal> normal_;
  std::size_t factors_at_ = 0;
};

Work lane_work(const ConvProblem& problem, std::int64_t) {
  // Transposes read and write each pixel, and weights are transposed for each block of an image.
  constexpr double kBlockBytes = 8192;
  const DepthwiseLanes lanes(problem.shape, *problem.table, false);
  const auto blocks = static_cast<double>(problem.shape.batch * lanes.blocks()), pack = static_cast<double>(problem.pack());
  Work work;
  work.lanes = 2 * blocks * pack * static_cast<double>(problem.shape.window.taps() * problem.shape.window.out_count());
  work.moved = blocks * (kBlockBytes + 2 * kFloat * pack * static_cast<double>(lanes.moved_pixels()));
  return work;
}

}  // namespace

extern const ConvAlgorithm kLaneDepthwise;
const ConvAlgorithm kLaneDepthwise{
    "depthwise lanes",
    [](const ConvProblem& problem) { return single_parameter(!problem.packable && DepthwiseLanes::applies(problem.shape)); },
    &lane_work, nullptr,
    [](const ConvProblem& problem, std::int64_t, const EpilogueKernel& epilogue) -> std::unique_ptr<HostStep> {
      return std::make_unique<LaneDepthwiseStep>(problem.shape, *problem.table, false, epilogue);
    }};

std::unique_ptr<HostStep> make_lane_input_gradient(const ConvShape& shape, const Table& table) {
  return DepthwiseLanes::applies(shape) ? std::make_unique<LaneDepthwiseStep>(shape, table, true, EpilogueKernel()) : nullptr;
}

std::unique_ptr<HostStep> make_normalised_depthwise(const ConvShape& shape, const Table& table, const InputNormal& normal) {
  return std::make_unique<LaneDepthwiseStep>(shape, table, false, EpilogueKernel(), normal);
}

}  // namespace walle
