// 1x1 convolution with few output channels in packed layouts. The tile kernel computes a whole block of outputs, most of it
// padding. Here, for one output, each lane sums its channel of every block; then the lanes of a pixel are summed, as rows of the
// transposed pixels.
#include <algorithm>
#include <vector>

#include "atomic/products/convolution.h"

namespace walle {

namespace {

class LaneSumsStep final : public SharedStep {
 public:
  LaneSumsStep(const ConvProblem& conv, const EpilogueKernel& epilogue)
      : conv_(conv),
        epilogue_(epilogue),
        whole_(conv.channels_in() / conv.pack()),
        rest_(conv.channels_in() - whole_ * conv.pack()),
        ones_(static_cast<std::size_t>(conv.pack()), 1.0f) {
    const std::int64_t pack = conv.pack(), plane = conv.shape.window.in_count() * pack;
    for (std::int64_t block = 0; block < conv.blocks_of(conv.channels_in()); ++block)
      taps_.push_back({block * plane, block * pack});
    scratch_bytes_ = static_cast<std::size_t>((4 * pack + conv.channels_out()) * kPixels * kFloat);
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
  static constexpr std::int64_t kPixels = 96;  // pixels at once: their sums stay in a first-level cache; a multiple of every pack

  void run_pixels(std::byte* const* inputs, float* out, float* lane_sums, std::int64_t image, std::int64_t first,
                  std::int64_t count) const noexcept {
    const Table& table = *conv_.table;
    const std::int64_t pack = conv_.pack(), blocks = conv_.blocks_of(conv_.channels_in()),
                       pixels = conv_.shape.window.out_count();
    const std::int64_t at = (image * pixels + first) * pack;
    float* turned = lane_sums + kPixels * pack;  // rows of lanes: those of the last block, then of whole ones
    float* sums = turned + 2 * kPixels * pack;   // rows of output channels
    float* packed = sums + kPixels * conv_.channels_out();
    LaneArgs args;
    args.count = count;
    args.in = reinterpret_cast<const float*>(inputs[0]) + (image * blocks * pixels + first) * pack;
    args.in_step = pack;
    args.out = lane_sums;
    for (std::int64_t channel = 0; channel < conv_.channels_out(); ++channel) {
      args.w = reinterpret_cast<const float*>(inputs[1]) + channel * blocks * pack;
      const auto sum_blocks = [&](std::int64_t block, std::int64_t block_count, float* to, std::int64_t lanes) {
        if (block_count == 0 || lanes == 0) return;
        args.taps = taps_.data() + block;
        args.tap_count = block_count;
        table.depthwise(args);
        table.transpose(lane_sums, pack, to, kPixels, lanes, count);
      };
      // Lanes after the last channel may hold anything: the last block is summed apart.
      sum_blocks(0, whole_, turned + rest_ * kPixels, pack);
      sum_blocks(whole_, 1, turned, rest_);
      table.sum_rows(turned, kPixels, rest_ + (whole_ > 0 ? pack : 0), sums + channel * kPixels, count);
    }
    std::fill_n(packed, count * pack, 0.0f);
    table.transpose(sums, kPixels, packed, pack, count, conv_.channels_out());
    const EpilogueOperands operands = epilogue_.operands(inputs).at(0, at);
    const Tap itself{0, 0};
    args.in = packed;
    args.taps = &itself;
    args.tap_count = 1;
    args.w = ones_.data();
    args.out = out + at;
    args.finish = epilogue_.finish(operands);
    table.depthwise(args);
    if (epilogue_.has_rest()) epilogue_.run_rest(out + at, count, pack, pack, operands);
  }

  ConvProblem conv_;
  EpilogueKernel epilogue_;
  std::int64_t whole_, rest_;  // blocks without padding, and channels of the last block where it has padding
  std::vector<float> ones_;
  std::vector<Tap> taps_;  // by block
};

std::vector<std::int64_t> lane_sums_parameters(const ConvProblem& conv) {
  const ConvShape& shape = conv.shape;
  const Window& win = shape.window;
  const bool flat =
      win.taps() == 1 && win.in == win.out && win.begin == Window::Axes{0, 0, 0} && win.stride == Window::Axes{1, 1, 1};
  return single_parameter(conv.packable && conv.table->sum_rows != nullptr && !conv.plain_input && shape.groups == 1 && flat &&
                          shape.out_channels > 0 && shape.out_channels * 2 <= conv.pack() && shape.in_channels > conv.pack());
}

Work lane_sums_work(const ConvProblem& conv, std::int64_t) {
  const ConvShape& shape = conv.shape;
  const auto pixels = static_cast<double>(shape.batch * shape.window.out_count() * conv.pack());
  const auto blocks = static_cast<double>(conv.blocks_of(shape.in_channels)), out = static_cast<double>(shape.out_channels);
  // Time of summing the lanes of a pixel, and of finishing it, in operations of a lane.
  constexpr double kSumLanes = 6, kFinishPixel = 14;
  Work work;
  work.lanes = 2 * pixels * ((blocks + kSumLanes) * out + kFinishPixel);
  work.move(pixels * kFloat * (blocks + 1));
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
