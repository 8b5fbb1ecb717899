// ConvWeightGradient: the gradient of Conv by its weights, from x and the gradient of the result, with Conv's attributes and the
// kernel's shape. In every group it is one matrix product, over all places of all images: of the gradient [out channels, places]
// and the columns of x [in channels * taps, places]. Both are read where they lie or gathered, some rows of places at a time, so
// that the columns are never there as a whole. The sums of an element have one order, whatever the number of threads.
#include <algorithm>
#include <cstring>

#include "atomic/conversion.h"
#include "atomic/products/convolution.h"
#include "atomic/products/lane_depthwise.h"
#include "atomic/scratch.h"
#include "core/stop.h"

namespace walle {

namespace {

Dims weight_shape(const Dims& x, const Dims& gradient, const Attributes& attributes) {
  const auto kernel = attributes.get_ints("kernel_shape");
  const std::int64_t groups = attributes.get_int("group", 1);
  if (!kernel) throw Error(ErrorKind::model, "ConvWeightGradient needs the attribute 'kernel_shape'");
  if (x.size() < 3 || gradient.size() != x.size() || groups < 1 || x[1] % groups != 0)
    throw Error(ErrorKind::shape, "ConvWeightGradient of " + to_string(x) + " and " + to_string(gradient) + " in " +
                                      std::to_string(groups) + " groups");
  Dims shape{gradient[1], x[1] / groups};
  shape.insert(shape.end(), kernel->begin(), kernel->end());
  element_count(shape);  // throws where it is too large
  return shape;
}

// Makes each image one row, where a window has one tap at every place.
bool join_rows(Window& window) {
  if (window.taps() != 1 || window.in != window.out || window.begin != Window::Axes{0, 0, 0} ||
      window.stride != Window::Axes{1, 1, 1})
    return false;
  window.in = window.out = {1, 1, window.out_count()};
  return true;
}

// The matrix product of every group.
template <class T>
class WeightProductStep final : public SharedStep {
 public:
  WeightProductStep(const ConvShape& shape, const Table& table)
      : shape_(shape), gemm_(table.gemm[shape.type()]), transpose_(table.transpose) {
    is_joined_ = join_rows(shape_.window);
    const Window& win = shape_.window;
    columns_ = shape_.in_channels * win.taps();
    columns_first_ = is_cheaper_by_columns();
    left_ = columns_first_ ? columns_ : shape_.out_channels;
    right_ = columns_first_ ? shape_.out_channels : columns_;
    rows_ = shape_.batch * win.out[0] * win.out[1];
    rows_at_once_ =
        std::clamp<std::int64_t>(kPlaces / std::max<std::int64_t>(win.out[2], 1), 1, std::max<std::int64_t>(rows_, 1));
    const std::int64_t places = rows_at_once_ * std::min(win.out[2], kPlaces), left = std::min(left_, kLeft),
                       right = std::min(right_, kRight);
    left_bytes_ = scratch_part(static_cast<std::size_t>(left * places) * sizeof(T));
    right_bytes_ = scratch_part(static_cast<std::size_t>(right * places) * sizeof(T));
    sum_bytes_ = scratch_part(static_cast<std::size_t>(left * right) * sizeof(T));
    product_bytes_ = scratch_part(gemm_.scratch_bytes(left, right, places));
    scratch_bytes_ = left_bytes_ + right_bytes_ + 2 * sum_bytes_ + product_bytes_;
  }

  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return "columns GEMM"; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t lefts = (left_ + kLeft - 1) / kLeft, rights = (right_ + kRight - 1) / kRight;
    const StopPoll poll;
    team.each(
        shape_.groups * lefts * rights,
        [&](std::int64_t unit, int member) {
          const Block left{unit / rights % lefts * kLeft, std::min(kLeft, left_ - unit / rights % lefts * kLeft)},
              right{unit % rights * kRight, std::min(kRight, right_ - unit % rights * kRight)};
          std::byte* own = scratch + static_cast<std::size_t>(member) * scratch_bytes_;
          const std::int64_t group = unit / rights / lefts;
          T* to = reinterpret_cast<T*>(output) + group * shape_.out_channels * columns_;
          if (columns_first_) {
            T* sums = reinterpret_cast<T*>(own + left_bytes_ + right_bytes_);
            multiply(inputs, group, left, right, own, sums, right.count, poll);
            transpose(sums, left.count, right.count, to + right.first * columns_ + left.first, columns_);
          } else {
            multiply(inputs, group, left, right, own, to + left.first * columns_ + right.first, columns_, poll);
          }
        },
        2 * shape_.multiplications());
  }

