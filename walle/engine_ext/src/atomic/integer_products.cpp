// IntegerConv and IntegerLinear: what quantised convolutions and matrix products by constant weights become, in the kernels of
// bytes. Sums are taken in int32 and wrap around; where a scale is given, a sum times it, rounded to the nearest, + the result's
// zero point, saturated, is a byte again.
//
// Operands: x, uint8 or int8 ([batch, channels, in...]; [..., k]); constant int8 weights without their zero point ([out channels,
// in channels, kernel...]; [k, columns]); x's zero point, one number, which is also the border; an int32 bias for each column; a
// float32 scale, one or for each column; the result's zero point, one number.
#include <algorithm>
#include <bit>
#include <cstring>

#include "atomic/convolution.h"
#include "kernels/bytes.h"

namespace walle {

namespace {

constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kPixels = 84;  // that are summed up at a time; a multiple of every tile height
enum Operands : std::size_t { kX, kWeights, kZero, kBias, kScale, kResultZero, kCount };

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }
float as_float(std::uint32_t x) noexcept { return std::bit_cast<float>(x); }

// A matrix product is a convolution of one line of pixels, whose channels are neighbours.
ConvShape shape_of(const StepRequest& request, bool linear) {
  const Dims &x = request.inputs[kX].shape, &w = request.inputs[kWeights].shape;
  if (!linear) return conv_shape(x, w, DType::i32, request.attributes);
  ConvShape shape;
  shape.dtype = DType::i32;
  shape.in_channels = w[0];
  shape.out_channels = w[1];
  const std::int64_t rows = element_count(Dims(x.begin(), x.end() - 1));
  shape.window.in[2] = shape.window.out[2] = rows;
  return shape;
}

class IntegerStep final : public SharedStep {
 public:
  IntegerStep(const StepRequest& request, bool linear)
      : shape_(shape_of(request, linear)), bytes_(bytes(request.table)), linear_(linear), result_(request.result.dtype) {
    const auto given = [&](std::size_t i) { return i < request.inputs.size() && !request.inputs[i].absent; };
    for (std::size_t i = 0; i < kCount; ++i) given_[i] = given(i);
    if (given_[kScale]) one_scale_ = element_count(request.inputs[kScale].shape) == 1;
    flip_ = request.inputs[kX].dtype == DType::i8 ? 0x80 : 0;
    const Window& win = shape_.window;
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis)
      dims_[axis] =
          std::max<std::int64_t>(0, (win.out[axis] - 1) * win.stride[axis] + (win.kernel[axis] - 1) * win.dilation[axis] + 1);
    unit_ = (shape_.in_channels + 3) / 4;
    image_ = dims_[0] * dims_[1] * dims_[2] * unit_;
    for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz)
      for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky)
        for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx) {
          const std::int64_t at = (kz * win.dilation[0] * dims_[1] + ky * win.dilation[1]) * dims_[2] + kx * win.dilation[2];
          if (!segments_.empty() && segments_.back().offset + segments_.back().length == at * unit_)
            segments_.back().length += unit_;
          else
            segments_.push_back({at * unit_, unit_});
        }
    blocks_ = (shape_.out_channels + bytes_.pack - 1) / bytes_.pack;
    // One line where the pixels of the result are spaced as those of the input.
    flat_ = dims_[1] == win.out[1] && dims_[2] == win.out[2] && win.stride == Window::Axes{1, 1, 1};
    pack(*request.inputs[kWeights].constant);
    scratch_bytes_ = static_cast<std::size_t>((2 * columns() + shape_.groups * image_) * kFloat);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    auto* bias = reinterpret_cast<float*>(scratch);
    float *scale = bias + columns(), *elements = scale + columns();
    const auto* x = reinterpret_cast<const std::uint8_t*>(inputs[kX]);
    const auto zero = static_cast<std::uint8_t>((given_[kZero] ? std::to_integer<std::uint8_t>(*inputs[kZero]) : 0) ^ flip_);
    for (std::int64_t column = 0; column < columns(); ++column) {
      const std::int64_t group = column / (blocks_ * bytes_.pack), j = column % (blocks_ * bytes_.pack);
      const std::int64_t channel = group * shape_.out_channels + j;
      const bool real = j < shape_.out_channels;
      std::uint32_t first = 0u - zero * sums_[static_cast<std::size_t>(column)];
      if (real && given_[kBias]) first += reinterpret_cast<const std::uint32_t*>(inputs[kBias])[channel];
      bias[column] = as_float(first);
      if (given_[kScale]) scale[column] = !real ? 0.0f : reinterpret_cast<const float*>(inputs[kScale])[one_scale_ ? 0 : channel];
    }
    BytesFinish finish;
    if (given_[kScale]) {
      const bool is_signed = result_ == DType::i8;
      finish.scale = scale;
      finish.low = is_signed ? -128.0f : 0.0f;
      finish.high = is_signed ? 127.0f : 255.0f;
      if (given_[kResultZero]) {
        const auto point = std::to_integer<std::uint8_t>(*inputs[kResultZero]);
        finish.zero = is_signed ? static_cast<float>(static_cast<std::int8_t>(point)) : static_cast<float>(point);
      }
    }
    const std::int64_t channels_in = shape_.groups * shape_.in_channels, channels_out = shape_.groups * shape_.out_channels;
    for (std::int64_t n = 0; n < shape_.batch; ++n) {
      if (linear_)
        read_rows(team, x, elements);
      else
        read_planes(team, x + n * channels_in * shape_.window.in_count(), zero, elements);
      multiply(team, elements, bias, finish, output, n * channels_out * shape_.window.out_count());
    }
  }
  std::string_view algorithm() const noexcept override { return bytes_.pack > 4 ? "bytes" : "plain bytes"; }

 private:
  std::int64_t columns() const noexcept { return shape_.groups * blocks_ * bytes_.pack; }

  // [group][pair of blocks][k][columns of the pair], and the sum of each column's weights.
  void pack(const Tensor& weights) {
    const std::int64_t taps = shape_.window.taps(), depth = taps * unit_, width = bytes_.pack;
    const auto* w = reinterpret_cast<const std::int8_t*>(weights.raw());
    weights_.assign(static_cast<std::size_t>(columns() * depth), 0.0f);
    sums_.assign(static_cast<std::size_t>(columns()), 0);
    const std::int64_t k_step = linear_ ? shape_.out_channels : taps, j_step = linear_ ? 1 : shape_.in_channels * taps;
    for (std::int64_t g = 0; g < shape_.groups; ++g)
      for (std::int64_t j = 0; j < shape_.out_channels; ++j) {
        const std::int64_t pair = j / (2 * width) * 2, in_pair = std::min<std::int64_t>(2, blocks_ - pair) * width;
        float* to = weights_.data() + (g * blocks_ + pair) * width * depth + j - pair * width;
        std::uint32_t sum = 0;
        for (std::int64_t tap = 0; tap < taps; ++tap)
          for (std::int64_t c = 0; c < shape_.in_channels; ++c) {
            const std::int8_t value = w[(g * shape_.out_channels + j) * j_step + c * k_step + tap];
            float& element = to[(tap * unit_ + c / 4) * in_pair];
            const std::uint32_t byte = static_cast<std::uint8_t>(value);
            element = as_float(std::bit_cast<std::uint32_t>(element) | byte << (c % 4 * 8));
            sum += static_cast<std::uint32_t>(value);
          }
        sums_[static_cast<std::size_t>(g * blocks_ * width + j)] = sum;
      }
  }

  void read_rows(Team& team, const std::uint8_t* x, float* elements) const noexcept {
    const std::int64_t depth = shape_.in_channels, rows = shape_.window.in[2];
    constexpr std::int64_t kRows = 64;
    team.each((rows + kRows - 1) / kRows, [&](std::int64_t stretch, int) {
      auto* to = reinterpret_cast<std::uint8_t*>(elements + stretch * kRows * unit_);
      for (std::int64_t row = stretch * kRows; row < std::min(rows, (stretch + 1) * kRows); ++row, to += unit_ * kFloat) {
        for (std::int64_t k = 0; k < depth; ++k) to[k] = x[row * depth + k] ^ flip_;
        for (std::int64_t k = depth; k < unit_ * kFloat; ++k) to[k] = 0;
      }
    });
  }

  // [group][pixel][quad of channels]; a plane that a last quad lacks is read as another one, by weights of 0.
  void read_planes(Team& team, const std::uint8_t* x, std::uint8_t zero, float* elements) const noexcept {
    const Window& win = shape_.window;
    const float border = as_float(0x01010101u * zero);
    const std::int64_t left = std::min(win.begin[2], dims_[2]);
    const std::int64_t middle = std::max<std::int64_t>(0, std::min(win.in[2], dims_[2] - left));
    team.each(shape_.groups * unit_, [&](std::int64_t quad, int) {
      const std::int64_t group = quad / unit_, first = quad % unit_ * 4;
      float* to = elements + group * image_ + quad % unit_;
      const auto fill = [&](std::int64_t from, std::int64_t last) {
        for (std::int64_t i = from; i < last; ++i) to[i * unit_] = border;
      };
      for (std::int64_t z = 0; z < dims_[0]; ++z)
        for (std::int64_t y = 0; y < dims_[1]; ++y, to += dims_[2] * unit_) {
          const std::int64_t in_z = z - win.begin[0], in_y = y - win.begin[1];
          if (in_z < 0 || in_z >= win.in[0] || in_y < 0 || in_y >= win.in[1]) {
            fill(0, dims_[2]);
            continue;
          }
          fill(0, left);
          fill(left + middle, dims_[2]);
          const std::uint8_t* planes[4];
          for (std::int64_t p = 0; p < 4; ++p) {
            const std::int64_t channel = group * shape_.in_channels + (first + p < shape_.in_channels ? first + p : first);
            planes[p] = x + channel * win.in_count() + (in_z * win.in[1] + in_y) * win.in[2];
          }
          bytes_.quads(planes, flip_, middle, to + left * unit_, unit_);
        }
    });
  }

  // One unit of work is a pair of blocks of columns for some lines.
  void multiply(Team& team, const float* elements, const float* bias, BytesFinish finish, std::byte* output,
                std::int64_t image) const noexcept {
    const Window& win = shape_.window;
    const std::int64_t line = flat_ ? kPixels : win.out[2], count = win.out_count(), width = bytes_.pack;
    if (count == 0 || shape_.out_channels == 0) return;
    const std::int64_t lines = (count + line - 1) / line, at_once = std::max<std::int64_t>(1, kPixels / line);
    const std::int64_t stretches = (lines + at_once - 1) / at_once, pairs = (blocks_ + 1) / 2;
    const std::int64_t depth = win.taps() * unit_;
    team.each(stretches * shape_.groups * pairs, [&](std::int64_t unit, int) {
      const std::int64_t group = unit % (shape_.groups * pairs) / pairs, block = unit % pairs * 2;
      const std::int64_t stretch = unit / (shape_.groups * pairs), first = stretch * at_once * line;
      const std::int64_t column = group * blocks_ * width + block * width;
      PanelArgs args;
      args.a_step = win.stride[2] * unit_;
      args.segments = segments_.data();
      args.segment_count = static_cast<std::int64_t>(segments_.size());
      args.blocks = std::min<std::int64_t>(2, blocks_ - block);
      args.w = weights_.data() + column * depth;
      args.width = width;
      args.out_step = 2 * width;
      args.out_block = width;
      args.finish.bias = bias + column;
      BytesFinish end = finish;
      if (end.scale != nullptr) end.scale += column;
      end.columns = std::min(args.blocks * width, shape_.out_channels - block * width);
      end.column_step = linear_ ? 1 : count;
      end.row_step = linear_ ? shape_.out_channels : 1;
      const std::int64_t channel = group * shape_.out_channels + block * width, item = end.scale == nullptr ? kFloat : 1;
      const std::int64_t last = std::min(count, first + at_once * line);
      alignas(64) float sums[kPixels * kMostColumns];
      // A long line by itself, in pieces; else as many as there is room for.
      for (std::int64_t pixel = first; pixel < last;) {
        std::int64_t rows = 0;
        const std::int64_t from = pixel;
        while (pixel < last && rows < kPixels) {
          const std::int64_t in_line = flat_ ? last - pixel : line - pixel % line;
          args.rows = std::min({in_line, last - pixel, kPixels - rows});
          args.a = elements + group * image_ + place(pixel) * unit_;
          args.out = sums + rows * 2 * width;
          bytes_.panel(args);
          rows += args.rows;
          pixel += args.rows;
        }
        end.sums = sums;
        end.rows = rows;
        const std::int64_t at = linear_ ? from * shape_.out_channels + channel : image + channel * count + from;
        end.out = output + at * item;
        bytes_.finish(end);
      }
    });
  }

  // Where in an image of elements the first tap of a pixel of the result lies.
  std::int64_t place(std::int64_t pixel) const noexcept {
    const Window& win = shape_.window;
    const std::int64_t x = pixel % win.out[2], y = pixel / win.out[2] % win.out[1], z = pixel / win.out[2] / win.out[1];
    return (z * win.stride[0] * dims_[1] + y * win.stride[1]) * dims_[2] + x * win.stride[2];
  }

  static constexpr std::int64_t kMostColumns = 32;

  ConvShape shape_;
  const Bytes& bytes_;
  bool linear_, flat_ = false, one_scale_ = false;
  DType result_;
  std::array<bool, kCount> given_{};
  std::uint8_t flip_ = 0;
  Window::Axes dims_{};  // of the image with its borders
  std::int64_t unit_ = 0, image_ = 0, blocks_ = 0;
  std::vector<Segment> segments_;
  std::vector<float> weights_;
  std::vector<std::uint32_t> sums_;
};

