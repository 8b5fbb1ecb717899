// Merged groups: convolution in groups whose channels do not fill whole blocks of a packed layout. Direct, each block of the
// result sums the channels of the groups that it belongs to. By Winograd, as many groups as fill blocks become one. Both have
// weights of 0 between different groups.
//
// 0 times an infinity or a NaN is NaN, so an infinity or a NaN of one group would spread to those that it is merged with. A
// result with a NaN is therefore computed again, group by group: slowly, but only groups without a NaN are of use in such a
// result. Lanes after the last channel may hold anything and are ignored.
#include <algorithm>
#include <array>
#include <atomic>

#include "atomic/products/convolution.h"

namespace walle {

namespace {

// Return how many groups become one, the fewest that fill blocks; 0: no number does.
std::int64_t together(const ConvProblem& conv) {
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

ConvProblem merged(ConvProblem conv) {
  const std::int64_t groups = together(conv);
  conv.shape.groups /= groups;
  conv.shape.in_channels *= groups;
  conv.shape.out_channels *= groups;
  return conv;
}

// The algorithm of the merged groups, and its problem. A parameter is Winograd's unit; 0 means direct.
const ConvAlgorithm& inner(std::int64_t parameter) { return parameter == 0 ? kGroupTiles : kPackedWinograd; }
ConvProblem inner_problem(const ConvProblem& conv, std::int64_t parameter) { return parameter == 0 ? conv : merged(conv); }

std::vector<std::int64_t> groups_parameters(const ConvProblem& conv) {
  if (!conv.packable || together(conv) == 0) return {};
  std::vector<std::int64_t> parameters = kGroupTiles.parameters(conv);
  for (const std::int64_t unit : kPackedWinograd.parameters(merged(conv))) parameters.push_back(unit);
  return parameters;
}

Work groups_work(const ConvProblem& conv, std::int64_t parameter) {
  return inner(parameter).work(inner_problem(conv, parameter), parameter);
}

// Return the size of the unmerged weights, in whole vectors. They come first; those of the merged groups follow.
std::int64_t own_weights(const ConvProblem& conv) {
  const std::int64_t count = conv.channels_out() * conv.shape.in_channels * conv.shape.window.taps();
  return (count + conv.pack() - 1) / conv.pack() * conv.pack();
}

// The weights of the merged groups.
Tensor merged_weights(const ConvProblem& conv, std::int64_t parameter, const float* w) {
  if (parameter == 0) return inner(parameter).pack(conv, parameter, w);
  const std::int64_t groups = together(conv), row = conv.shape.in_channels * conv.shape.window.taps();
  std::vector<float> spread(static_cast<std::size_t>(conv.channels_out() * groups * row), 0.0f);
  for (std::int64_t channel = 0; channel < conv.channels_out(); ++channel) {
    const std::int64_t place = channel / conv.shape.out_channels % groups;
    std::copy_n(w + channel * row, row, spread.data() + (channel * groups + place) * row);
  }
  return inner(parameter).pack(merged(conv), parameter, spread.data());
}

Tensor groups_pack(const ConvProblem& conv, std::int64_t parameter, const float* w) {
  const Tensor weights = merged_weights(conv, parameter, w);
  Tensor packed = Tensor::empty(DType::f32, {own_weights(conv) + weights.size()});
  std::copy_n(w, conv.channels_out() * conv.shape.in_channels * conv.shape.window.taps(), packed.data<float>());
  std::copy_n(weights.data<float>(), weights.size(), packed.data<float>() + own_weights(conv));
  return packed;
}

class GroupsStep final : public SharedStep {
 public:
  GroupsStep(const ConvProblem& conv, std::int64_t parameter, const EpilogueKernel& epilogue)
      : conv_(conv), own_weights_(own_weights(conv)), epilogue_(epilogue) {
    merged_ = inner(parameter).make(inner_problem(conv, parameter), parameter, epilogue.watched(nans_seen_, *conv.table));
    scratch_bytes_ = merged_->scratch_bytes();
  }
  bool scratch_each() const noexcept override { return merged_->scratch_each(); }
  std::string_view algorithm() const noexcept override { return merged_->algorithm(); }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    std::array<std::byte*, kSlope + 1> given{};
    std::copy_n(inputs, epilogue_.has_slope() ? kSlope + 1 : kSlope, given.begin());
    given[1] += own_weights_ * static_cast<std::int64_t>(sizeof(float));
    const std::uint64_t before = nans_seen_.load(std::memory_order_relaxed);
    merged_->run_by(team, given.data(), output, scratch);
    // The lanes after the last channel count too, and what another thread's run has seen meanwhile.
    if (nans_seen_.load(std::memory_order_relaxed) == before) return;
    const std::int64_t planes = conv_.shape.batch * conv_.blocks_of(conv_.channels_out());
    const std::int64_t plane = conv_.shape.window.out_count() * conv_.pack();
    auto* out = reinterpret_cast<float*>(output);
    std::atomic<bool> real{false};
    team.each(planes, [&](std::int64_t i, int) {
      if (has_nan(out + i * plane, i % conv_.blocks_of(conv_.channels_out()))) real.store(true, std::memory_order_relaxed);
    });
    if (!real.load(std::memory_order_relaxed)) return;
    const StopPoll start;
    team.each(planes, [&](std::int64_t i, int) { run_block(inputs, i, out + i * plane, start); });
  }

 private:
  // Return whether a channel of this block of the result has a NaN.
  bool has_nan(const float* out, std::int64_t block) const noexcept {
    const std::int64_t pack = conv_.pack(), plane = conv_.shape.window.out_count() * pack;
    const std::int64_t lanes = std::min(pack, conv_.channels_out() - block * pack);
    bool found = false;
    for (std::int64_t at = 0; at < plane; at += pack)
      for (std::int64_t lane = 0; lane < lanes; ++lane) found |= out[at + lane] != out[at + lane];
    return found;
  }

  // Computes one block of output channels of one image, by the definition of a grouped convolution.
  void run_block(std::byte* const* inputs, std::int64_t i, float* out, StopPoll poll) const noexcept {
    const ConvShape& shape = conv_.shape;
    const std::int64_t pack = conv_.pack(), plane = shape.window.out_count() * pack;
    const std::int64_t blocks = conv_.blocks_of(conv_.channels_out()), block = i % blocks;
    const float* x = reinterpret_cast<const float*>(inputs[0]) +
                     i / blocks * conv_.blocks_of(conv_.channels_in()) * shape.window.in_count() * pack;
    const EpilogueOperands operands = epilogue_.operands(inputs).at(block * pack, i * plane);
    const Finish finish = epilogue_.finish(operands);
    const std::int64_t sums = shape.in_channels * shape.window.taps();
    for (std::int64_t at = 0; at < plane && poll.proceed(sums); ++at) {
      const std::int64_t channel = block * pack + at % pack;
      float total = channel < conv_.channels_out() ? sum_of(x, reinterpret_cast<const float*>(inputs[1]), channel, at / pack) : 0;
      if (finish.bias != nullptr) total += finish.bias[at % pack];
      if (finish.residual != nullptr) total += finish.residual[at];
      total = total < finish.low ? finish.low : total;
      out[at] = total > finish.high ? finish.high : total;
    }
    if (epilogue_.has_rest()) epilogue_.run_rest(out, plane / pack, pack, pack, operands);
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

  ConvProblem conv_;
  std::unique_ptr<HostStep> merged_;
  std::int64_t own_weights_;
  EpilogueKernel epilogue_;
  mutable std::atomic<std::uint64_t> nans_seen_{0};  // NaNs that all runs of the plan saw; several may be in progress
};

std::unique_ptr<HostStep> groups_make(const ConvProblem& conv, std::int64_t parameter, const EpilogueKernel& epilogue) {
  return std::make_unique<GroupsStep>(conv, parameter, epilogue);
}

}  // namespace

extern const ConvAlgorithm kPackedGroups;
const ConvAlgorithm kPackedGroups{"merged groups", &groups_parameters, &groups_work, &groups_pack, &groups_make};

}  // namespace walle
