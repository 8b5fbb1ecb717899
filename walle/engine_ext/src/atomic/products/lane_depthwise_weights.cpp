// Gradient of a depthwise convolution by its weights: x and the gradient of the result are transposed to lanes
// (depthwise_lanes.h), a band of rows at a time; each pixel of the gradient is read once for all taps. A block's sums have one
// order, whatever the number of threads.
#include <algorithm>

#include "atomic/products/depthwise_lanes.h"
#include "atomic/products/lane_depthwise.h"
#include "atomic/scratch.h"
#include "kernels/depthwise.h"

namespace walle {

namespace {

// Cuts of an axis of results: neighbours between two cuts have the same taps inside the input.
std::vector<std::int64_t> cuts_of(const Window& window, std::size_t axis) {
  const auto meets = [&](std::int64_t o, std::int64_t k) {
    const std::int64_t at = window.source(axis, o, k);
    return at >= 0 && at < window.in[axis];
  };
  std::vector<std::int64_t> cuts{0};
  for (std::int64_t o = 1; o < window.out[axis]; ++o)
    for (std::int64_t k = 0; k < window.kernel[axis]; ++k)
      if (meets(o, k) != meets(o - 1, k)) {
        cuts.push_back(o);
        break;
      }
  cuts.push_back(window.out[axis]);
  return cuts;
}

class LaneWeightStep final : public SharedStep {
 public:
  LaneWeightStep(const ConvShape& shape, const Table& table, const std::optional<InputNormal>& normal = {})
      : shape_(shape), table_(table), normal_(normal) {
    const Window& win = shape.window;
    const std::vector<std::int64_t> row_cuts = cuts_of(win, 1), column_cuts = cuts_of(win, 2);
    for (std::size_t i = 0; i + 1 < row_cuts.size(); ++i)
      for (std::int64_t y = row_cuts[i]; y < row_cuts[i + 1];) y = add_band(y, row_cuts[i + 1], column_cuts);
    const auto floats = [&](std::int64_t pixels) { return scratch_floats(pixels * table.pack); };
    for (const Band& band : bands_) {
      x_floats_ = std::max(x_floats_, floats(band.source_rows * win.in[2]));
      gradient_floats_ = std::max(gradient_floats_, floats(band.rows * win.out[2]));
    }
    sum_floats_ = floats(win.taps());
    const std::int64_t factors = normal_ ? NormalFactors::floats(shape.groups, table.pack) : 0;
    scratch_bytes_ = static_cast<std::size_t>((x_floats_ + gradient_floats_ + sum_floats_ + factors) * kFloat);
  }

  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return normal_ ? "normalised lanes" : kLaneDepthwise.name; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t pack = table_.pack, channels = shape_.groups, taps = shape_.window.taps();
    const auto scratch_of = [&](int member) {
      return reinterpret_cast<float*>(scratch + static_cast<std::size_t>(member) * scratch_bytes_);
    };
    // Lanes beyond the last channel are multiplied, too.
    for (int member = 0; member < team.size() && channels % pack != 0; ++member)
      std::fill_n(scratch_of(member), x_floats_ + gradient_floats_, 0.0f);
    std::optional<NormalFactors> factors;  // the first member's, for all
    if (normal_)
      factors.emplace(*normal_, inputs + 2, channels, table_, scratch_of(0) + x_floats_ + gradient_floats_ + sum_floats_);
    const StopPoll start;
    team.each((channels + pack - 1) / pack,
              [&](std::int64_t block, int member) {
                StopPoll poll = start;
                float* sums = scratch_of(member) + x_floats_ + gradient_floats_;
                const std::int64_t first = block * pack, lanes = std::min(pack, channels - first);
                std::fill_n(sums, taps * pack, 0.0f);
                for (std::int64_t image = 0; image < shape_.batch; ++image)
                  if (!add(inputs, image, block, lanes, scratch_of(member), sums, factors ? &*factors : nullptr, poll)) return;
                table_.transpose(sums, pack, reinterpret_cast<float*>(output) + first * taps, taps, lanes, taps);
              },
              2 * shape_.multiplications());
  }

 private:
  // Results [first, first + count) of all rows of a band, which have the same taps.
  struct Piece {
    std::int64_t first, count;
    std::size_t first_tap, tap_count;
  };
  struct Band {
    std::int64_t first, rows, source_first, source_rows;
    std::size_t first_piece, piece_count;
  };