 private:
  // Places gathered at once, about, and rows of either operand that a member multiplies: what stays in the second-level cache.
  static constexpr std::int64_t kPlaces = 512, kLeft = 512, kRight = 512;

  static constexpr std::int64_t kLongRow = 16;

  struct Block {
    std::int64_t first, count;
  };
  // Whole rows of results, or a part of one row.
  struct Places {
    std::int64_t row, rows, x, width;
  };
  // Rows of an operand, `step` elements from one to the next.
  struct Rows {
    const T* first;
    std::int64_t step;
  };

  // Whether less is transposed with the columns on the left, of which the result is transposed, or on the right.
  bool is_cheaper_by_columns() const noexcept {
    const auto real = [](std::int64_t count) { return static_cast<double>(count); };
    const auto blocks = [&](std::int64_t rows) { return real((rows + kLeft - 1) / kLeft); };
    const double channels = real(shape_.out_channels), columns = real(columns_),
                 places = real(shape_.batch) * real(shape_.window.out_count());
    return channels * columns + channels * places * blocks(columns_) < columns * places * blocks(shape_.out_channels);
  }

  // Writes the sums [left, right], `sum_row` elements from one row to the next.
  void multiply(std::byte* const* inputs, std::int64_t group, Block left, Block right, std::byte* scratch, T* sums,
                std::int64_t sum_row, StopPoll poll) const noexcept {
    T* left_rows = reinterpret_cast<T*>(scratch);
    T* right_rows = reinterpret_cast<T*>(scratch + left_bytes_);
    T* part = reinterpret_cast<T*>(scratch + left_bytes_ + right_bytes_ + sum_bytes_);
    GemmArgs args;
    args.m = left.count;
    args.n = right.count;
    args.a_col = args.b_row = 1;
    args.scratch = scratch + left_bytes_ + right_bytes_ + 2 * sum_bytes_;
    const std::int64_t width = shape_.window.out[2];
    bool is_first = true;
    for (std::int64_t row = 0; row < rows_; row += rows_at_once_)
      for (std::int64_t x = 0; x < width; x += kPlaces) {  // once, unless a row alone is longer
        const Places at{row, std::min(rows_at_once_, rows_ - row), x, std::min(kPlaces, width - x)};
        const std::int64_t places = at.rows * at.width;
        if (!poll.proceed(2 * places * (left.count + right.count))) return;
        const Rows a =
            columns_first_ ? columns_of(inputs, group, left, at, left_rows) : gradient_of(inputs, group, left, at, left_rows);
        const Rows b =
            columns_first_ ? gradient_of(inputs, group, right, at, right_rows) : columns_of(inputs, group, right, at, right_rows);
        args.a = a.first;
        args.a_row = a.step;
        args.b = b.first;
        args.b_col = b.step;
        args.k = places;
        const bool adds = !is_first && !gemm_.accumulates;
        args.accumulate = !is_first && gemm_.accumulates;
        args.out = adds ? part : sums;
        args.out_row = adds ? right.count : sum_row;
        gemm_.run(args);
        for (std::int64_t i = 0; adds && i < left.count; ++i)
          for (std::int64_t j = 0; j < right.count; ++j) sums[i * sum_row + j] += part[i * right.count + j];
        is_first = false;
      }
    if (!is_first) return;
    for (std::int64_t i = 0; i < left.count; ++i) std::fill_n(sums + i * sum_row, right.count, T{0});
  }

  // to[c][r] = from[r][c] of a matrix of `rows` rows, with `to_row` elements from one row of the result to the next.
  void transpose(const T* from, std::int64_t rows, std::int64_t columns, T* to, std::int64_t to_row) const noexcept {
    if constexpr (sizeof(T) == sizeof(float)) {
      transpose_(from, columns, to, to_row, columns, rows);
    } else {
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) to[c * to_row + r] = from[r * columns + c];
    }
  }

