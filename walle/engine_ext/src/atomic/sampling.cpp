// Interpolated sampling: GridSample, DeformColumns (the sampled taps of a deformable convolution) and Resample (one axis at given
// indices and weights, used by Resize).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "atomic/conversion.h"
#include "atomic/grid_places.h"
#include "core/stop.h"
#include "geometry/window.h"

namespace walle {

namespace {

void need_floating(const char* op, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::f64 && !is_half(dtype))
    throw Error(ErrorKind::dtype, std::string(op) + " does not support " + std::string(dtype_name(dtype)));
}

template <class T>
class GridSampleStep final : public HostStep {
 public:
  explicit GridSampleStep(const StepRequest& request)
      : places_(request.inputs[0].shape, request.inputs[1].shape, request.attributes) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    T* out = reinterpret_cast<T*>(output);
    places_.walk(reinterpret_cast<const T*>(inputs[1]), [&](std::int64_t n, std::int64_t p, const GridTaps<T>& taps) {
      for (std::int64_t c = 0; c < places_.channels; ++c)
        out[(n * places_.channels + c) * places_.count + p] = sample(x + (n * places_.channels + c) * places_.plane, taps);
    });
  }

 private:
  T sample(const T* x, const GridTaps<T>& taps) const noexcept {
    const std::int64_t height = places_.size[1], width = places_.size[2];
    T total{};
    for (std::size_t z = 0; z < static_cast<std::size_t>(taps[0].count); ++z)
      for (std::size_t y = 0; y < static_cast<std::size_t>(taps[1].count); ++y) {
        T row{};
        if (taps[0].index[z] < 0 || taps[1].index[y] < 0) continue;
        const T* from = x + (taps[0].index[z] * height + taps[1].index[y]) * width;
        for (std::size_t k = 0; k < static_cast<std::size_t>(taps[2].count); ++k)
          if (taps[2].index[k] >= 0) row += taps[2].weight[k] * from[taps[2].index[k]];
        total += taps[0].weight[z] * taps[1].weight[y] * row;
      }
    return total;
  }

  GridPlaces<T> places_;
};

// Interpolate bilinearly, zero outside; a position a whole pixel or more outside gives zero.
template <class T>
T bilinear(const T* x, std::int64_t height, std::int64_t width, T at_y, T at_x) noexcept {
  if (!(at_y > -1 && at_x > -1 && at_y < static_cast<T>(height) && at_x < static_cast<T>(width))) return T{};
  const T floor_y = std::floor(at_y), floor_x = std::floor(at_x), dy = at_y - floor_y, dx = at_x - floor_x;
  const auto y = static_cast<std::int64_t>(floor_y), k = static_cast<std::int64_t>(floor_x);
  const auto pixel = [&](std::int64_t row, std::int64_t column) {
    return row >= 0 && row < height && column >= 0 && column < width ? x[row * width + column] : T{};
  };
  return (1 - dy) * ((1 - dx) * pixel(y, k) + dx * pixel(y, k + 1)) +
         dy * ((1 - dx) * pixel(y + 1, k) + dx * pixel(y + 1, k + 1));
}

Window deform_window(const Dims& x, const Attributes& attributes) {
  if (x.size() != 4)
    throw Error(ErrorKind::unsupported, "DeformConv of " + to_string(x) + "; images [batch, channels, height, width] are known");
  const auto kernel = attributes.get_ints("kernel_shape");
  if (!kernel) throw Error(ErrorKind::model, "DeformColumns needs the attribute 'kernel_shape'");
  return Window::make("DeformConv", std::span(x).subspan(2), *kernel, attributes);
}

template <class T>
class DeformStep final : public HostStep {
 public:
  explicit DeformStep(const StepRequest& request)
      : window_(deform_window(request.inputs[0].shape, request.attributes)),
        batch_(request.inputs[0].shape[0]),
        channels_(request.inputs[0].shape[1]),
        groups_(request.attributes.get_int("offset_group", 1)),
        masked_(request.inputs.size() > 2 && !request.inputs[2].absent) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const Window& win = window_;
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    const T* offsets = reinterpret_cast<const T*>(inputs[1]);
    const T* mask = masked_ ? reinterpret_cast<const T*>(inputs[2]) : nullptr;
    T* out = reinterpret_cast<T*>(output);
    const std::int64_t taps = win.taps(), plane = win.out_count();
    StopPoll poll;
    for (std::int64_t n = 0; n < batch_; ++n)
      for (std::int64_t c = 0; c < channels_; ++c, x += win.in_count())
        for (std::int64_t tap = 0; tap < taps; ++tap, out += plane) {
          const std::int64_t set = (n * groups_ + c / (channels_ / groups_)) * taps + tap;
          if (!poll.proceed(8 * plane)) return;
          const T *move_y = offsets + 2 * set * plane, *move_x = move_y + plane;
          for (std::int64_t y = 0; y < win.out[1]; ++y)
            for (std::int64_t k = 0; k < win.out[2]; ++k) {
              const std::int64_t place = y * win.out[2] + k;
              const T at_y = static_cast<T>(win.source(1, y, tap / win.kernel[2])) + move_y[place];
              const T at_x = static_cast<T>(win.source(2, k, tap % win.kernel[2])) + move_x[place];
              out[place] = bilinear(x, win.in[1], win.in[2], at_y, at_x) * (masked_ ? mask[set * plane + place] : T{1});
            }
        }
  }

 private:
  Window window_;
  std::int64_t batch_, channels_, groups_;
  bool masked_;
};

