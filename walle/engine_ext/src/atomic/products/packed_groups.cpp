// Convolution in groups whose channels fill no whole blocks of a packed layout: as many groups as do fill them become one, whose
// weights are 0 between different groups, and the algorithms of whole blocks compute it.
//
// 0 times an infinity or a NaN is NaN, so that one group's would spread to those that it is merged with. A result with a NaN is
// therefore computed again, group by group: slowly, but such a result is no use anyhow but for the groups that have none. Lanes
// behind the last channel hold anything, and count for nothing.
#include <algorithm>
#include <array>
#include <atomic>

#include "atomic/products/packed_convolution.h"

namespace walle {

namespace {

// How many groups become one, the fewest that fill blocks; 0: none do.
std::int64_t together(const PackedConv& conv) {
  const ConvShape& shape = conv.shape;
  if (shape.groups == 1 || shape.in_channels == 1 || conv.plain_input) return 0;  // a channel each: lane by lane
  const auto whole = [&](std::int64_t groups) {
    return groups == shape.groups ||
           (groups * shape.in_channels % conv.pack() == 0 && groups * shape.out_channels % conv.pack() == 0);
  };
  if (whole(1)) return 0;
  for (std::int64_t groups = 2; groups <= shape.groups; ++groups)
    if (shape.groups % groups == 0 && whole(groups)) return groups;
  return 0;
}

PackedConv merged(PackedConv conv) {
  const std::int64_t groups = together(conv);
  conv.shape.groups /= groups;
  conv.shape.in_channels *= groups;
  conv.shape.out_channels *= groups;
  return conv;
}

// A parameter is Winograd's unit; 0: none, but direct.
const PackedAlgorithm& inner(std::int64_t parameter) { return parameter == 0 ? kPackedTiles : kPackedWinograd; }

std::vector<std::int64_t> groups_parameters(const PackedConv& conv) {
  if (together(conv) == 0) return {};
  std::vector<std::int64_t> parameters = kPackedTiles.parameters(merged(conv));
  for (const std::int64_t unit : kPackedWinograd.parameters(merged(conv))) parameters.push_back(unit);
  return parameters;
}

Work groups_work(const PackedConv& conv, std::int64_t parameter) { return inner(parameter).work(merged(conv), parameter); }

// The weights as they are come first, in whole vectors, those of the merged groups after them.
std::int64_t own_weights(const PackedConv& conv) {
  const std::int64_t count = conv.channels_out() * conv.shape.in_channels * conv.shape.window.taps();
  return (count + conv.pack() - 1) / conv.pack() * conv.pack();
}

Tensor groups_pack(const PackedConv& conv, std::int64_t parameter, const float* w) {
  const std::int64_t groups = together(conv), taps = conv.shape.window.taps(), row = conv.shape.in_channels * taps;
  std::vector<float> spread(static_cast<std::size_t>(conv.channels_out() * groups * row), 0.0f);
  for (std::int64_t channel = 0; channel < conv.channels_out(); ++channel) {
    const std::int64_t place = channel / conv.shape.out_channels % groups;
    std::copy_n(w + channel * row, row, spread.data() + (channel * groups + place) * row);
  }
  const Tensor merged_weights = inner(parameter).pack(merged(conv), parameter, spread.data());
  Tensor packed = Tensor::empty(DType::f32, {own_weights(conv) + merged_weights.size()});
  std::copy_n(w, conv.channels_out() * row, packed.data<float>());
  std::copy_n(merged_weights.data<float>(), merged_weights.size(), packed.data<float>() + own_weights(conv));
  return packed;
}

class GroupsStep final : public SharedStep {
 public:
  GroupsStep(const PackedConv& conv, std::int64_t parameter, float low, float high)
      : conv_(conv), own_weights_(own_weights(conv)), low_(low), high_(high) {
    PackedConv watched = merged(conv);
    watched.activation = conv.activation.watched(spoilt_, *conv.table);
    merged_ = inner(parameter).make(watched, parameter, low, high);
    scratch_bytes_ = merged_->scratch_bytes();
  }
  bool scratch_each() const noexcept override { return merged_->scratch_each(); }
  std::string_view algorithm() const noexcept override { return merged_->algorithm(); }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    std::array<std::byte*, kSlope + 1> given{};
    std::copy_n(inputs, conv_.activation.has_slope() ? kSlope + 1 : kSlope, given.begin());
    given[1] += own_weights_ * static_cast<std::int64_t>(sizeof(float));
    spoilt_.store(false, std::memory_order_relaxed);
    merged_->run_by(team, given.data(), output, scratch);
    if (!spoilt_.load(std::memory_order_relaxed)) return;  // what it watches takes in the lanes behind the last channel
    const std::int64_t planes = conv_.shape.batch * conv_.blocks_of(conv_.channels_out());
    const std::int64_t plane = conv_.shape.window.out_count() * conv_.pack();
    auto* out = reinterpret_cast<float*>(output);
    std::atomic<bool> real{false};
    team.each(planes, [&](std::int64_t i, int) {
      if (has_nan(out + i * plane, i % conv_.blocks_of(conv_.channels_out()))) real.store(true, std::memory_order_relaxed);
    });
    if (!real.load(std::memory_order_relaxed)) return;
    team.each(planes, [&](std::int64_t i, int) { run_block(inputs, i, out + i * plane); });
  }