  // Return rows of the gradient [out channels, places], where they lie or gathered in `to`.
  Rows gradient_of(std::byte* const* inputs, std::int64_t group, Block channels, Places at, T* to) const noexcept {
    const Window& win = shape_.window;
    const std::int64_t in_image = win.out[0] * win.out[1], plane = win.out_count(), image = at.row / in_image;
    if (image == (at.row + at.rows - 1) / in_image && !is_aliased(plane)) {
      const std::int64_t channel = (image * shape_.groups + group) * shape_.out_channels + channels.first;
      return {reinterpret_cast<const T*>(inputs[1]) + channel * plane + at.row % in_image * win.out[2] + at.x, plane};
    }
    gather_gradient(*this, inputs, group, channels, at, to);
    return {to, at.rows * at.width};
  }
  // Return rows of the columns [in channels * taps, places], likewise.
  Rows columns_of(std::byte* const* inputs, std::int64_t group, Block columns, Places at, T* to) const noexcept {
    const std::int64_t plane = shape_.window.in_count();
    if (is_joined_ && at.rows == 1 && !is_aliased(plane)) {
      const std::int64_t channel = (at.row * shape_.groups + group) * shape_.in_channels + columns.first;
      return {reinterpret_cast<const T*>(inputs[0]) + channel * plane + at.x, plane};
    }
    gather_columns(*this, inputs, group, columns, at, to);
    return {to, at.rows * at.width};
  }
  // Whether rows this far apart compete for the same places of a first-level cache.
  static bool is_aliased(std::int64_t step) noexcept { return step * static_cast<std::int64_t>(sizeof(T)) % 4096 == 0; }

  // Rows of the gradient [out channels, places].
  static void gather_gradient(const WeightProductStep& step, std::byte* const* inputs, std::int64_t group, Block channels,
                              Places at, T* to) noexcept {
    const Window& win = step.shape_.window;
    const std::int64_t in_image = win.out[0] * win.out[1], plane = win.out_count();
    const T* gradient = reinterpret_cast<const T*>(inputs[1]);
    for (std::int64_t i = 0; i < channels.count; ++i)
      for (std::int64_t row = at.row; row < at.row + at.rows;) {
        const std::int64_t image = row / in_image, last = std::min((image + 1) * in_image, at.row + at.rows);
        const std::int64_t channel = (image * step.shape_.groups + group) * step.shape_.out_channels + channels.first + i;
        const std::int64_t count = (last - row) * at.width;  // rows of an image lie side by side
        std::memcpy(to, gradient + channel * plane + row % in_image * win.out[2] + at.x,
                    static_cast<std::size_t>(count) * sizeof(T));
        to += count;
        row = last;
      }
  }

  // Rows of the columns [in channels * taps, places]; 0 where a tap lies outside.
  static void gather_columns(const WeightProductStep& step, std::byte* const* inputs, std::int64_t group, Block columns,
                             Places at, T* to) noexcept {
    const Window& win = step.shape_.window;
    const std::int64_t taps = win.taps(), in_image = win.out[0] * win.out[1], step_x = win.stride[2];
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    for (std::int64_t i = columns.first; i < columns.first + columns.count; ++i) {
      const std::int64_t tap = i % taps, kx = tap % win.kernel[2], ky = tap / win.kernel[2] % win.kernel[1],
                         kz = tap / win.kernel[2] / win.kernel[1];
      const auto [inside_first, inside_last] = win.valid(2, kx);
      const std::int64_t first = std::clamp<std::int64_t>(inside_first - at.x, 0, at.width),
                         last = std::clamp<std::int64_t>(inside_last - at.x, first, at.width);
      for (std::int64_t row = at.row; row < at.row + at.rows; ++row, to += at.width) {
        const std::int64_t image = row / in_image, z = win.source(0, row % in_image / win.out[1], kz),
                           y = win.source(1, row % in_image % win.out[1], ky);
        if (z < 0 || z >= win.in[0] || y < 0 || y >= win.in[1] || first == last) {
          std::fill_n(to, at.width, T{0});
          continue;
        }
        const std::int64_t channel = (image * step.shape_.groups + group) * step.shape_.in_channels + i / taps;
        const T* from = x + ((channel * win.in[0] + z) * win.in[1] + y) * win.in[2] + win.source(2, at.x + first, kx);
        for (std::int64_t k = 0; k < first; ++k) to[k] = T{0};
        if (step_x == 1 && at.width >= kLongRow)
          std::copy_n(from, last - first, to + first);
        else  // a call would take longer than the loop
          for (std::int64_t k = 0; k < last - first; ++k) to[first + k] = from[k * step_x];
        for (std::int64_t k = last; k < at.width; ++k) to[k] = T{0};
      }
    }
  }

  ConvShape shape_;
  Gemm gemm_;
  TransposeFn transpose_;
  bool is_joined_;      // each image is a row of places, and its columns are x
  bool columns_first_;  // the columns have more rows than the gradient, and are the left operand
  std::int64_t columns_, left_, right_, rows_, rows_at_once_;
  std::size_t left_bytes_, right_bytes_, sum_bytes_, product_bytes_;
};

