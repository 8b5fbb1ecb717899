// Convolution lane by lane in packed layouts, for groups of few channels: a lane of an output block sums the channels of its own
// group. Each of these channels is a plane whose lanes are what the output's lanes read, gathered from the packed image; where
// an input channel gives one output channel, the image has that order already.
//
// Nothing is multiplied by weights of 0 between groups, as in merged groups, and no group's infinity or NaN meets another group.
#include <algorithm>

#include "atomic/lane_rows.h"
#include "atomic/products/lane_sources.h"
#include "kernels/depthwise.h"

namespace walle {

namespace {

// Gathered planes of an output block stay in a second-level cache until they are summed.
constexpr std::int64_t kGatheredBytes = 256 << 10;

// Floats that stay in a first-level cache between two passes.
constexpr std::int64_t kNearRows = 2048;

bool gathers(const ConvShape& shape) noexcept { return shape.in_channels > 1 || shape.out_channels > 1; }

// Rows of outputs that are computed from planes gathered at once, and the rows of the input that they read.
struct Bands {
  std::int64_t rows = 1, in_rows = 1;

  explicit Bands(const ConvProblem& conv) : rows(conv.shape.window.out[1]), in_rows(conv.shape.window.in[1]) {
    const Window& win = conv.shape.window;
    if (!gathers(conv.shape) || win.in[0] > 1) return;
    const std::int64_t line = win.in[2] * conv.pack() * kFloat * conv.shape.in_channels;
    const std::int64_t reach = (win.kernel[1] - 1) * win.dilation[1] + 1;
    rows = std::clamp<std::int64_t>((kGatheredBytes / line - reach) / win.stride[1] + 1, 1, win.out[1]);
    in_rows = std::min(win.in[1], (rows - 1) * win.stride[1] + reach);
  }
  // The first row of the input that a band reads.
  std::int64_t first(const Window& win, std::int64_t band) const noexcept {
    return std::clamp<std::int64_t>(band * rows * win.stride[1] - win.begin[1], 0, win.in[1] - in_rows);
  }
};

class LanesStep final : public SharedStep {
 public:
  LanesStep(const ConvProblem& conv, const EpilogueKernel& epilogue)
      : conv_(conv), bands_(conv), epilogue_(epilogue), plane_(conv.shape.window.in_count() * conv.pack()) {
    const Window& win = conv.shape.window;
    const std::int64_t pack = conv.pack();
    if (gathers(conv.shape)) {
      plane_ = win.in[0] * bands_.in_rows * win.in[2] * pack;
      constexpr auto kLine = static_cast<std::int64_t>(Storage::kAlignment);  // every member's part is aligned
      scratch_bytes_ = static_cast<std::size_t>((conv.shape.in_channels * plane_ * kFloat + kLine - 1) / kLine * kLine);
      for (std::int64_t block = 0; block < conv.blocks_of(conv.channels_out()); ++block)
        for (std::int64_t in = 0; in < conv.shape.in_channels; ++in) sources_.push_back(lane_sources(conv, block, in));
    }
    for (std::int64_t z = 0; z < win.out[0]; ++z)
      for (std::int64_t y = 0; y < win.out[1]; ++y) {
        rows_.push_back({lines_.size(), 0});
        const std::int64_t band_first = bands_.first(win, y / bands_.rows);
        for (std::int64_t in = 0; in < conv.shape.in_channels; ++in)
          for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz)
            for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky) {
              const std::int64_t from_z = win.source(0, z, kz), from_y = win.source(1, y, ky);
              if (from_z < 0 || from_z >= win.in[0] || from_y < 0 || from_y >= win.in[1]) continue;
              const std::int64_t line = (from_z * bands_.in_rows + from_y - band_first) * win.in[2] - win.begin[2];
              lines_.push_back(
                  {in * plane_ + line * pack, ((in * win.kernel[0] + kz) * win.kernel[1] + ky) * win.kernel[2] * pack});
            }
        rows_.back().line_count = lines_.size() - rows_.back().first_line;
      }
  }
  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return conv_.shape.in_channels > 1 ? "lane groups" : "depthwise rows"; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const Window& win = conv_.shape.window;
    const std::int64_t bands = (win.out[1] + bands_.rows - 1) / bands_.rows, blocks = conv_.blocks_of(conv_.channels_out());
    const StopPoll start;
    team.each(
        conv_.shape.batch * blocks * bands,
        [&](std::int64_t unit, int member) {
          auto* gathered = reinterpret_cast<float*>(scratch + member * static_cast<std::ptrdiff_t>(scratch_bytes_));
          run_band(inputs, reinterpret_cast<float*>(output), gathered, unit / bands / blocks, unit / bands % blocks, unit % bands,
                   start);
        },
        2 * conv_.shape.multiplications());
  }

 private:
  struct Row {
    std::size_t first_line, line_count;
  };

  void run_band(std::byte* const* inputs, float* out, float* gathered, std::int64_t image, std::int64_t block, std::int64_t band,
                StopPoll poll) const noexcept {
    const Window& win = conv_.shape.window;
    const std::int64_t pack = conv_.pack(), plane = win.out_count() * pack, row_floats = win.out[2] * pack;
    const std::int64_t in_plane = win.in_count() * pack, channels = conv_.shape.in_channels;
    const std::int64_t at = (image * conv_.blocks_of(conv_.channels_out()) + block) * plane;
    const float* x = reinterpret_cast<const float*>(inputs[0]) + image * conv_.blocks_of(conv_.channels_in()) * in_plane;
    const EpilogueOperands operands = epilogue_.operands(inputs).at(block * pack, at);
    if (sources_.empty())
      x += block * in_plane;
    else if (!gather(x + bands_.first(win, band) * win.in[2] * pack, block, gathered, poll))
      return;
    DepthwiseRowArgs args;
    args.count = win.out[2];
    args.taps = win.kernel[2];
    args.stride = win.stride[2];
    args.in = sources_.empty() ? x : gathered;
    args.first = win.begin[2];
    args.last = win.begin[2] + win.in[2];
    args.w = reinterpret_cast<const float*>(inputs[1]) + block * channels * win.taps() * pack;
    const std::int64_t first = band * bands_.rows, last = std::min(win.out[1], first + bands_.rows);
    for (std::int64_t z = 0; z < win.out[0]; ++z) {
      std::int64_t begun = first;  // rows whose rest of the epilogue is still to be applied
      for (std::int64_t y = first; y < last; ++y) {
        if (!poll.proceed(args.count * channels * win.taps())) return;
        const Row& row = rows_[static_cast<std::size_t>(z * win.out[1] + y)];
        const std::int64_t to = (z * win.out[1] + y) * row_floats;
        args.lines = lines_.data() + row.first_line;
        args.line_count = static_cast<std::int64_t>(row.line_count);
        args.out = out + at + to;
        args.finish = epilogue_.finish(operands.at(0, to));
        conv_.table->depthwise_row(args);
        if (!epilogue_.has_rest() || ((y + 1 - begun) * row_floats < kNearRows && y + 1 < last)) continue;
        const std::int64_t from = (z * win.out[1] + begun) * row_floats;
        epilogue_.run_rest(out + at + from, (y + 1 - begun) * win.out[2], pack, pack, operands.at(0, from));
        begun = y + 1;
      }
    }
  }

  // Gathers the rows of a band, which begin at `image` in each plane. Returns false once a stop was requested.
  bool gather(const float* image, std::int64_t block, float* gathered, StopPoll& poll) const noexcept {
    const std::int64_t channels = conv_.shape.in_channels, in_plane = conv_.shape.window.in_count() * conv_.pack();
    for (std::int64_t in = 0; in < channels; ++in) {
      if (!poll.proceed(plane_)) return false;
      gather_lanes(*conv_.table, sources_[static_cast<std::size_t>(block * channels + in)], image, in_plane,
                   gathered + in * plane_, plane_ / conv_.pack());
    }
    return true;
  }

  ConvProblem conv_;
  Bands bands_;
  EpilogueKernel epilogue_;
  std::int64_t plane_;  // floats of one plane that a band reads
  std::vector<Tap> lines_;
  std::vector<Row> rows_;
  std::vector<std::vector<LaneSource>> sources_;  // by output block and channel of a group; empty where nothing is gathered
};

