// What the algorithms of packed convolution share, and the depthwise one.
#include "atomic/packed_convolution.h"

#include <array>

#include "atomic/lane_rows.h"

namespace walle {

namespace {

constexpr std::int64_t kFloat = sizeof(float);

// Of one operation of the tile kernel, which needs fewer loads.
constexpr double kSlower = 4;

// One group for each channel, lane by lane.
class DepthwiseStep final : public SharedStep {
 public:
  DepthwiseStep(const PackedConv& conv, float low, float high)
      : conv_(conv), rows_(conv.shape.window, conv.pack()), low_(low), high_(high) {}

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::int64_t pack = conv_.pack(), blocks = conv_.blocks_of(conv_.channels_out());
    const auto* bias = reinterpret_cast<const float*>(inputs[2]);
    const auto* residual = reinterpret_cast<const float*>(inputs[3]);
    team.each(
        conv_.shape.batch * blocks,
        [&](std::int64_t plane, int) {
          const std::int64_t block = plane % blocks, at = plane * rows_.out_plane();
          for (const LaneRows::Row& row : rows_.rows()) {
            LaneArgs args = rows_.args(row, reinterpret_cast<const float*>(inputs[0]) + plane * rows_.in_plane(),
                                       reinterpret_cast<float*>(output) + at);
            args.w = reinterpret_cast<const float*>(inputs[1]) + block * conv_.shape.window.taps() * pack;
            args.finish = {bias == nullptr ? nullptr : bias + block * pack,
                           residual == nullptr ? nullptr : residual + at + row.out, low_, high_};
            conv_.table->depthwise(args);
          }
        },
        kSlower * conv_.shape.multiplications());
  }
  std::string_view algorithm() const noexcept override { return kPackedDepthwise.name; }

 private:
  PackedConv conv_;
  LaneRows rows_;
  float low_, high_;
};

std::vector<std::int64_t> depthwise_parameters(const PackedConv& conv) {
  const bool applies = conv.shape.in_channels == 1 && conv.shape.out_channels == 1 && conv.shape.groups > 1 && !conv.plain_input;
  return applies ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{};
}

Work depthwise_work(const PackedConv& conv, std::int64_t) {
  Work work;
  const auto planes = static_cast<double>(conv.shape.batch * conv.blocks_of(conv.channels_out()) * conv.pack());
  work.lanes = 2 * planes * static_cast<double>(conv.shape.window.out_count() * conv.shape.window.taps());
  work.moved = planes * kFloat * static_cast<double>(conv.shape.window.in_count() + conv.shape.window.out_count());
  return work;
}

// [block][tap][lane]
Tensor depthwise_pack(const PackedConv& conv, std::int64_t, const float* w) {
  const std::int64_t pack = conv.pack(), taps = conv.shape.window.taps(), channels = conv.channels_out();
  Tensor packed = Tensor::empty(DType::f32, {conv.blocks_of(channels), taps, pack});
  auto* to = reinterpret_cast<float*>(packed.raw());
  for (std::int64_t block = 0; block < conv.blocks_of(channels); ++block)
    for (std::int64_t tap = 0; tap < taps; ++tap)
      for (std::int64_t lane = 0; lane < pack; ++lane) {
        const std::int64_t channel = block * pack + lane;
        *to++ = channel < channels ? w[channel * taps + tap] : 0.0f;
      }
  return packed;
}

std::unique_ptr<Step> depthwise_make(const PackedConv& conv, std::int64_t, float low, float high) {
  return std::make_unique<DepthwiseStep>(conv, low, high);
}

}  // namespace

const PackedAlgorithm kPackedDepthwise{"depthwise", &depthwise_parameters, &depthwise_work, &depthwise_pack, &depthwise_make};

std::span<const PackedAlgorithm* const> packed_algorithms() noexcept {
  static constexpr std::array<const PackedAlgorithm*, 5> all{&kPackedDepthwise, &kPackedTiles, &kPackedPairs, &kPackedWinograd,
                                                             &kPackedGroups};
  return all;
}

}  // namespace walle