// One input channel a group: each weight is one sum over the places of some images. The planes of x lie with their border around
// them, those of the gradient in rows of the same length with zeros behind, so that a tap is a shift by a number of elements.
// Steps split a plane of x into one for each remainder of a place by the step.
template <class T>
class WeightSumStep final : public SharedStep {
 public:
  WeightSumStep(const ConvShape& shape, const Table& table) : shape_(shape), gemm_(table.gemm[shape.type()]) {
    const Window& win = shape_.window;
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis)
      extent_[axis] = win.out[axis] + (win.kernel[axis] - 1) * win.dilation[axis] / win.stride[axis];
    plane_ = extent_[0] * extent_[1] * extent_[2];
    phases_ = 1;
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis) {
      phase_count_[axis] = std::min(win.stride[axis], (win.kernel[axis] - 1) * win.dilation[axis] + 1);
      phases_ *= phase_count_[axis];
    }
    images_ = std::clamp<std::int64_t>(kPlaces / std::max<std::int64_t>(plane_, 1), 1, std::max<std::int64_t>(shape_.batch, 1));
    x_bytes_ = scratch_part(static_cast<std::size_t>(phases_ * images_ * plane_) * sizeof(T));
    gradient_bytes_ = scratch_part(static_cast<std::size_t>(images_ * plane_) * sizeof(T));
    const std::int64_t product = static_cast<std::int64_t>(gemm_.scratch_bytes(1, 1, images_ * plane_));
    scratch_bytes_ = x_bytes_ + gradient_bytes_ + scratch_part(static_cast<std::size_t>(product));
  }

  // Return whether the shifted planes of a channel are not much larger than the channel.
  static bool applies(const ConvShape& shape) noexcept {
    const Window& win = shape.window;
    double planes = 1;
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis) {
      const auto reach = static_cast<double>((win.kernel[axis] - 1) * win.dilation[axis]),
                 step = static_cast<double>(win.stride[axis]);
      planes *= (static_cast<double>(win.out[axis]) + reach / step) * std::min(step, reach + 1);
    }
    constexpr double kMost = 1 << 20;
    return shape.in_channels == 1 && planes < kMost;
  }

  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return "shifted sums"; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t weights = shape_.out_channels * shape_.window.taps();
    const StopPoll start;
    team.each(
        shape_.groups,
        [&](std::int64_t group, int member) {
          StopPoll poll = start;
          std::byte* own = scratch + static_cast<std::size_t>(member) * scratch_bytes_;
          T* out = reinterpret_cast<T*>(output) + group * weights;
          std::fill_n(out, weights, T{0});
          for (std::int64_t image = 0; image < shape_.batch; image += images_) {
            const std::int64_t count = std::min(images_, shape_.batch - image);
            if (!poll.proceed(count * plane_ * (phases_ + shape_.out_channels * shape_.window.taps() / 8))) return;
            add(inputs, group, image, count, own, out);
          }
        },
        2 * shape_.multiplications());
  }

 private:
  static constexpr std::int64_t kPlaces = 2048;  // most places of several images that are summed at once

  // Adds the sums of images [first, first + count) to a group's weights.
  void add(std::byte* const* inputs, std::int64_t group, std::int64_t first, std::int64_t count, std::byte* scratch,
           T* out) const noexcept {
    const Window& win = shape_.window;
    T* x = reinterpret_cast<T*>(scratch);
    T* gradient = reinterpret_cast<T*>(scratch + x_bytes_);
    for (std::int64_t n = 0; n < count; ++n)
      spread(reinterpret_cast<const T*>(inputs[0]) + ((first + n) * shape_.groups + group) * win.in_count(), x + n * plane_);
    // The places behind the last one have no row of their own.
    const std::int64_t length = (count - 1) * plane_ + ((win.out[0] - 1) * extent_[1] + win.out[1] - 1) * extent_[2] + win.out[2];
    GemmArgs args;
    args.m = args.n = args.a_col = args.b_row = args.out_row = 1;
    args.b_col = 2;  // there is one column: its elements lie side by side
    args.k = args.a_row = length;
    args.a = gradient;
    args.scratch = scratch + x_bytes_ + gradient_bytes_;
    for (std::int64_t m = 0; m < shape_.out_channels; ++m) {
      std::fill_n(gradient, count * plane_, T{0});
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t channel = ((first + n) * shape_.groups + group) * shape_.out_channels + m;
        const T* from = reinterpret_cast<const T*>(inputs[1]) + channel * win.out_count();
        for (std::int64_t z = 0; z < win.out[0]; ++z)
          for (std::int64_t y = 0; y < win.out[1]; ++y, from += win.out[2])
            std::copy_n(from, win.out[2], gradient + n * plane_ + (z * extent_[1] + y) * extent_[2]);
      }
      for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz)
        for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky)
          for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx, ++out) {
            T sum{};
            args.b = x + shift(kz, ky, kx);
            args.out = &sum;
            gemm_.run(args);
            *out += sum;
          }
    }
  }

  // Return the first element that a tap reads.
  std::int64_t shift(std::int64_t kz, std::int64_t ky, std::int64_t kx) const noexcept {
    const Window& win = shape_.window;
    const std::int64_t z = kz * win.dilation[0], y = ky * win.dilation[1], x = kx * win.dilation[2];
    const std::int64_t phase = (z % win.stride[0] * phase_count_[1] + y % win.stride[1]) * phase_count_[2] + x % win.stride[2];
    return phase * images_ * plane_ + (z / win.stride[0] * extent_[1] + y / win.stride[1]) * extent_[2] + x / win.stride[2];
  }

  // Writes a plane of x by the remainders of its padded places, with zeros for the border.
  void spread(const T* from, T* to) const noexcept {
    const Window& win = shape_.window;
    for (std::int64_t pz = 0; pz < phase_count_[0]; ++pz)
      for (std::int64_t py = 0; py < phase_count_[1]; ++py)
        for (std::int64_t px = 0; px < phase_count_[2]; ++px, to += images_ * plane_) {
          // Places whose element lies inside: at * stride + px - begin in [0, in).
          const std::int64_t shifted = win.begin[2] - px, step = win.stride[2];
          const std::int64_t low = std::clamp<std::int64_t>(shifted > 0 ? (shifted + step - 1) / step : 0, 0, extent_[2]);
          const std::int64_t high =
              std::clamp<std::int64_t>(win.in[2] + shifted > 0 ? (win.in[2] + shifted + step - 1) / step : 0, low, extent_[2]);
          T* row = to;
          for (std::int64_t at_z = 0; at_z < extent_[0]; ++at_z)
            for (std::int64_t at_y = 0; at_y < extent_[1]; ++at_y, row += extent_[2]) {
              const std::int64_t z = at_z * win.stride[0] + pz - win.begin[0], y = at_y * win.stride[1] + py - win.begin[1];
              if (z < 0 || z >= win.in[0] || y < 0 || y >= win.in[1]) {
                std::fill_n(row, extent_[2], T{0});
                continue;
              }
              std::fill_n(row, low, T{0});
              const T* source = from + (z * win.in[1] + y) * win.in[2] - shifted;
              if (step == 1)
                std::copy_n(source + low, high - low, row + low);
              else
                for (std::int64_t at = low; at < high; ++at) row[at] = source[at * step];
              std::fill_n(row + high, extent_[2] - high, T{0});
            }
        }
  }

  ConvShape shape_;
  Gemm gemm_;
  Window::Axes extent_{}, phase_count_{};
  std::int64_t plane_ = 0, phases_ = 1, images_ = 1;
  std::size_t x_bytes_ = 0, gradient_bytes_ = 0;
};

