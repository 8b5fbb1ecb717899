// PReluGradient: the gradients of PRelu's operand and slopes in one pass over memory (§4.2). float32 and float64.
#include <algorithm>

#include "atomic/atomic.h"
#include "geometry/slope_layout.h"
#include "kernels/channels.h"

namespace walle {

namespace {

// Pieces have a fixed size, and so have the partial sums of each, which are joined in order: results are the same with any number
// of threads.
template <class T>
class PReluGradientStep final : public SharedStep {
 public:
  explicit PReluGradientStep(const StepRequest& request)
      : layout_(*slope_layout(request.inputs[1].shape, request.inputs[2].shape)),
        total_(element_count(request.inputs[1].shape)),
        kernels_(*request.table.channels[sizeof(T) / 8]),
        row_(layout_.slopes * layout_.plane),
        by_rows_(layout_.slopes > 1 && layout_.plane < kShortPlane) {
    if (by_rows_) rows_ = std::max(kPieceElements / std::max<std::int64_t>(row_, 1), kLeastRows);
    groups_ = (layout_.outer + rows_ - 1) / rows_;
    blocks_ = by_rows_ ? layout_.plane : (layout_.plane + kChannelBlock - 1) / kChannelBlock;
    scratch_bytes_ = static_cast<std::size_t>(groups_ * layout_.slopes * blocks_) * sizeof(double);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const auto at = [&](std::size_t i) { return reinterpret_cast<const T*>(inputs[i]); };
    auto* out = reinterpret_cast<T*>(output);
    auto* parts = reinterpret_cast<double*>(scratch);
    if (by_rows_)
      run_rows(team, at(0), at(1), at(2), out, parts);
    else
      run_planes(team, at(0), at(1), at(2), out, parts);
    for (std::int64_t slope = 0; slope < layout_.slopes; ++slope) {
      double sum = 0;
      for (std::int64_t i = 0; i < groups_; ++i)
        for (std::int64_t block = 0; block < blocks_; ++block) sum += parts[(i * layout_.slopes + slope) * blocks_ + block];
      out[total_ + slope] = static_cast<T>(sum);
    }
  }

 private:
  static constexpr std::int64_t kPieceElements = 1 << 14;  // least work of a thread at once
  static constexpr std::int64_t kLeastRows = 64;           // bound of the partial sums of many rows: a 32nd of the memory of x
  static constexpr std::int64_t kShortPlane = 16;          // shorter planes are read by rows, which have every slope
  static constexpr std::int64_t kStrip = 256;              // elements of a row at once
  static constexpr std::int64_t kRowBlock = 64;            // rows whose products are summed in T

  double operations() const noexcept { return 4.0 * static_cast<double>(total_); }

  void run_planes(Team& team, const T* g, const T* x, const T* slope, T* out, double* parts) const noexcept {
    const std::int64_t units = groups_ * layout_.slopes * blocks_;
    const std::int64_t step =
        std::max<std::int64_t>(kPieceElements / std::clamp<std::int64_t>(layout_.plane, 1, kChannelBlock), 1);
    team.each((units + step - 1) / step,
              [&](std::int64_t piece, int) {
                for (std::int64_t i = piece * step; i < std::min((piece + 1) * step, units); ++i) {
                  const std::int64_t plane = i / blocks_, begin = i % blocks_ * kChannelBlock;
                  const std::int64_t first = plane * layout_.plane + begin;
                  parts[i] = kernels_.prelu_gradient(g + first, x + first, static_cast<double>(slope[plane % layout_.slopes]),
                                                     out + first, std::min(kChannelBlock, layout_.plane - begin));
                }
              },
              operations());
  }

  void run_rows(Team& team, const T* g, const T* x, const T* slope, T* out, double* parts) const noexcept {
    const std::int64_t strips = (row_ + kStrip - 1) / kStrip;
    team.each(
        groups_ * strips,
        [&](std::int64_t i, int) {
          const std::int64_t group = i / strips, column = i % strips * kStrip;
          run_strip(g, x, slope, out, group * rows_, std::min((group + 1) * rows_, layout_.outer), column,
                    parts + group * row_ + column);
        },
        operations());
  }

  // Up to kStrip columns of the rows; short rows are joined to longer ones.
  void run_strip(const T* g, const T* x, const T* slope, T* out, std::int64_t first, std::int64_t last, std::int64_t column,
                 double* sums) const noexcept {
    const std::int64_t columns = std::min(kStrip, row_ - column);
    const std::int64_t joined = columns < row_ ? 1 : kStrip / columns;
    const std::int64_t width = joined * columns, step = joined * row_, end = last * row_;
    T slopes[kStrip];
    const T* own = slope + column / layout_.plane;
    for (std::int64_t i = 0, left = layout_.plane - column % layout_.plane; i < columns; ++i) {
      slopes[i] = *own;
      if (--left == 0) ++own, left = layout_.plane;
    }
    for (std::int64_t i = columns; i < width; ++i) slopes[i] = slopes[i - columns];
    std::fill_n(sums, columns, 0.0);
    for (std::int64_t at = first * row_ + column; at < end;) {
      T products[kStrip] = {};
      for (const std::int64_t stop = std::min(at + kRowBlock * step, end); at < stop; at += step)
        kernels_.prelu_gradient_row(g + at, x + at, slopes, out + at, products, std::min(width, end - at));
      for (std::int64_t row = 0; row < width; row += columns)
        for (std::int64_t i = 0; i < columns; ++i) sums[i] += static_cast<double>(products[row + i]);
    }
  }

  SlopeLayout layout_;
  std::int64_t total_;
  const ChannelKernels& kernels_;
  std::int64_t row_;  // elements of a row, which has every slope once
  bool by_rows_;
  // Partial sums are (groups_, slopes, blocks_): of an element of some rows, or of a block of a plane.
  std::int64_t rows_ = 1, groups_ = 0, blocks_ = 0;
};

}  // namespace

// g and x of one shape, slope (slope_layout) -> flat: g where x > 0, else g * slope, in the order of x; then for each slope the
// sum of g * x where not x > 0.
TensorType infer_prelu_gradient(std::span<const Operand> operands, const Attributes&) {
  const Operand &g = operands[0], &x = operands[1], &slope = operands[2];
  if ((g.dtype != DType::f32 && g.dtype != DType::f64) || x.dtype != g.dtype || slope.dtype != g.dtype)
    throw Error(ErrorKind::dtype, "PReluGradient of " + std::string(dtype_name(g.dtype)) + ", " +
                                      std::string(dtype_name(x.dtype)) + " and " + std::string(dtype_name(slope.dtype)) +
                                      "; it takes float32 or float64 of one type");
  if (x.shape != g.shape)
    throw Error(ErrorKind::shape,
                "PReluGradient of shapes " + to_string(g.shape) + " and " + to_string(x.shape) + "; they must be equal");
  if (!slope_layout(x.shape, slope.shape))
    throw Error(ErrorKind::shape, "PReluGradient takes slopes along neighbouring axes of " + to_string(x.shape) + ", not " +
                                      to_string(slope.shape));
  return {g.dtype, {element_count(x.shape) + element_count(slope.shape)}};
}

std::unique_ptr<HostStep> make_prelu_gradient(const StepRequest& request) {
  if (request.result.dtype == DType::f64) return std::make_unique<PReluGradientStep<double>>(request);
  return std::make_unique<PReluGradientStep<float>>(request);
}

}  // namespace walle
