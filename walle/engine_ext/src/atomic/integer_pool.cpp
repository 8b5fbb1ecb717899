// IntegerPoolMax: the greatest byte of each window, of x [batch, in..., channels], uint8 or int8; attributes of ONNX's MaxPool. A
// window without an element gives the least number there is.
#include <algorithm>
#include <limits>

#include "atomic/atomic.h"
#include "geometry/window.h"

namespace walle {

namespace {

Window integer_window_of(const Dims& x, const Attributes& attributes) {
  if (x.size() < 3) throw Error(ErrorKind::shape, "IntegerPoolMax of " + to_string(x));
  const auto kernel = attributes.get_ints("kernel_shape");
  if (!kernel) throw Error(ErrorKind::model, "IntegerPoolMax needs the attribute 'kernel_shape'");
  return Window::make("IntegerPoolMax", std::span(x).subspan(1, x.size() - 2), *kernel, attributes);
}

template <class T>
class IntegerPoolStep final : public SharedStep {
 public:
  explicit IntegerPoolStep(const StepRequest& request)
      : window_(integer_window_of(request.inputs[0].shape, request.attributes)),
        batch_(request.inputs[0].shape.front()),
        channels_(request.inputs[0].shape.back()) {}

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const Window& win = window_;
    const auto* x = reinterpret_cast<const T*>(inputs[0]);
    T* out = reinterpret_cast<T*>(output);
    const std::int64_t lines = win.out[0] * win.out[1];
    team.each(
        batch_ * lines,
        [&](std::int64_t at, int) {
          const T* image = x + at / lines * win.in_count() * channels_;
          const std::int64_t line = at % lines;
          join_line(image, line / win.out[1], line % win.out[1], out + at * win.out[2] * channels_);
        },
        static_cast<double>(batch_ * win.out_count() * win.taps() * channels_));
  }

 private:
  void join_line(const T* image, std::int64_t z, std::int64_t y, T* out) const noexcept {
    const Window& win = window_;
    const auto [first_z, last_z] = win.taps_of(0, z);
    const auto [first_y, last_y] = win.taps_of(1, y);
    for (std::int64_t x = 0; x < win.out[2]; ++x, out += channels_) {
      const auto [first_x, last_x] = win.taps_of(2, x);
      std::fill_n(out, channels_, std::numeric_limits<T>::lowest());
      for (std::int64_t kz = first_z; kz < last_z; ++kz)
        for (std::int64_t ky = first_y; ky < last_y; ++ky)
          for (std::int64_t kx = first_x; kx < last_x; ++kx) {
            const std::int64_t row = win.source(0, z, kz) * win.in[1] + win.source(1, y, ky);
            join(image + (row * win.in[2] + win.source(2, x, kx)) * channels_, channels_, out);
          }
    }
  }
  static void join(const T* from, std::int64_t count, T* out) noexcept {
    for (std::int64_t c = 0; c < count; ++c) out[c] = std::max(out[c], from[c]);
  }

  Window window_;
  std::int64_t batch_, channels_;
};

}  // namespace

TensorType infer_integer_pool_max(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims& x = operands[0].shape;
  if (operands[0].dtype != DType::u8 && operands[0].dtype != DType::i8)
    throw Error(ErrorKind::dtype, "IntegerPoolMax takes uint8 and int8, not " + std::string(dtype_name(operands[0].dtype)));
  Dims result = integer_window_of(x, attributes).out_dims();
  result.insert(result.begin(), x.front());
  result.push_back(x.back());
  return {operands[0].dtype, std::move(result)};
}

std::unique_ptr<HostStep> make_integer_pool_max(const StepRequest& request) {
  if (request.result.dtype == DType::u8) return std::make_unique<IntegerPoolStep<std::uint8_t>>(request);
  return std::make_unique<IntegerPoolStep<std::int8_t>>(request);
}

}  // namespace walle
