#include "atomic/lane_pooling.h"

#include <algorithm>

#include "atomic/lane_rows.h"
#include "atomic/scratch.h"
#include "core/stop.h"

namespace walle {

namespace {

// The planes of a block of channels are transposed, a band of rows at a time, so that a vector is one pixel of `pack` channels.
class LanePoolStep final : public SharedStep {
 public:
  LanePoolStep(const Window& window, std::int64_t batch, std::int64_t channels, const Table& table)
      : window_(window), batch_(batch), channels_(channels), table_(table), rows_(window, table.pack) {
    for (std::size_t row = 0; row < rows_.rows().size();) row = add_band(row);
    const auto floats = [&](std::int64_t pixels) { return scratch_floats(pixels * table.pack); };
    for (const Band& band : bands_) {
      source_floats_ = std::max(source_floats_, floats((band.source_last - band.source_first) * window.in[2]));
      result_floats_ = std::max(result_floats_, floats((band.last - band.first) * window.out[2]));
    }
    scratch_bytes_ = static_cast<std::size_t>(source_floats_ + result_floats_) * sizeof(float);
  }

  bool scratch_each() const noexcept override { return true; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t pack = table_.pack, blocks = (channels_ + pack - 1) / pack;
    const auto scratch_of = [&](int member) {
      return reinterpret_cast<float*>(scratch + static_cast<std::size_t>(member) * scratch_bytes_);
    };
    for (int member = 0; member < team.size() && channels_ % pack != 0; ++member)  // lanes beyond the last channel are read
      std::fill_n(scratch_of(member), source_floats_, 0.0f);
    const StopPoll start;
    team.each(
        batch_ * blocks,
        [&](std::int64_t unit, int member) {
          StopPoll poll = start;
          const std::int64_t first = unit % blocks * pack, plane = unit / blocks * channels_ + first;
          pool(reinterpret_cast<const float*>(inputs[0]) + plane * window_.in_count(),
               reinterpret_cast<float*>(output) + plane * window_.out_count(), std::min(pack, channels_ - first),
               scratch_of(member), poll);
        },
        static_cast<double>(batch_ * channels_) * static_cast<double>(window_.out_count() * window_.taps()));
  }

 private:
  // Rows [first, last) of results, those of the input that they read, and their parts (LaneRows).
  struct Band {
    std::int64_t first, last, source_first, source_last;
    std::size_t first_part, part_count;
  };

  // Adds a band from a part on that begins a row; returns the part behind it.
  std::size_t add_band(std::size_t first_part) {
    const std::int64_t row_floats = window_.out[2] * table_.pack;
    const auto line_of = [&](std::size_t part) { return rows_.rows()[part].out / row_floats; };
    Band band{line_of(first_part), 0, window_.in[1], 0, first_part, 0};
    std::size_t part = first_part;
    while (part < rows_.rows().size()) {
      const std::int64_t line = line_of(part);
      const auto [first, last] = window_.taps_of(1, line);
      std::int64_t from = band.source_first, to = band.source_last;
      if (first < last) {
        from = std::min(from, window_.source(1, line, first));
        to = std::max(to, window_.source(1, line, last - 1) + 1);
      }
      const std::int64_t pixels = std::max((to - from) * window_.in[2], (line + 1 - band.first) * window_.out[2]);
      if (line > band.first && pixels > kBandPixels) break;
      band.source_first = from;
      band.source_last = to;
      band.last = line + 1;
      while (part < rows_.rows().size() && line_of(part) == line) ++part;
    }
    band.source_first = std::min(band.source_first, band.source_last);
    band.part_count = part - first_part;
    bands_.push_back(band);
    return part;
  }

  void pool(const float* in, float* out, std::int64_t lanes, float* pixels, StopPoll& poll) const noexcept {
    const std::int64_t pack = table_.pack, width = window_.in[2], out_width = window_.out[2];
    float* results = pixels + source_floats_;
    for (const Band& band : bands_) {
      const std::int64_t count = (band.last - band.first) * out_width;
      if (!poll.proceed(count * window_.taps())) return;
      table_.transpose(in + band.source_first * width, window_.in_count(), pixels, pack,
                       (band.source_last - band.source_first) * width, lanes);
      for (std::size_t i = band.first_part; i < band.first_part + band.part_count; ++i)
        table_.pool_max(
            rows_.args(rows_.rows()[i], pixels - band.source_first * width * pack, results - band.first * out_width * pack));
      table_.transpose(results, pack, out + band.first * out_width, window_.out_count(), lanes, count);
    }
  }

  Window window_;
  std::int64_t batch_, channels_;
  const Table& table_;
  LaneRows rows_;
  std::vector<Band> bands_;
  std::int64_t source_floats_ = 0, result_floats_ = 0;
};

}  // namespace

std::unique_ptr<HostStep> make_lane_pool_max(const Window& window, const Dims& x, DType dtype, const Table& table) {
  constexpr std::int64_t kMostRows = 1 << 12, kWidest = 1 << 13;  // parts of rows are listed, a band has a row
  if (dtype != DType::f32 || window.in[0] != 1 || window.out[0] != 1 || window.kernel[0] != 1 || x[0] == 0 ||
      2 * x[1] < table.pack || window.in_count() == 0 || window.out_count() == 0 || window.in[2] > kWidest ||
      window.out[1] > kMostRows || window.taps() < 2 || window.taps() * window.out[1] > 16 * kMostRows)
    return nullptr;
  auto step = std::make_unique<LanePoolStep>(window, x[0], x[1], table);
  if (step->scratch_bytes(1) > kMostLaneBytes) return nullptr;
  return step;
}

}  // namespace walle
