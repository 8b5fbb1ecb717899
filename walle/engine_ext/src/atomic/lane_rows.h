// Windows over packed pixels, as rows of outputs that read the same taps: outputs at borders are separate rows, so that
// lane-by-lane kernels (depthwise convolution, pooling) need neither copies nor tests.
#pragma once
#include "geometry/window.h"
#include "kernels/table.h"

namespace walle {

// Pixels of a band of rows that is transposed to blocks of channels, about: what stays in the cache nearest to the core.
inline constexpr std::int64_t kBandPixels = 1024;

// Scratch of a member of a team, at most: a band has the rows that one row of results reads, which may be far apart.
inline constexpr std::size_t kMostLaneBytes = 4 << 20;

// Return the taps that lie inside the input, of all outputs.
double taps_met(const Window& window) noexcept;

class LaneRows {
 public:
  struct Row {
    std::int64_t count, out;  // pixels, and the first one's place in its plane, in floats
    std::size_t first_tap, tap_count;
    std::int64_t counted;  // taps inside the padded input: a mean with pads divides by it
  };

  LaneRows(const Window& window, std::int64_t pack);

  const std::vector<Row>& rows() const noexcept { return rows_; }
  // The arguments of one row of a plane; weights and finish are the caller's.
  LaneArgs args(const Row& row, const float* in_plane, float* out_plane) const noexcept {
    LaneArgs args;
    args.count = row.count;
    args.in = in_plane;
    args.in_step = in_step_;
    args.taps = taps_.data() + row.first_tap;
    args.tap_count = static_cast<std::int64_t>(row.tap_count);
    args.out = out_plane + row.out;
    return args;
  }
  std::int64_t in_plane() const noexcept { return in_plane_; }  // floats
  std::int64_t out_plane() const noexcept { return out_plane_; }

 private:
  std::int64_t in_step_, in_plane_, out_plane_;
  std::vector<Tap> taps_;  // places count in floats of [tap][pack] weights
  std::vector<Row> rows_;
};

}  // namespace walle
