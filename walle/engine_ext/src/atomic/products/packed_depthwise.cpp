// Depthwise convolution in packed layouts: one group for each input channel, lane by lane.
#include "atomic/lane_rows.h"
#include "atomic/products/lane_sources.h"

namespace walle {

namespace {

// Floats that stay in a first-level cache between two passes.
constexpr std::int64_t kNear = 2048;

// The time of an operation in operations of the tile kernel, which needs fewer loads.
constexpr double kSlower = 4;

// Where an input channel gives several output channels, each block of outputs first gathers a plane whose lanes are the channels
// that it reads.
class DepthwiseStep final : public SharedStep {
 public:
  DepthwiseStep(const ConvProblem& conv, const EpilogueKernel& epilogue)
      : conv_(conv), rows_(conv.shape.window, conv.pack()), epilogue_(epilogue) {
    if (conv.shape.out_channels == 1) return;
    constexpr std::size_t kLine = Storage::kAlignment;  // every member's part is aligned
    scratch_bytes_ = (static_cast<std::size_t>(rows_.in_plane() * kFloat) + kLine - 1) / kLine * kLine;
    for (std::int64_t block = 0; block < conv.blocks_of(conv.channels_out()); ++block)
      sources_.push_back(lane_sources(conv, block, 0));
  }
  bool scratch_each() const noexcept override { return true; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t pack = conv_.pack(), blocks = conv_.blocks_of(conv_.channels_out());
    const std::int64_t in_blocks = conv_.blocks_of(conv_.channels_in());
    const EpilogueOperands operands = epilogue_.operands(inputs);
    const StopPoll start;
    team.each(
        conv_.shape.batch * blocks,
        [&](std::int64_t plane, int member) {
          const std::int64_t block = plane % blocks, at = plane * rows_.out_plane();
          const auto* image = reinterpret_cast<const float*>(inputs[0]) + plane / blocks * in_blocks * rows_.in_plane();
          const float* in = sources_.empty() ? image + block * rows_.in_plane()
                                             : gather(block, image, reinterpret_cast<float*>(scratch + member_bytes(member)));
          const EpilogueOperands here = operands.at(block * pack, at);
          StopPoll poll = start;
          std::int64_t begun = 0;  // rows follow each other: the rest of the epilogue goes over several short ones at once
          for (const LaneRows::Row& row : rows_.rows()) {
            if (!poll.proceed(row.count * conv_.shape.window.taps())) return;
            LaneArgs args = rows_.args(row, in, reinterpret_cast<float*>(output) + at);
            args.w = reinterpret_cast<const float*>(inputs[1]) + block * conv_.shape.window.taps() * pack;
            args.finish = epilogue_.finish(here.at(0, row.out));
            conv_.table->depthwise(args);
            const std::int64_t end = row.out + row.count * pack;
            if (!epilogue_.has_rest() || (end - begun < kNear && end < rows_.out_plane())) continue;
            epilogue_.run_rest(reinterpret_cast<float*>(output) + at + begun, (end - begun) / pack, pack, pack,
                               here.at(0, begun));
            begun = end;
          }
        },
        kSlower * conv_.shape.multiplications());
  }
  std::string_view algorithm() const noexcept override { return kPackedDepthwise.name; }

 private:
  std::ptrdiff_t member_bytes(int member) const noexcept { return member * static_cast<std::ptrdiff_t>(scratch_bytes_); }

  const float* gather(std::int64_t block, const float* image, float* plane) const noexcept {
    gather_lanes(*conv_.table, sources_[static_cast<std::size_t>(block)], image, rows_.in_plane(), plane,
                 rows_.in_plane() / conv_.pack());
    return plane;
  }

  ConvProblem conv_;
  LaneRows rows_;
  EpilogueKernel epilogue_;
  std::vector<std::vector<LaneSource>> sources_;  // by output block; empty where each channel gives one
};

std::vector<std::int64_t> depthwise_parameters(const ConvProblem& conv) {
  return single_parameter(conv.packable && conv.shape.in_channels == 1 && conv.shape.groups > 1 && !conv.plain_input &&
                          conv.shape.out_channels > 0 && conv.shape.window.out_count() > 0);
}

// Outputs of a row whose taps all lie inside the input.
std::int64_t inner_columns(const Window& window) noexcept {
  std::int64_t first = 0, last = window.out[2];
  for (std::int64_t k = 0; k < window.kernel[2]; ++k) {
    const auto [from, to] = window.valid(2, k);
    first = std::max(first, from);
    last = std::min(last, to);
  }
  return std::max<std::int64_t>(0, last - first);
}

Work depthwise_work(const ConvProblem& conv, std::int64_t) {
  Work work;
  const auto planes = static_cast<double>(conv.shape.batch * conv.blocks_of(conv.channels_out()) * conv.pack());
  // The kernel takes six pixels at a time. Others, and those at borders, which read fewer taps, are computed one by one, and each
  // waits for its last sum.
  constexpr double kAlone = 2.3;
  constexpr std::int64_t kAtOnce = 6;
  const Window& win = conv.shape.window;
  const std::int64_t whole = inner_columns(win) / kAtOnce * kAtOnce;
  const double alone = static_cast<double>(win.out[2] - whole) / static_cast<double>(win.out[2]);
  work.lanes = 2 * planes * taps_met(win) * (1 - alone + kAlone * alone);
  const std::int64_t reads = conv.shape.out_channels == 1 ? 1 : 3;  // the gathered plane is written and read
  work.move(planes * kFloat * static_cast<double>(reads * conv.shape.window.in_count() + conv.shape.window.out_count()));
  return work;
}

std::unique_ptr<HostStep> depthwise_make(const ConvProblem& conv, std::int64_t, const EpilogueKernel& epilogue) {
  return std::make_unique<DepthwiseStep>(conv, epilogue);
}

}  // namespace

const ConvAlgorithm kPackedDepthwise{"depthwise", &depthwise_parameters, &depthwise_work, &pack_lane_weights, &depthwise_make};

}  // namespace walle