bool lanes_apply(const ConvProblem& conv) {
  const ConvShape& shape = conv.shape;
  const Window& win = shape.window;
  return conv.packable && !conv.plain_input && shape.groups > 1 && shape.batch * shape.out_channels > 0 && win.out_count() > 0 &&
         win.in_count() > 0 && win.dilation[2] == 1 && has_depthwise_row(win.kernel[2], win.stride[2]);
}

std::vector<std::int64_t> rows_parameters(const ConvProblem& conv) {
  return single_parameter(conv.shape.in_channels == 1 && lanes_apply(conv));
}

// Return a bound of the input blocks that lane_sources() returns, without making them.
std::int64_t most_sources(const ConvProblem& conv) {
  const std::int64_t groups = (conv.pack() - 2) / conv.shape.out_channels + 2;  // groups that meet in an output block
  return std::min(groups, (groups - 1) * conv.shape.in_channels / conv.pack() + 2);
}

// Groups of more channels, which do not fill whole blocks.
std::vector<std::int64_t> lane_groups_parameters(const ConvProblem& conv) {
  const ConvShape& shape = conv.shape;
  const bool whole = shape.in_channels % conv.pack() == 0 && shape.out_channels % conv.pack() == 0;
  return single_parameter(shape.in_channels > 1 && !whole && lanes_apply(conv) && most_sources(conv) <= kMostLaneParts);
}