TensorType checked(std::span<const Operand> operands, const char* name, std::int64_t columns, Dims shape) {
  const auto given = [&](std::size_t i) { return i < operands.size() && !operands[i].absent; };
  const auto number = [&](std::size_t i) { return element_count(operands[i].shape) == 1; };
  const auto refuse = [&](ErrorKind kind, const std::string& what) { return Error(kind, std::string(name) + ": " + what); };
  const DType x = operands[kX].dtype;
  if (!is_byte(x) || operands[kWeights].dtype != DType::i8)
    throw refuse(ErrorKind::dtype, "x is uint8 or int8 and the weights are int8, not " + std::string(dtype_name(x)) + " and " +
                                       std::string(dtype_name(operands[kWeights].dtype)));
  if (operands[kWeights].constant == nullptr) throw refuse(ErrorKind::unsupported, "the weights must be constant");
  if (given(kZero) && (operands[kZero].dtype != x || !number(kZero)))
    throw refuse(ErrorKind::shape, "the zero point of x must be one number of its dtype");
  if (given(kBias) && (operands[kBias].dtype != DType::i32 || operands[kBias].shape != Dims{columns}))
    throw refuse(ErrorKind::shape, "the bias must be int32 " + to_string(Dims{columns}));
  if (!given(kScale)) return {DType::i32, std::move(shape)};
  if (operands[kScale].dtype != DType::f32 || !(number(kScale) || operands[kScale].shape == Dims{columns}))
    throw refuse(ErrorKind::shape, "the scale must be one float32, or one for each of " + std::to_string(columns));
  if (!given(kResultZero) || !is_byte(operands[kResultZero].dtype) || !number(kResultZero))
    throw refuse(ErrorKind::shape, "a scale needs the result's zero point, one uint8 or int8");
  return {operands[kResultZero].dtype, std::move(shape)};
}

}  // namespace

TensorType infer_integer_conv(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims &x = operands[kX].shape, &w = operands[kWeights].shape;
  const ConvShape shape = conv_shape(x, w, DType::i32, attributes);
  Dims result{shape.batch, w[0]};
  for (const std::int64_t size : shape.window.out_dims()) result.push_back(size);
  return checked(operands, "IntegerConv", w[0], std::move(result));
}

TensorType infer_integer_linear(std::span<const Operand> operands, const Attributes&) {
  const Dims &x = operands[kX].shape, &w = operands[kWeights].shape;
  if (x.empty() || w.size() != 2 || x.back() != w[0])
    throw Error(ErrorKind::shape, "IntegerLinear of " + to_string(x) + " by " + to_string(w));
  Dims result = x;
  result.back() = w[1];
  return checked(operands, "IntegerLinear", w[1], std::move(result));
}

std::unique_ptr<Step> make_integer_conv(const StepRequest& request) { return std::make_unique<IntegerStep>(request, false); }
std::unique_ptr<Step> make_integer_linear(const StepRequest& request) { return std::make_unique<IntegerStep>(request, true); }

}  // namespace walle
