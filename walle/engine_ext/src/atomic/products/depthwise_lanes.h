// Depthwise sums over plain layouts by the kernels of packed ones. The planes of a block of channels are transposed, a band of
// rows at a time, so that a vector is one pixel of `pack` channels; sums are transposed back. No vector is partly outside a row,
// however narrow the planes are.
#pragma once
#include <limits>
#include <vector>

#include "atomic/lane_rows.h"
#include "atomic/products/convolution.h"
#include "core/stop.h"

namespace walle {

// Normalises the input of a depthwise convolution, and limits it to low and high, while it is in lanes.
struct InputNormal {
  double epsilon = 1e-5;
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};

// Factors of the channels of an input, those of whole blocks; the lanes beyond the last channel are 0.
class NormalFactors {
 public:
  static std::int64_t floats(std::int64_t channels, std::int64_t pack) noexcept {
    return 2 * ((channels + pack - 1) / pack * pack + 15) / 16 * 16;
  }
  // `operands`: moments, scale and bias; `memory` has floats().
  NormalFactors(const InputNormal& normal, std::byte* const* operands, std::int64_t channels, const Table& table,
                float* memory) noexcept;
  // Normalise `count` pixels of a block in place.
  void run(float* pixels, std::int64_t count, std::int64_t block) const noexcept;

 private:
  const Table& table_;
  const float *a_, *b_;
  float low_, high_;
};

// Depthwise sums: the result of a convolution with one channel a group or, `by_input`, the gradient of its input from that of its
// result.
class DepthwiseLanes {
 public:
  // Return whether these sums exist for the convolution: one output channel for each input channel, in planes that are not empty,
  // and scratch of a bounded size.
  static bool applies(const ConvShape& shape) noexcept;
  DepthwiseLanes(const ConvShape& shape, const Table& table, bool by_input);

  // Bytes of scratch for each member of a team.
  std::size_t scratch_bytes() const noexcept;
  void clear(float* scratch) const noexcept;
  std::int64_t blocks() const noexcept { return (channels_ + table_.pack - 1) / table_.pack; }
  // Pixels that are transposed to sources and from results, of a block of channels of an image.
  std::int64_t moved_pixels() const noexcept;
  // Sum a block of channels of one image, with scratch that was cleared once. All pointers are to whole tensors. `normal`: of the
  // source; null: it is read as it is.
  void run(const float* source, const float* weights, float* result, float* scratch, std::int64_t image, std::int64_t block,
           const NormalFactors* normal, StopPoll& poll) const noexcept;

 private:
  struct Row {
    std::size_t first_line, line_count;
  };
  // Rows [first, last) of the result, and those of the source that they read.
  struct Band {
    std::int64_t first, last, source_first, source_last;
  };
  // Return the row of the source that line `ky` of the weights meets for row `y` of the result; negative: none.
  std::int64_t source_row(std::int64_t y, std::int64_t ky) const noexcept;
  void add_row(std::int64_t y);
  void fill(const float* planes, const Band& band, std::int64_t lanes, float* pixels) const noexcept;
  void normalise(const NormalFactors& normal, const Band& band, std::int64_t block, float* pixels) const noexcept;
  void sum_row(const float* pixels, const float* weights, const Row& row, float* sums) const noexcept;

  Window window_;
  const Table& table_;
  bool by_input_, by_rows_;  // by_rows_: the row kernel takes this window; else each tap is a place of a padded row
  std::int64_t channels_, source_rows_, source_columns_, rows_, columns_;
  std::int64_t spacing_, stride_, begin_, border_, pitch_;  // pitch_: pixels from one row of the source to the next
  std::int64_t source_floats_ = 0, result_floats_ = 0;
  std::vector<Row> lines_of_;
  std::vector<Tap> lines_;  // lines of weights by row, or single taps
  std::vector<Band> bands_;
};

}  // namespace walle
