// ConvInputGradient: the gradient of Conv by its input, from the gradient of the result and the weights, with Conv's attributes
// and the input's shape. In every group a product of the weights, as they lie, and the gradients of some images side by side
// gives columns, which are added up where windows overlap. It spares a mirrored copy of the weights, which is what a convolution
// needs.
#include <algorithm>
#include <cstring>

#include "atomic/product_pieces.h"
#include "atomic/products/convolution.h"
#include "atomic/products/lane_depthwise.h"
#include "atomic/scratch.h"

namespace walle {

namespace {

template <class T>
class InputGradientStep final : public SharedStep {
 public:
  InputGradientStep(const ConvShape& shape, const Table& table)
      : shape_(shape), gemm_(table.gemm[shape.type()]), columns_(shape.in_channels * shape.window.taps()) {
    constexpr std::int64_t kLongRow = 256;
    const std::int64_t plane = std::max<std::int64_t>(shape.window.out_count(), 1);
    images_ = std::clamp<std::int64_t>((kLongRow + plane - 1) / plane, 1, std::max<std::int64_t>(shape.batch, 1));
    step_ = images_ * shape.window.out_count();
    columns_bytes_ = scratch_part(static_cast<std::size_t>(columns_ * step_) * sizeof(T));
    rows_bytes_ = images_ > 1 ? scratch_part(static_cast<std::size_t>(shape.out_channels * step_) * sizeof(T)) : 0;
    const std::size_t product = gemm_.scratch_bytes(columns_, step_, shape.out_channels);
    scratch_bytes_ = columns_bytes_ + rows_bytes_ + (product / Storage::kAlignment + 1) * Storage::kAlignment;
  }

  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return "GEMM columns"; }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t chunks = (shape_.batch + images_ - 1) / images_;
    const StopPoll start;
    team.each(
        chunks * shape_.groups,
        [&](std::int64_t unit, int member) {
          StopPoll poll = start;
          std::byte* own = scratch + static_cast<std::size_t>(member) * scratch_bytes_;
          const std::int64_t group = unit / chunks, first = unit % chunks * images_;
          run_images(reinterpret_cast<const T*>(inputs[0]), reinterpret_cast<const T*>(inputs[1]), reinterpret_cast<T*>(output),
                     own, group, first, std::min(images_, shape_.batch - first), poll);
        },
        2 * shape_.multiplications());
  }

 private:
  void run_images(const T* gradient, const T* weights, T* output, std::byte* scratch, std::int64_t group, std::int64_t first,
                  std::int64_t count, StopPoll& poll) const noexcept {
    const std::int64_t plane = shape_.window.out_count(), in = shape_.window.in_count(), out_channels = shape_.out_channels;
    T* columns = reinterpret_cast<T*>(scratch);
    const T* rows = gradient + (first * shape_.groups + group) * out_channels * plane;
    std::int64_t row_step = plane;
    if (images_ > 1) {
      T* to = reinterpret_cast<T*>(scratch + columns_bytes_);
      for (std::int64_t i = 0; i < count; ++i) {
        const T* from = gradient + ((first + i) * shape_.groups + group) * out_channels * plane;
        for (std::int64_t m = 0; m < out_channels; ++m) std::copy_n(from + m * plane, plane, to + m * step_ + i * plane);
      }
      rows = to;
      row_step = step_;
    }
    if (!poll.proceed(count * plane * out_channels)) return;
    GemmArgs args;
    args.m = args.a_col = columns_;
    args.n = count * plane;
    args.k = out_channels;
    args.a = weights + group * out_channels * columns_;
    args.a_row = args.b_col = 1;
    args.b = rows;
    args.b_row = row_step;
    args.out = columns;
    args.out_row = step_;
    args.scratch = scratch + columns_bytes_ + rows_bytes_;
    run_product(gemm_, args, sizeof(T), poll);
    for (std::int64_t i = 0; i < count; ++i) {
      T* to = output + ((first + i) * shape_.groups + group) * shape_.in_channels * in;
      std::fill_n(to, shape_.in_channels * in, T{0});
      for (std::int64_t tap = 0; tap < shape_.window.taps() && poll.proceed(plane * shape_.in_channels); ++tap)
        add_tap(columns + tap * step_ + i * plane, to, tap);
    }
  }

  // Adds what a tap contributes to the planes of an image.
  void add_tap(const T* from, T* to, std::int64_t tap) const noexcept {
    const Window& win = shape_.window;
    const std::int64_t kx = tap % win.kernel[2], ky = tap / win.kernel[2] % win.kernel[1],
                       kz = tap / win.kernel[2] / win.kernel[1];
    const auto [z_first, z_last] = win.valid(0, kz);
    const auto [y_first, y_last] = win.valid(1, ky);
    const auto [x_first, x_last] = win.valid(2, kx);
    const std::int64_t step_x = win.stride[2], planes = shape_.in_channels, next = win.taps() * step_, in = win.in_count();
    for (std::int64_t c = 0; c < planes; ++c, from += next, to += in)
      for (std::int64_t z = z_first; z < z_last; ++z)
        for (std::int64_t y = y_first; y < y_last; ++y) {
          const T* row = from + (z * win.out[1] + y) * win.out[2];
          T* sums = to + (win.source(0, z, kz) * win.in[1] + win.source(1, y, ky)) * win.in[2] + win.source(2, 0, kx);
          if (step_x == 1)
            for (std::int64_t x = x_first; x < x_last; ++x) sums[x] += row[x];
          else
            for (std::int64_t x = x_first; x < x_last; ++x) sums[x * step_x] += row[x];
        }
  }

  ConvShape shape_;
  Gemm gemm_;
  std::int64_t columns_, images_, step_;
  std::size_t columns_bytes_, rows_bytes_;
};

}  // namespace

// The gradient of the result, and w.
TensorType infer_conv_input_gradient(std::span<const Operand> operands, const Attributes& attributes) {
  const DType dtype = operands[0].dtype;
  if ((dtype != DType::f32 && dtype != DType::f64) || operands[1].dtype != dtype)
    throw Error(ErrorKind::dtype, "ConvInputGradient does not support " + std::string(dtype_name(dtype)) + " and " +
                                      std::string(dtype_name(operands[1].dtype)));
  const auto shape = attributes.get_ints("shape");
  if (!shape || shape->size() != operands[1].shape.size() ||
      std::any_of(shape->begin(), shape->end(), [](std::int64_t size) { return size < 0; }))
    throw Error(ErrorKind::model, "ConvInputGradient: attribute 'shape', of the input, is missing or wrong");
  const ConvShape conv = conv_shape(*shape, operands[1].shape, dtype, attributes);
  Dims result{conv.batch, conv.groups * conv.out_channels};
  for (const std::int64_t size : conv.window.out_dims()) result.push_back(size);
  if (operands[0].shape != result)
    throw Error(ErrorKind::shape, "ConvInputGradient of a gradient of shape " + to_string(operands[0].shape) +
                                      "; the convolution's result has shape " + to_string(result));
  return {dtype, *shape};
}

std::unique_ptr<HostStep> make_conv_input_gradient(const StepRequest& request) {
  const ConvShape shape = conv_shape(request.result.shape, request.inputs[1].shape, request.result.dtype, request.attributes);
  if (request.result.dtype == DType::f64) return std::make_unique<InputGradientStep<double>>(shape, request.table);
  if (auto lanes = make_lane_input_gradient(shape, request.table)) return lanes;
  return std::make_unique<InputGradientStep<float>>(shape, request.table);
}

}  // namespace walle