// out[.., o, ..] = sum over t of weights[o, t] * x[.., places[o, t], ..] along one axis.
template <class T>
class ResampleStep final : public HostStep {
 public:
  explicit ResampleStep(const StepRequest& request) {
    const Dims& x = request.inputs[0].shape;
    const std::size_t axis = normal_axis(request.attributes.get_int("axis", -1), x.size());
    outer_ = element_count(Dims(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(axis)));
    inner_ = element_count(Dims(x.begin() + static_cast<std::ptrdiff_t>(axis) + 1, x.end()));
    in_ = x[axis];
    out_ = request.inputs[1].shape[0];
    taps_ = request.inputs[1].shape[1];
    axpy_ = request.table.axpy[static_cast<std::size_t>(compute_index(request.result.dtype))];
  }

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    const auto* places = reinterpret_cast<const std::int64_t*>(inputs[1]);
    const T* weights = reinterpret_cast<const T*>(inputs[2]);
    T* out = reinterpret_cast<T*>(output);
    for (std::int64_t i = 0; i < out_ * taps_; ++i)
      if (places[i] < 0 || places[i] >= in_) return fail("a place is out of range");
    StopPoll poll;
    for (std::int64_t o = 0; o < outer_; ++o, x += in_ * inner_)
      for (std::int64_t i = 0; i < out_; ++i, out += inner_) {
        if (!poll.proceed(taps_ * (inner_ + 2))) return;
        if (inner_ == 1) {
          T total{};
          for (std::int64_t t = 0; t < taps_; ++t) total += weights[i * taps_ + t] * x[place(places[i * taps_ + t])];
          *out = total;
          continue;
        }
        std::memset(out, 0, static_cast<std::size_t>(inner_) * sizeof(T));
        for (std::int64_t t = 0; t < taps_; ++t)
          axpy_(weights + i * taps_ + t, x + place(places[i * taps_ + t]) * inner_, 1, out, inner_);
      }
  }

 private:
  // Keeps to the input where another thread changes the places after they were checked.
  std::int64_t place(std::int64_t at) const noexcept { return std::clamp<std::int64_t>(at, 0, in_ - 1); }

  std::int64_t outer_ = 1, inner_ = 1, in_ = 0, out_ = 0, taps_ = 0;
  AxpyFn axpy_ = nullptr;
};

template <template <class> class S>
std::unique_ptr<HostStep> make_floating(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    if (request.result.dtype == DType::f64) return std::make_unique<S<double>>(request);
    return std::make_unique<S<float>>(request);
  });
}

}  // namespace

TensorType infer_grid_sample(std::span<const Operand> operands, const Attributes&) {
  const Dims &x = operands[0].shape, &grid = operands[1].shape;
  need_floating("GridSample", operands[0].dtype);
  if (operands[1].dtype != operands[0].dtype)
    throw Error(ErrorKind::dtype, "the grid of GridSample must be " + std::string(dtype_name(operands[0].dtype)));
  if (x.size() < 3 || x.size() > 5 || grid.size() != x.size() || grid[0] != x[0] ||
      grid.back() != static_cast<std::int64_t>(x.size()) - 2)
    throw Error(ErrorKind::shape, "GridSample of " + to_string(x) + " at " + to_string(grid));
  Dims result{x[0], x[1]};
  result.insert(result.end(), grid.begin() + 1, grid.end() - 1);
  if (element_count(result) > 0 && element_count(x) == 0)
    throw Error(ErrorKind::shape, "GridSample of " + to_string(x) + ", which has no element");
  return {operands[0].dtype, result};
}
std::unique_ptr<HostStep> make_grid_sample(const StepRequest& request) { return make_floating<GridSampleStep>(request); }

TensorType infer_deform_columns(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims& x = operands[0].shape;
  need_floating("DeformConv", operands[0].dtype);
  const Window window = deform_window(x, attributes);
  const std::int64_t groups = attributes.get_int("offset_group", 1);
  if (groups < 1 || x[1] % groups != 0 || groups > std::max<std::int64_t>(x[1], 1))
    throw Error(ErrorKind::shape, "DeformConv of " + to_string(x) + " in " + std::to_string(groups) + " groups of offsets");
  for (std::size_t i = 1; i < operands.size(); ++i) {
    if (operands[i].absent) continue;
    const Dims expected{x[0], groups * window.taps() * (i == 1 ? 2 : 1), window.out[1], window.out[2]};
    if (operands[i].dtype != operands[0].dtype || operands[i].shape != expected)
      throw Error(ErrorKind::shape, std::string("the ") + (i == 1 ? "offsets" : "mask") + " of DeformConv must be " +
                                        to_string(expected) + ", not " + to_string(operands[i].shape));
  }
  return {operands[0].dtype, {x[0], x[1] * window.taps(), window.out[1], window.out[2]}};
}
std::unique_ptr<HostStep> make_deform_columns(const StepRequest& request) { return make_floating<DeformStep>(request); }

TensorType infer_resample(std::span<const Operand> operands, const Attributes& attributes) {
  need_floating("Resample", operands[0].dtype);
  Dims shape = operands[0].shape;
  const std::size_t axis = normal_axis(attributes.get_int("axis", -1), shape.size());
  if (operands[1].dtype != DType::i64 || operands[2].dtype != operands[0].dtype)
    throw Error(ErrorKind::dtype, "Resample takes int64 places, and weights of the input's dtype");
  if (operands[1].shape.size() != 2 || operands[2].shape != operands[1].shape)
    throw Error(ErrorKind::shape, "Resample takes places and weights [out, taps]");
  shape[axis] = operands[1].shape[0];
  return {operands[0].dtype, shape};
}
std::unique_ptr<HostStep> make_resample(const StepRequest& request) { return make_floating<ResampleStep>(request); }

}  // namespace walle