template <class T>
std::unique_ptr<HostStep> make_weights(const ConvShape& shape, const Table& table) {
  if (WeightSumStep<T>::applies(shape)) return std::make_unique<WeightSumStep<T>>(shape, table);
  return std::make_unique<WeightProductStep<T>>(shape, table);
}

}  // namespace

TensorType infer_conv_weight_gradient(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims &x = operands[0].shape, &gradient = operands[1].shape;
  const DType dtype = operands[0].dtype;
  if ((dtype != DType::f32 && dtype != DType::f64 && !is_half(dtype)) || operands[1].dtype != dtype)
    throw Error(ErrorKind::dtype,
                "ConvWeightGradient of " + std::string(dtype_name(dtype)) + " and " + std::string(dtype_name(operands[1].dtype)));
  const Dims shape = weight_shape(x, gradient, attributes);
  const ConvShape conv = conv_shape(x, shape, dtype, attributes);
  Dims expected{conv.batch, conv.groups * conv.out_channels};
  for (const std::int64_t dim : conv.window.out_dims()) expected.push_back(dim);
  if (gradient != expected)
    throw Error(ErrorKind::shape, "ConvWeightGradient of a gradient of shape " + to_string(gradient) + ", not " +
                                      to_string(expected) + ", the shape of the result");
  return {dtype, shape};
}

std::unique_ptr<HostStep> make_conv_weight_gradient(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    const ConvShape shape = conv_shape(request.inputs[0].shape, request.result.shape, request.result.dtype, request.attributes);
    if (request.result.dtype == DType::f64) return make_weights<double>(shape, request.table);
    if (auto lanes = make_lane_weight_gradient(shape, request.table)) return lanes;
    return make_weights<float>(shape, request.table);
  });
}

}  // namespace walle
