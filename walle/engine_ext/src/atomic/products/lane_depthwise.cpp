// Depthwise convolution of plain layouts by weights that may be computed, and the gradient by its input: blocks of channels as
// lanes (depthwise_lanes.h).
#include "atomic/products/lane_depthwise.h"

#include "atomic/products/depthwise_lanes.h"

namespace walle {

namespace {

class LaneDepthwiseStep final : public SharedStep {
 public:
  LaneDepthwiseStep(const ConvShape& shape, const Table& table, bool by_input, const EpilogueKernel& epilogue)
      : shape_(shape), pack_(table.pack), lanes_(shape, table, by_input), epilogue_(epilogue) {
    constexpr std::size_t kLine = Storage::kAlignment;  // every member's part is aligned
    scratch_bytes_ = (lanes_.scratch_bytes() + kLine - 1) / kLine * kLine;
  }

  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return kLaneDepthwise.name; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto scratch_of = [&](int member) {
      return reinterpret_cast<float*>(scratch + static_cast<std::size_t>(member) * scratch_bytes_);
    };
    for (int member = 0; member < team.size(); ++member) lanes_.clear(scratch_of(member));
    const std::int64_t blocks = lanes_.blocks();
    const StopPoll start;
    team.each(
        shape_.batch * blocks,
        [&](std::int64_t unit, int member) {
          StopPoll poll = start;
          lanes_.run(reinterpret_cast<const float*>(inputs[0]), reinterpret_cast<const float*>(inputs[1]),
                     reinterpret_cast<float*>(output), scratch_of(member), unit / blocks, unit % blocks, poll);
          if (!epilogue_.empty()) finish(inputs, output, unit / blocks, unit % blocks * pack_);
        },
        2 * shape_.multiplications());
  }

 private:
  void finish(std::byte* const* inputs, std::byte* output, std::int64_t image, std::int64_t first) const noexcept {
    const std::int64_t plane = shape_.window.out_count();
    for (std::int64_t channel = first; channel < std::min(first + pack_, shape_.groups); ++channel) {
      const std::int64_t at = (image * shape_.groups + channel) * plane;
      epilogue_.run_channel(output + at * kFloat, plane, inputs, channel, at);
    }
  }

  ConvShape shape_;
  std::int64_t pack_;
  DepthwiseLanes lanes_;
  EpilogueKernel epilogue_;
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

}  // namespace walle