  // Adds a band from row `y` on, before row `end`; returns the row behind it.
  std::int64_t add_band(std::int64_t y, std::int64_t end, const std::vector<std::int64_t>& column_cuts) {
    const Window& win = shape_.window;
    const auto [ky_first, ky_last] = win.taps_of(1, y);
    if (ky_first >= ky_last) return end;
    const std::int64_t reach = (ky_last - 1 - ky_first) * win.dilation[1] + 1, source = win.source(1, y, ky_first);
    const std::int64_t most = std::min((kBandPixels / win.in[2] - reach) / win.stride[1] + 1, kBandPixels / win.out[2]);
    Band band{y, std::clamp<std::int64_t>(most, 1, end - y), source, 0, pieces_.size(), 0};
    band.source_rows = (band.rows - 1) * win.stride[1] + reach;
    for (std::size_t i = 0; i + 1 < column_cuts.size(); ++i) {
      Piece piece{column_cuts[i], column_cuts[i + 1] - column_cuts[i], taps_.size(), 0};
      const auto [kx_first, kx_last] = win.taps_of(2, piece.first);
      for (std::int64_t ky = ky_first; ky < ky_last; ++ky)
        for (std::int64_t kx = kx_first; kx < kx_last; ++kx)
          taps_.push_back({((ky - ky_first) * win.dilation[1] * win.in[2] + win.source(2, piece.first, kx)) * table_.pack,
                           (ky * win.kernel[2] + kx) * table_.pack});
      piece.tap_count = taps_.size() - piece.first_tap;
      if (piece.tap_count > 0) pieces_.push_back(piece);
    }
    band.piece_count = pieces_.size() - band.first_piece;
    bands_.push_back(band);
    return y + band.rows;
  }

  // Adds the sums of `lanes` planes of a block of an image; returns false once a stop was requested.
  bool add(std::byte* const* inputs, std::int64_t image, std::int64_t block, std::int64_t lanes, float* scratch, float* sums,
           const NormalFactors* normal, StopPoll& poll) const noexcept {
    const Window& win = shape_.window;
    const std::int64_t pack = table_.pack, in = win.in_count(), out = win.out_count(),
                       plane = image * shape_.groups + block * pack;
    const float *x = reinterpret_cast<const float*>(inputs[0]) + plane * in,
                *gradient = reinterpret_cast<const float*>(inputs[1]) + plane * out;
    float *x_lanes = scratch, *gradient_lanes = scratch + x_floats_;
    for (const Band& band : bands_) {
      if (!poll.proceed(band.rows * win.out[2] * win.taps())) return false;
      table_.transpose(x + band.source_first * win.in[2], in, x_lanes, pack, band.source_rows * win.in[2], lanes);
      if (normal != nullptr) normal->run(x_lanes, band.source_rows * win.in[2], block);
      table_.transpose(gradient + band.first * win.out[2], out, gradient_lanes, pack, band.rows * win.out[2], lanes);
      for (std::size_t i = band.first_piece; i < band.first_piece + band.piece_count; ++i) {
        DepthwiseWeightArgs args;
        args.rows = band.rows;
        args.count = pieces_[i].count;
        args.gradient = gradient_lanes + pieces_[i].first * pack;
        args.gradient_row = win.out[2] * pack;
        args.in = x_lanes;
        args.in_row = win.stride[1] * win.in[2] * pack;
        args.in_step = win.stride[2] * pack;
        args.taps = taps_.data() + pieces_[i].first_tap;
        args.tap_count = static_cast<std::int64_t>(pieces_[i].tap_count);
        args.sums = sums;
        table_.depthwise_weights(args);
      }
    }
    return true;
  }

  ConvShape shape_;
  const Table& table_;
  std::optional<InputNormal> normal_;
  std::vector<Band> bands_;
  std::vector<Piece> pieces_;
  std::vector<Tap> taps_;
  std::int64_t x_floats_ = 0, gradient_floats_ = 0, sum_floats_ = 0;
};

}  // namespace

std::unique_ptr<HostStep> make_lane_weight_gradient(const ConvShape& shape, const Table& table) {
  return DepthwiseLanes::applies(shape) ? std::make_unique<LaneWeightStep>(shape, table) : nullptr;
}

std::unique_ptr<HostStep> make_normalised_weight_gradient(const ConvShape& shape, const Table& table, const InputNormal& normal) {
  return std::make_unique<LaneWeightStep>(shape, table, normal);
}

}  // namespace walle