 private:
  // Whether a channel of this block of the result has a NaN.
  bool has_nan(const float* out, std::int64_t block) const noexcept {
    const std::int64_t pack = conv_.pack(), plane = conv_.shape.window.out_count() * pack;
    const std::int64_t lanes = std::min(pack, conv_.channels_out() - block * pack);
    bool found = false;
    for (std::int64_t at = 0; at < plane; at += pack)
      for (std::int64_t lane = 0; lane < lanes; ++lane) found |= out[at + lane] != out[at + lane];
    return found;
  }

  // One block of output channels of one image, by the definition of a grouped convolution.
  void run_block(std::byte* const* inputs, std::int64_t i, float* out) const noexcept {
    const ConvShape& shape = conv_.shape;
    const std::int64_t pack = conv_.pack(), plane = shape.window.out_count() * pack;
    const std::int64_t blocks = conv_.blocks_of(conv_.channels_out()), block = i % blocks;
    const float* x = reinterpret_cast<const float*>(inputs[0]) +
                     i / blocks * conv_.blocks_of(conv_.channels_in()) * shape.window.in_count() * pack;
    const auto* bias = reinterpret_cast<const float*>(inputs[2]);
    const auto* residual = inputs[3] == nullptr ? nullptr : reinterpret_cast<const float*>(inputs[3]) + i * plane;
    const float* slope = conv_.slope(inputs);
    const Activation& activation = conv_.activation;
    for (std::int64_t at = 0; at < plane; ++at) {
      const std::int64_t channel = block * pack + at % pack;
      float total = channel < conv_.channels_out() ? sum_of(x, reinterpret_cast<const float*>(inputs[1]), channel, at / pack) : 0;
      if (bias != nullptr) total += bias[channel];
      if (residual != nullptr && !activation.residual_last()) total += residual[at];
      total = total < low_ ? low_ : total;
      out[at] = total > high_ ? high_ : total;
    }
    if (activation.any())
      activation.run(out, plane / pack, pack, pack, slope == nullptr ? nullptr : slope + block * pack, residual);
  }

  float sum_of(const float* x, const float* w, std::int64_t channel, std::int64_t pixel) const noexcept {
    const Window& win = conv_.shape.window;
    const std::int64_t pack = conv_.pack(), first = channel / conv_.shape.out_channels * conv_.shape.in_channels;
    const std::int64_t ox = pixel % win.out[2], oy = pixel / win.out[2] % win.out[1], oz = pixel / win.out[2] / win.out[1];
    const auto inside = [&](std::size_t axis, std::int64_t place) { return place >= 0 && place < win.in[axis]; };
    w += channel * conv_.shape.in_channels * win.taps();
    float total = 0;
    for (std::int64_t c = first; c < first + conv_.shape.in_channels; ++c)
      for (std::int64_t tap = 0; tap < win.taps(); ++tap, ++w) {
        const std::int64_t z = win.source(0, oz, tap / win.kernel[2] / win.kernel[1]),
                           y = win.source(1, oy, tap / win.kernel[2] % win.kernel[1]),
                           ix = win.source(2, ox, tap % win.kernel[2]);
        if (!inside(0, z) || !inside(1, y) || !inside(2, ix)) continue;
        total += *w * x[(c / pack * win.in_count() + (z * win.in[1] + y) * win.in[2] + ix) * pack + c % pack];
      }
    return total;
  }

  PackedConv conv_;
  std::unique_ptr<Step> merged_;
  std::int64_t own_weights_;
  float low_, high_;
  mutable std::atomic<bool> spoilt_{false};  // a plan runs once at a time
};

std::unique_ptr<Step> groups_make(const PackedConv& conv, std::int64_t parameter, float low, float high) {
  return std::make_unique<GroupsStep>(conv, parameter, low, high);
}

}  // namespace

const PackedAlgorithm kPackedGroups{"merged groups", &groups_parameters, &groups_work, &groups_pack, &groups_make};

}  // namespace walle