Work lanes_work(const ConvProblem& conv, std::int64_t) {
  const ConvShape& shape = conv.shape;
  const Bands bands(conv);
  const auto planes = static_cast<double>(shape.batch * conv.blocks_of(conv.channels_out()) * conv.pack());
  const auto channels = static_cast<double>(shape.in_channels);
  // Time of a sum in operations of the kernel that loads an input for each, and of beginning a row. Gathered planes of several
  // channels are larger than a first-level cache.
  const double sum = conv.table->lanes == 1 ? 1 : shape.in_channels > 1 ? 0.7 : 0.58;
  constexpr double kBeginRow = 18;
  Work work;
  work.lanes =
      2 * planes *
      (sum * channels * taps_met(shape.window) + kBeginRow * static_cast<double>(shape.window.out[0] * shape.window.out[1]));
  work.move(planes * kFloat * static_cast<double>(shape.window.in_count() + shape.window.out_count()));
  if (gathers(shape)) {  // planes are written and read, rows that two bands read twice
    const double twice =
        static_cast<double>(bands.in_rows * shape.window.out[1]) / static_cast<double>(bands.rows * shape.window.in[1]);
    work.moved += 2 * planes * kFloat * channels * twice * static_cast<double>(shape.window.in_count());
  }
  return work;
}

std::unique_ptr<HostStep> lanes_make(const ConvProblem& conv, std::int64_t, const EpilogueKernel& epilogue) {
  return std::make_unique<LanesStep>(conv, epilogue);
}

}  // namespace

Tensor pack_lane_weights(const ConvProblem& conv, std::int64_t, const float* w) {
  const std::int64_t pack = conv.pack(), sums = conv.shape.in_channels * conv.shape.window.taps(), channels = conv.channels_out();
  Tensor packed = Tensor::empty(DType::f32, {conv.blocks_of(channels), sums, pack});
  auto* to = packed.data<float>();
  for (std::int64_t block = 0; block < conv.blocks_of(channels); ++block)
    for (std::int64_t sum = 0; sum < sums; ++sum)
      for (std::int64_t channel = block * pack; channel < (block + 1) * pack; ++channel)
        *to++ = channel < channels ? w[channel * sums + sum] : 0.0f;
  return packed;
}

extern const ConvAlgorithm kPackedRows, kLaneGroups;
const ConvAlgorithm kPackedRows{"depthwise rows", &rows_parameters, &lanes_work, &pack_lane_weights, &lanes_make};
const ConvAlgorithm kLaneGroups{"lane groups", &lane_groups_parameters, &lanes_work, &pack_lane_weights, &lanes_make};

}  // namespace walle
