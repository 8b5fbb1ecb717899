#include "atomic/lane_rows.h"

namespace walle {

namespace {

bool inside(const Window& window, std::size_t axis, std::int64_t o, std::int64_t k) {
  const std::int64_t at = window.source(axis, o, k);
  return at >= 0 && at < window.in[axis];
}

// Return the taps of output `o` along an axis that lie in the padded input.
std::int64_t counted(const Window& window, std::size_t axis, std::int64_t o) {
  std::int64_t count = 0;
  for (std::int64_t k = 0; k < window.kernel[axis]; ++k) {
    const std::int64_t at = window.source(axis, o, k);
    count += at >= -window.begin[axis] && at < window.in[axis] + window.end[axis];
  }
  return count;
}

// Return whether two outputs of a row read and count the same taps.
bool alike(const Window& window, std::int64_t a, std::int64_t b) {
  for (std::int64_t k = 0; k < window.kernel[2]; ++k)
    if (inside(window, 2, a, k) != inside(window, 2, b, k)) return false;
  return counted(window, 2, a) == counted(window, 2, b);
}

}  // namespace

double taps_met(const Window& window) noexcept {
  double all = 1;
  for (std::size_t axis = 0; axis < Window::kAxes; ++axis) {
    std::int64_t met = 0;
    for (std::int64_t k = 0; k < window.kernel[axis]; ++k) {
      const auto [first, last] = window.valid(axis, k);
      met += last - first;
    }
    all *= static_cast<double>(met);
  }
  return all;
}

LaneRows::LaneRows(const Window& window, std::int64_t pack)
    : in_step_(window.stride[2] * pack), in_plane_(window.in_count() * pack), out_plane_(window.out_count() * pack) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t x = 0; x < window.out[2]; ++x)
    if (x == 0 || !alike(window, x - 1, x)) cuts.push_back(x);
  cuts.push_back(window.out[2]);
  for (std::int64_t z = 0; z < window.out[0]; ++z)
    for (std::int64_t y = 0; y < window.out[1]; ++y)
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::int64_t x = cuts[i];
        Row row{cuts[i + 1] - x, ((z * window.out[1] + y) * window.out[2] + x) * pack, taps_.size(), 0,
                counted(window, 0, z) * counted(window, 1, y) * counted(window, 2, x)};
        std::int64_t place = 0;
        for (std::int64_t kz = 0; kz < window.kernel[0]; ++kz)
          for (std::int64_t ky = 0; ky < window.kernel[1]; ++ky)
            for (std::int64_t kx = 0; kx < window.kernel[2]; ++kx, place += pack) {
              if (!inside(window, 0, z, kz) || !inside(window, 1, y, ky) || !inside(window, 2, x, kx)) continue;
              const std::int64_t line = window.source(0, z, kz) * window.in[1] + window.source(1, y, ky);
              taps_.push_back({(line * window.in[2] + window.source(2, x, kx)) * pack, place});
            }
        row.tap_count = taps_.size() - row.first_tap;
        rows_.push_back(row);
      }
}

}  // namespace walle
