#include "atomic/products/depthwise_lanes.h"

#include <algorithm>

#include "atomic/channel_gate.h"
#include "atomic/scratch.h"
#include "kernels/depthwise.h"

namespace walle {

namespace {

// Return whether a band of one row, and the list of taps of all rows, are small.
bool is_small(const Window& win) noexcept {
  constexpr double kMostPixels = kMostLaneBytes / (16 * sizeof(float)), kMostTaps = 1 << 16;
  const auto of = [](std::int64_t number) { return static_cast<double>(number); };
  const auto reach = [&](std::size_t axis) { return of(win.kernel[axis] - 1) * of(win.dilation[axis]); };
  const auto most = [&](std::size_t axis) { return of(std::max(win.in[axis], win.out[axis])); };
  const double rows = std::min(reach(1) + 1, most(1));
  const double columns = most(2) + reach(2) + of(std::max<std::int64_t>(win.begin[2], 0) + std::max<std::int64_t>(win.end[2], 0));
  return (rows + 1) * columns + of(win.taps()) <= kMostPixels && of(win.taps()) * most(1) <= kMostTaps;
}

}  // namespace

NormalFactors::NormalFactors(const InputNormal& normal, std::byte* const* operands, std::int64_t channels, const Table& table,
                             float* memory) noexcept
    : table_(table), low_(static_cast<float>(normal.low)), high_(static_cast<float>(normal.high)) {
  const auto at = [&](std::size_t i) { return reinterpret_cast<const float*>(operands[i]); };
  float *a = memory, *b = memory + floats(channels, table.pack) / 2;
  std::fill_n(memory, floats(channels, table.pack), 0.0f);
  find_normal_factors(at(0), at(1), at(2), channels, normal.epsilon, a, b);
  a_ = a;
  b_ = b;
}

void NormalFactors::run(float* pixels, std::int64_t count, std::int64_t block) const noexcept {
  const Tap itself{0, 0};
  DepthwiseRowArgs args;  // rounds a * x + b as often as channel_affine: a gate of the result is computed from x again
  args.count = args.last = count;
  args.in = args.out = pixels;
  args.lines = &itself;
  args.line_count = 1;
  args.w = a_ + block * table_.pack;
  args.finish.bias = b_ + block * table_.pack;
  args.finish.low = low_;
  args.finish.high = high_;
  table_.depthwise_row(args);
}

bool DepthwiseLanes::applies(const ConvShape& shape) noexcept {
  const Window& win = shape.window;
  return shape.dtype == DType::f32 && shape.in_channels == 1 && shape.out_channels == 1 && win.in[0] == 1 && win.out[0] == 1 &&
         win.kernel[0] == 1 && shape.batch > 0 && shape.groups > 0 && win.in_count() > 0 && win.out_count() > 0 && is_small(win);
}

DepthwiseLanes::DepthwiseLanes(const ConvShape& shape, const Table& table, bool by_input)
    : window_(shape.window), table_(table), by_input_(by_input), channels_(shape.groups) {
  const Window& win = window_;
  const Window::Axes &source = by_input ? win.out : win.in, &result = by_input ? win.in : win.out;
  source_rows_ = source[1], source_columns_ = source[2], rows_ = result[1], columns_ = result[2];
  spacing_ = by_input ? win.stride[2] : 1;
  stride_ = by_input ? 1 : win.stride[2];
  const std::int64_t reach = (win.kernel[2] - 1) * win.dilation[2], width = (source_columns_ - 1) * spacing_ + 1;
  begin_ = by_input ? reach - win.begin[2] : win.begin[2];
  by_rows_ = win.dilation[2] == 1 && has_depthwise_row(win.kernel[2], stride_);
  border_ = by_rows_ ? 0 : std::max<std::int64_t>(begin_, 0);
  pitch_ = by_rows_ ? width : std::max(border_ + width, (columns_ - 1) * stride_ + reach + 1 - begin_ + border_);
  for (std::int64_t y = 0; y < rows_; ++y) add_row(y);
  for (const Band& band : bands_) {
    source_floats_ = std::max(source_floats_, scratch_floats((band.source_last - band.source_first) * pitch_ * table.pack));
    result_floats_ = std::max(result_floats_, scratch_floats((band.last - band.first) * columns_ * table.pack));
  }
}

std::int64_t DepthwiseLanes::source_row(std::int64_t y, std::int64_t ky) const noexcept {
  std::int64_t row = window_.source(1, y, ky);
  if (by_input_) {
    row = y + window_.begin[1] - ky * window_.dilation[1];
    if (row % window_.stride[1] != 0) return -1;
    row /= window_.stride[1];
  }
  return row < source_rows_ ? row : -1;
}

void DepthwiseLanes::add_row(std::int64_t y) {
  const std::int64_t pack = table_.pack, taps = window_.kernel[2];
  Row row{lines_.size(), 0};
  std::int64_t first = source_rows_, last = 0;
  for (std::int64_t ky = 0; ky < window_.kernel[1]; ++ky) {
    const std::int64_t from = source_row(y, ky);
    if (from < 0) continue;
    first = std::min(first, from);
    last = std::max(last, from + 1);
    const std::int64_t line = by_input_ ? window_.kernel[1] - 1 - ky : ky;
    const Tap tap{(from * pitch_ + border_ - begin_) * pack, line * taps * pack};
    if (by_rows_)
      lines_.push_back(tap);
    else
      for (std::int64_t kx = 0; kx < taps; ++kx)
        lines_.push_back({tap.offset + kx * window_.dilation[2] * pack, tap.place + kx * pack});
  }
  row.line_count = lines_.size() - row.first_line;
  lines_of_.push_back(row);
  first = std::min(first, last);
  if (!bands_.empty()) {
    Band& band = bands_.back();
    const bool reads = first < last, has_read = band.source_first < band.source_last;
    const std::int64_t from = reads && has_read ? std::min(band.source_first, first) : reads ? first : band.source_first;
    const std::int64_t to = reads ? std::max(band.source_last, last) : band.source_last;
    if (std::max((to - from) * pitch_, (y + 1 - band.first) * columns_) <= kBandPixels) {
      band = {band.first, y + 1, from, to};
      return;
    }
  }
  bands_.push_back({y, y + 1, first, last});
}

std::size_t DepthwiseLanes::scratch_bytes() const noexcept {
  return static_cast<std::size_t>(source_floats_ + result_floats_ + scratch_floats(window_.taps() * table_.pack)) * sizeof(float);
}

void DepthwiseLanes::clear(float* scratch) const noexcept { std::fill_n(scratch, scratch_bytes() / sizeof(float), 0.0f); }

std::int64_t DepthwiseLanes::moved_pixels() const noexcept {
  std::int64_t pixels = rows_ * columns_;
  for (const Band& band : bands_) pixels += (band.source_last - band.source_first) * source_columns_;
  return pixels;
}

void DepthwiseLanes::fill(const float* planes, const Band& band, std::int64_t lanes, float* pixels) const noexcept {
  const std::int64_t plane = source_rows_ * source_columns_, rows = band.source_last - band.source_first;
  const float* from = planes + band.source_first * source_columns_;
  if (pitch_ == source_columns_) {
    table_.transpose(from, plane, pixels, table_.pack, rows * source_columns_, lanes);
    return;
  }
  for (std::int64_t row = 0; row < rows; ++row)
    table_.transpose(from + row * source_columns_, plane, pixels + (row * pitch_ + border_) * table_.pack, spacing_ * table_.pack,
                     source_columns_, lanes);
}

void DepthwiseLanes::normalise(const NormalFactors& normal, const Band& band, std::int64_t block, float* pixels) const noexcept {
  const std::int64_t rows = band.source_last - band.source_first;
  if (pitch_ == source_columns_) return normal.run(pixels, rows * pitch_, block);
  for (std::int64_t row = 0; row < rows; ++row)  // what lies between is padding
    normal.run(pixels + (row * pitch_ + border_) * table_.pack, source_columns_, block);
}

void DepthwiseLanes::sum_row(const float* pixels, const float* weights, const Row& row, float* sums) const noexcept {
  if (by_rows_) {
    DepthwiseRowArgs args;
    args.count = columns_;
    args.taps = window_.kernel[2];
    args.stride = stride_;
    args.in = pixels;
    args.first = begin_;
    args.last = begin_ + pitch_;
    args.lines = lines_.data() + row.first_line;
    args.line_count = static_cast<std::int64_t>(row.line_count);
    args.w = weights;
    args.out = sums;
    table_.depthwise_row(args);
    return;
  }
  LaneArgs args;
  args.count = columns_;
  args.in = pixels;
  args.in_step = stride_ * table_.pack;
  args.taps = lines_.data() + row.first_line;
  args.tap_count = static_cast<std::int64_t>(row.line_count);
  args.w = weights;
  args.out = sums;
  table_.depthwise(args);
}

void DepthwiseLanes::run(const float* source, const float* weights, float* result, float* scratch, std::int64_t image,
                         std::int64_t block, const NormalFactors* normal, StopPoll& poll) const noexcept {
  const std::int64_t pack = table_.pack, taps = window_.taps(), first = block * pack, lanes = std::min(pack, channels_ - first);
  float *pixels = scratch, *sums = pixels + source_floats_, *spread = sums + result_floats_;
  // By the input, taps are in the reverse order.
  table_.transpose(weights + first * taps, taps, spread + (by_input_ ? (taps - 1) * pack : 0), by_input_ ? -pack : pack, taps,
                   lanes);
  const float* planes = source + (image * channels_ + first) * source_rows_ * source_columns_;
  float* out = result + (image * channels_ + first) * rows_ * columns_;
  for (const Band& band : bands_) {
    fill(planes, band, lanes, pixels);
    if (normal != nullptr) normalise(*normal, band, block, pixels);
    for (std::int64_t y = band.first; y < band.last; ++y) {
      if (!poll.proceed(columns_ * taps)) return;
      sum_row(pixels - band.source_first * pitch_ * pack, spread, lines_of_[static_cast<std::size_t>(y)],
              sums + (y - band.first) * columns_ * pack);
    }
    table_.transpose(sums, pack, out + band.first * columns_, rows_ * columns_, lanes, (band.last - band.first) * columns_);
  }
}

}  // namespace walle
