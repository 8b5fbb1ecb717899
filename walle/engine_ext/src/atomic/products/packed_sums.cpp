// 1x1 convolution with few output channels in packed layouts. The tile kernel computes a whole block of outputs, most of it
// padding. Here a lane sums its channel of every block first, for one output, and then the lanes of a pixel are summed.
#include <algorithm>
#include <array>
#include <vector>

#include "atomic/products/convolution.h"

namespace walle {

namespace {

class LaneSumsStep final : public SharedStep {
 public:
  LaneSumsStep(const ConvProblem& conv, const EpilogueKernel& epilogue)
      : conv_(conv), epilogue_(epilogue), ones_(static_cast<std::size_t>(2 * conv.pack() * conv.pack()), 1.0f) {
    const std::int64_t pack = conv.pack(), plane = conv.shape.window.in_count() * pack;
    for (std::int64_t block = 0; block < conv.blocks_of(conv.channels_in()); ++block) taps_.push_back({block * plane, block * pack});
    whole_ = conv.channels_in() / pack;
    scratch_bytes_ = static_cast<std::size_t>(2 * kPixels * pack * kFloat);
  }
  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return "1x1 lane sums"; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t pixels = conv_.shape.window.out_count(), pieces = (pixels + kPixels - 1) / kPixels;
    const StopPoll start;
    team.each(
        conv_.shape.batch * pieces,
        [&](std::int64_t unit, int member) {
          StopPoll poll = start;
          const std::int64_t first = unit % pieces * kPixels, count = std::min(kPixels, pixels - first);
          if (!poll.proceed(count * conv_.channels_in())) return;
          auto* sums = reinterpret_cast<float*>(scratch + member * static_cast<std::ptrdiff_t>(scratch_bytes_));
          run_pixels(inputs, reinterpret_cast<float*>(output), sums, unit / pieces, first, count);
        },
        2 * conv_.shape.multiplications());
  }

 private:
  static constexpr std::int64_t kPixels = 168;  // at once; a multiple of the kernels' tiles

  void run_pixels(std::byte* const* inputs, float* out, float* sums, std::int64_t image, std::int64_t first,
                  std::int64_t count) const noexcept {
    const std::int64_t pack = conv_.pack(), blocks = conv_.blocks_of(conv_.channels_in()), pixels = conv_.shape.window.out_count();
    const std::int64_t rest = conv_.channels_in() - whole_ * pack, at = (image * pixels + first) * pack;
    const EpilogueOperands operands = epilogue_.operands(inputs).at(0, at);
    // Lanes after the last channel may hold anything: the last block is summed apart.
    const std::array<Segment, 2> segments{Segment{0, pack}, Segment{count * pack, rest}};
    LaneArgs lanes;
    lanes.count = count;
    lanes.in = reinterpret_cast<const float*>(inputs[0]) + (image * blocks * pixels + first) * pack;
    lanes.in_step = pack;
    PanelArgs panel;
    panel.rows = count;
    panel.a = sums;
    panel.a_step = panel.out_step = pack;
    panel.segments = segments.data() + (whole_ > 0 ? 0 : 1);
    panel.segment_count = (whole_ > 0 ? 1 : 0) + (rest > 0 ? 1 : 0);
    panel.w = ones_.data();
    panel.width = 1;
    for (std::int64_t channel = 0; channel < conv_.channels_out(); ++channel) {
      lanes.w = reinterpret_cast<const float*>(inputs[1]) + channel * blocks * pack;
      lanes.taps = taps_.data();
      lanes.tap_count = whole_;
      lanes.out = sums;
      if (whole_ > 0) conv_.table->depthwise(lanes);
      lanes.taps += whole_;
      lanes.tap_count = 1;
      lanes.out = sums + count * pack;
      if (rest > 0) conv_.table->depthwise(lanes);
      panel.out = out + at + channel;
      panel.finish = epilogue_.finish(operands.at(channel, channel));
      conv_.table->panel(panel);
    }
    if (epilogue_.has_rest()) epilogue_.run_rest(out + at, count, pack, pack, operands);
  }

  ConvProblem conv_;
  EpilogueKernel epilogue_;
  std::vector<float> ones_;  // weights of the sums of lanes
  std::vector<Tap> taps_;    // by block
  std::int64_t whole_ = 0;   // blocks without padding
};

std::vector<std::int64_t> lane_sums_parameters(const ConvProblem& conv) {
  const ConvShape& shape = conv.shape;
  const Window& win = shape.window;
  const bool flat = win.taps() == 1 && win.in == win.out && win.begin == Window::Axes{0, 0, 0} &&
                    win.stride == Window::Axes{1, 1, 1};
  return single_parameter(conv.packable && !conv.plain_input && shape.groups == 1 && flat && shape.out_channels > 0 &&
                          shape.out_channels * 2 <= conv.pack() && shape.in_channels > conv.pack());
}

Work lane_sums_work(const ConvProblem& conv, std::int64_t) {
  const ConvShape& shape = conv.shape;
  const auto pixels = static_cast<double>(shape.batch * shape.window.out_count() * conv.pack());
  const auto blocks = static_cast<double>(conv.blocks_of(shape.in_channels)), out = static_cast<double>(shape.out_channels);
  Work work;
  work.lanes = 2 * pixels * blocks * out;
  work.panel = 2 * pixels * out * static_cast<double>(conv.pack());
  work.moved = pixels * kFloat * (blocks + 1);
  return work;
}

// [out channel][in channel], whole blocks
Tensor lane_sums_pack(const ConvProblem& conv, std::int64_t, const float* w) {
  const std::int64_t in = conv.shape.in_channels, width = conv.blocks_of(in) * conv.pack();
  Tensor packed = Tensor::empty(DType::f32, {conv.shape.out_channels, width});
  auto* to = packed.data<float>();
  for (std::int64_t channel = 0; channel < conv.shape.out_channels; ++channel, w += in, to += width)
    std::fill_n(std::copy_n(w, in, to), width - in, 0.0f);
  return packed;
}

std::unique_ptr<HostStep> lane_sums_make(const ConvProblem& conv, std::int64_t, const EpilogueKernel& epilogue) {
  return std::make_unique<LaneSumsStep>(conv, epilogue);
}

}  // namespace

extern const ConvAlgorithm kLaneSums;
const ConvAlgorithm kLaneSums{"1x1 lane sums", &lane_sums_parameters, &lane_sums_work, &lane_sums_pack, &lane_sums_make};

}  // namespace walle
