// Col2Im: columns of blocks added up to images; the adjoint of im2col. ConvTranspose is a matrix product and this.
#include <cstring>

#include "atomic/atomic.h"
#include "geometry/window.h"

namespace walle {

namespace {

struct Blocks {
  Window window;
  Dims image;
};

// From image_shape, block_shape (operands 1 and 2) and the attributes strides, dilations, pads.
Blocks blocks_of(std::span<const Operand> operands, const Attributes& attributes) {
  Blocks blocks;
  blocks.image = required_numbers(operands, 1, Attributes(), "image_shape");
  const Dims block = required_numbers(operands, 2, Attributes(), "block_shape");
  Attributes plain;  // no auto_pad or ceil_mode here
  for (const auto& [name, value] : attributes.items())
    if (name == "strides" || name == "dilations" || name == "pads") plain.set(name, value);
  blocks.window = Window::make("Col2Im", blocks.image, block, plain);
  const Dims& columns = operands[0].shape;
  if (columns.size() != 3 || columns[1] % blocks.window.taps() != 0 || columns[2] != blocks.window.out_count())
    throw Error(ErrorKind::shape, "Col2Im of columns " + to_string(columns) + " in blocks of " + to_string(block) +
                                      " to images of " + to_string(blocks.image));
  return blocks;
}

// to[i * step] += from[i]
template <class T>
void add_apart(const std::byte* from, std::byte* to, std::int64_t step, std::int64_t count) noexcept {
  const T* numbers = reinterpret_cast<const T*>(from);
  T* sums = reinterpret_cast<T*>(to);
  for (std::int64_t i = 0; i < count; ++i) sums[i * step] += numbers[i];
}

class Col2ImStep final : public HostStep {
 public:
  Col2ImStep(const StepRequest& request, const Window& window)
      : window_(window),
        planes_(request.result.shape[0] * request.result.shape[1]),
        item_(static_cast<std::int64_t>(item_size(request.result.dtype))),
        add_(request.table
                 .binary[static_cast<std::size_t>(BinaryOp::Add)][static_cast<std::size_t>(compute_index(request.result.dtype))]),
        add_apart_(request.result.dtype == DType::f32   ? &add_apart<float>
                   : request.result.dtype == DType::f64 ? &add_apart<double>
                                                        : nullptr) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const Window& win = window_;
    const std::byte* in = inputs[0];
    const std::int64_t image = win.in_count() * item_;
    StopPoll poll;
    for (std::int64_t p = 0; p < planes_; ++p, output += image) {
      if (!poll.proceed(win.in_count())) return;
      std::memset(output, 0, static_cast<std::size_t>(image));
      for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz)
        for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky)
          for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx, in += win.out_count() * item_)
            if (poll.proceed(win.out_count())) add_tap(in, output, kz, ky, kx);
    }
  }

 private:
  void add_tap(const std::byte* in, std::byte* out, std::int64_t kz, std::int64_t ky, std::int64_t kx) const noexcept {
    const Window& win = window_;
    const auto [z0, z1] = win.valid(0, kz);
    const auto [y0, y1] = win.valid(1, ky);
    const auto [x0, x1] = win.valid(2, kx);
    for (std::int64_t z = z0; z < z1; ++z)
      for (std::int64_t y = y0; y < y1; ++y) {
        const std::byte* from = in + ((z * win.out[1] + y) * win.out[2] + x0) * item_;
        std::byte* to =
            out + ((win.source(0, z, kz) * win.in[1] + win.source(1, y, ky)) * win.in[2] + win.source(2, x0, kx)) * item_;
        if (win.stride[2] == 1) {
          add_(to, 1, from, 1, to, x1 - x0);
        } else if (add_apart_ != nullptr) {
          add_apart_(from, to, win.stride[2], x1 - x0);
        } else {
          for (std::int64_t x = x0; x < x1; ++x, from += item_, to += win.stride[2] * item_) add_(to, 1, from, 1, to, 1);
        }
      }
  }

  Window window_;
  std::int64_t planes_, item_;
  BinaryFn add_;
  void (*add_apart_)(const std::byte*, std::byte*, std::int64_t, std::int64_t) noexcept;
};

}  // namespace

TensorType infer_col2im(std::span<const Operand> operands, const Attributes& attributes) {
  const int type = compute_index(operands[0].dtype);
  if (type < 0 || kernels("scalar").binary[static_cast<std::size_t>(BinaryOp::Add)][static_cast<std::size_t>(type)] == nullptr)
    throw Error(ErrorKind::dtype, "Col2Im does not support " + std::string(dtype_name(operands[0].dtype)));
  const Blocks blocks = blocks_of(operands, attributes);
  Dims result{operands[0].shape[0], operands[0].shape[1] / blocks.window.taps()};
  result.insert(result.end(), blocks.image.begin(), blocks.image.end());
  return {operands[0].dtype, result};
}

std::unique_ptr<HostStep> make_col2im(const StepRequest& request) {
  std::vector<Operand> operands;
  for (const Layout& layout : request.inputs) operands.push_back({layout.dtype, layout.shape, layout.constant, layout.absent});
  return std::make_unique<Col2ImStep>(request, blocks_of(operands, request.attributes).window);
}

}  // namespace walle
