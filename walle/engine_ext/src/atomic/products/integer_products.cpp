#include "atomic/products/integer_products.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace walle {

namespace {

constexpr std::int64_t kPixels = 84;       // pixels summed at a time; a multiple of every tile height
constexpr std::int64_t kMostColumns = 32;  // columns of two blocks
enum Operands : std::size_t { kX, kWeights, kZero, kSummand, kScale, kResultZero, kCount };

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }

std::array<Dims, 2> shapes_of(const StepRequest& request) { return {request.inputs[kX].shape, request.inputs[kWeights].shape}; }

class IntegerStep final : public SharedStep {
 public:
  IntegerStep(const StepRequest& request, bool linear, Tensor packed)
      : shape_(shapes_of(request), request.attributes, linear, bytes(request.table)),
        packed_(std::move(packed)),
        result_(request.result.dtype),
        relu_(request.attributes.get_string("activation", "") == "Relu") {
    for (std::size_t i = 0; i < kCount; ++i) given_[i] = i < request.inputs.size() && !request.inputs[i].absent;
    if (given_[kScale]) one_scale_ = element_count(request.inputs[kScale].shape) == 1;
    flip_ = request.inputs[kX].dtype == DType::i8 ? 0x80 : 0;
    const Window& win = shape_.conv.window;
    pixel_ = shape_.conv.groups * shape_.unit;
    channels_ = shape_.conv.groups * shape_.conv.in_channels;
    std::int64_t reach[Window::kAxes];
    bool inside = true;
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis) {
      reach[axis] =
          std::max<std::int64_t>(0, (win.out[axis] - 1) * win.stride[axis] + (win.kernel[axis] - 1) * win.dilation[axis] + 1);
      inside = inside && win.begin[axis] == 0 && reach[axis] <= win.in[axis];
    }
    where_it_lies_ = inside && flip_ == 0 && channels_ == pixel_ * kFloat;
    for (std::size_t axis = 0; axis < Window::kAxes; ++axis) dims_[axis] = where_it_lies_ ? win.in[axis] : reach[axis];
    image_ = element_count({dims_[0], dims_[1], dims_[2], pixel_});  // throws where borders make it larger than any tensor may be
    if (static_cast<std::size_t>(image_) > storage_limit() / kFloat)
      throw Error(ErrorKind::shape, "an image with its borders of shape " + to_string(Dims(dims_.begin(), dims_.end())) +
                                        " needs more memory than the machine has");
    for (std::int64_t kz = 0; kz < win.kernel[0]; ++kz)
      for (std::int64_t ky = 0; ky < win.kernel[1]; ++ky)
        for (std::int64_t kx = 0; kx < win.kernel[2]; ++kx) {
          const std::int64_t at = (kz * win.dilation[0] * dims_[1] + ky * win.dilation[1]) * dims_[2] + kx * win.dilation[2];
          if (!shape_.depthwise && !segments_.empty() && segments_.back().offset + segments_.back().length == at * pixel_)
            segments_.back().length += shape_.unit;
          else
            segments_.push_back({at * pixel_, shape_.unit});
        }
    // One line where the pixels of the result are spaced as those of the input.
    flat_ = dims_[0] == win.out[0] && dims_[1] == win.out[1] && dims_[2] == win.out[2] && win.stride == Window::Axes{1, 1, 1};
    scratch_bytes_ = static_cast<std::size_t>((2 * shape_.columns() + image_) * kFloat);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    auto* bias = reinterpret_cast<std::uint32_t*>(scratch);
    auto* scale = reinterpret_cast<float*>(bias + shape_.columns());
    float* copy = scale + shape_.columns();
    const auto* x = reinterpret_cast<const std::uint8_t*>(inputs[kX]);
    const auto zero = static_cast<std::uint8_t>((given_[kZero] ? std::to_integer<std::uint8_t>(*inputs[kZero]) : 0) ^ flip_);
    begin_columns(inputs, zero, bias, scale);
    BytesFinish finish;
    if (given_[kScale]) {
      finish.scale = scale;
      finish.range = range(given_[kResultZero] ? std::to_integer<std::uint8_t>(*inputs[kResultZero]) : std::uint8_t{0});
    }
    const Window& win = shape_.conv.window;
    const std::int64_t out_pixel = shape_.conv.groups * shape_.conv.out_channels * (given_[kScale] ? 1 : kFloat);
    for (std::int64_t n = 0; n < shape_.conv.batch; ++n) {
      const std::uint8_t* image = x + n * channels_ * win.in_count();
      const float* elements = copy;
      if (where_it_lies_ && reinterpret_cast<std::uintptr_t>(image) % alignof(float) == 0)
        elements = reinterpret_cast<const float*>(image);
      else
        read(team, image, zero, reinterpret_cast<std::uint8_t*>(copy));
      multiply(team, elements, reinterpret_cast<const float*>(bias), finish, output + n * win.out_count() * out_pixel);
    }
  }
  std::string_view algorithm() const noexcept override { return shape_.bytes.name; }

 private:
  ByteRange range(std::uint8_t zero) const noexcept {
    const bool is_signed = result_ == DType::i8;
    const std::int32_t point = is_signed ? static_cast<std::int8_t>(zero) : zero, least = is_signed ? -128 : 0;
    return {relu_ ? 0.0f : static_cast<float>(least - point), static_cast<float>(least + 255 - point), point};
  }

  // The initial value of a column's sum: its bias, less the zero point times each of its weights.
  void begin_columns(std::byte* const* inputs, std::uint8_t zero, std::uint32_t* bias, float* scale) const noexcept {
    const std::int64_t in_group = shape_.blocks * shape_.bytes.pack, real = shape_.conv.out_channels;
    const auto* sums = reinterpret_cast<const std::uint32_t*>(packed_.raw()) + shape_.columns() * shape_.depth();
    const std::uint32_t point = zero;
    for (std::int64_t i = 0; i < shape_.columns(); ++i) bias[i] = 0u - point * sums[i];
    for (std::int64_t group = 0; group < shape_.conv.groups; ++group, bias += in_group, scale += in_group) {
      if (given_[kSummand])
        for (std::int64_t j = 0; j < real; ++j)
          bias[j] += reinterpret_cast<const std::uint32_t*>(inputs[kSummand])[group * real + j];
      if (!given_[kScale]) continue;
      const auto* scales = reinterpret_cast<const float*>(inputs[kScale]);
      for (std::int64_t j = 0; j < in_group; ++j) scale[j] = j >= real ? 0.0f : scales[one_scale_ ? 0 : group * real + j];
    }
  }

  // The image with its borders, each group's channels in whole quads.
  void read(Team& team, const std::uint8_t* x, std::uint8_t zero, std::uint8_t* to) const noexcept {
    const Window& win = shape_.conv.window;
    const std::int64_t pixel = pixel_ * kFloat, line = dims_[2] * pixel, in_line = win.in[2] * channels_;
    const std::int64_t left = std::min(win.begin[2], dims_[2]);
    const std::int64_t middle = std::max<std::int64_t>(0, std::min(win.in[2], dims_[2] - left));
    if (shape_.linear) return read_stretches(team, x, to);
    team.each(
        dims_[0] * dims_[1],
        [&](std::int64_t at, int) {
          std::uint8_t* out = to + at * line;
          const std::int64_t z = at / dims_[1] - win.begin[0], y = at % dims_[1] - win.begin[1];
          if (z < 0 || z >= win.in[0] || y < 0 || y >= win.in[1]) {
            std::memset(out, zero, static_cast<std::size_t>(line));
            return;
          }
          std::memset(out, zero, static_cast<std::size_t>(left * pixel));
          read_pixels(x + (z * win.in[1] + y) * in_line, middle, out + left * pixel);
          std::memset(out + (left + middle) * pixel, zero, static_cast<std::size_t>(line - (left + middle) * pixel));
        },
        static_cast<double>(image_));
  }
  void read_stretches(Team& team, const std::uint8_t* x, std::uint8_t* to) const noexcept {
    constexpr std::int64_t kRows = 64;
    const std::int64_t rows = dims_[2];
    team.each((rows + kRows - 1) / kRows,
              [&](std::int64_t stretch, int) {
                const std::int64_t first = stretch * kRows;
                read_pixels(x + first * channels_, std::min(kRows, rows - first), to + first * pixel_ * kFloat);
              },
              static_cast<double>(image_));
  }
  void read_pixels(const std::uint8_t* x, std::int64_t count, std::uint8_t* to) const noexcept {
    const std::int64_t group = shape_.conv.in_channels, wide = shape_.unit * kFloat;
    if (group == wide) return flipped(x, count * channels_, to, flip_);
    if (group == 3 && wide == 4) return triples(x, count * shape_.conv.groups, to, flip_);
    for (std::int64_t i = 0; i < count * shape_.conv.groups; ++i, x += group, to += wide) {
      flipped(x, group, to, flip_);
      std::memset(to + group, 0, static_cast<std::size_t>(wide - group));  // weights of 0 meet these
    }
  }
  // The pixels of colour images.
  static void triples(const std::uint8_t* x, std::int64_t count, std::uint8_t* to, std::uint8_t flip) noexcept {
    for (std::int64_t i = 0; i < count; ++i, x += 3, to += 4) {
      std::uint32_t quad = 0;
      std::memcpy(&quad, x, i + 1 < count ? 4 : 3);
      quad = (quad & 0xffffffu) ^ 0x010101u * flip;
      std::memcpy(to, &quad, sizeof(quad));
    }
  }
  static void flipped(const std::uint8_t* x, std::int64_t count, std::uint8_t* to, std::uint8_t flip) noexcept {
    if (flip == 0 && count > 0) std::memcpy(to, x, static_cast<std::size_t>(count));
    for (std::int64_t i = 0; flip != 0 && i < count; ++i) to[i] = x[i] ^ flip;
  }

  // One unit of work is a pair of blocks of columns for some lines.
  void multiply(Team& team, const float* elements, const float* bias, const BytesFinish& finish,
                std::byte* output) const noexcept {
    const Window& win = shape_.conv.window;
    const std::int64_t line = flat_ ? kPixels : win.out[2], count = win.out_count(), width = shape_.bytes.pack;
    const std::int64_t groups = shape_.conv.groups, out_channels = shape_.conv.out_channels;
    if (count == 0 || out_channels == 0) return;
    const std::int64_t lines = (count + line - 1) / line, at_once = std::max<std::int64_t>(1, kPixels / line);
    const std::int64_t stretches = (lines + at_once - 1) / at_once, pairs = (shape_.blocks + 1) / 2;
    const PanelFn panel = shape_.depthwise ? shape_.bytes.depthwise : shape_.bytes.panel;
    const std::int64_t item = finish.scale == nullptr ? kFloat : 1;
    team.each(
        stretches * groups * pairs,
        [&](std::int64_t unit, int) {
          const std::int64_t group = unit % (groups * pairs) / pairs, block = unit % pairs * 2;
          const std::int64_t first = unit / (groups * pairs) * at_once * line, last = std::min(count, first + at_once * line);
          const std::int64_t column = group * shape_.blocks * width + block * width;
          const float* from = elements + group * shape_.unit + (shape_.depthwise ? block * width / kFloat : 0);
          PanelArgs args;
          args.a_step = win.stride[2] * pixel_;
          args.segments = segments_.data();
          args.segment_count = static_cast<std::int64_t>(segments_.size());
          args.blocks = std::min<std::int64_t>(2, shape_.blocks - block);
          args.w = reinterpret_cast<const float*>(packed_.raw()) + column * shape_.depth();
          args.width = width;
          args.out_step = 2 * width;
          args.out_block = width;
          args.finish.bias = bias + column;
          BytesFinish end = finish;
          if (end.scale != nullptr) end.scale += column;
          end.columns = std::min(args.blocks * width, out_channels - block * width);
          end.row_step = groups * out_channels;
          alignas(64) float sums[kPixels * kMostColumns];
          end.sums = sums;
          // A long line by itself, in pieces; else as many as there is room for.
          for (std::int64_t pixel = first; pixel < last;) {
            end.rows = 0;
            end.out = output + (pixel * end.row_step + group * out_channels + block * width) * item;
            while (pixel < last && end.rows < kPixels) {
              const std::int64_t in_line = flat_ ? last - pixel : line - pixel % line;
              args.rows = std::min({in_line, last - pixel, kPixels - end.rows});
              args.a = from + place(pixel) * pixel_;
              args.out = sums + end.rows * 2 * width;
              panel(args);
              end.rows += args.rows;
              pixel += args.rows;
            }
            shape_.bytes.finish(end);
          }
        },
        2.0 * static_cast<double>(count * groups * out_channels * shape_.depth()));
  }

  // Return the place in an image of elements of the first tap of a pixel of the result.
  std::int64_t place(std::int64_t pixel) const noexcept {
    const Window& win = shape_.conv.window;
    const std::int64_t x = pixel % win.out[2], y = pixel / win.out[2] % win.out[1], z = pixel / win.out[2] / win.out[1];
    return (z * win.stride[0] * dims_[1] + y * win.stride[1]) * dims_[2] + x * win.stride[2];
  }

  IntegerShape shape_;
  Tensor packed_;
  DType result_;
  bool relu_, flat_ = false, one_scale_ = false, where_it_lies_ = false;
  std::array<bool, kCount> given_{};
  std::uint8_t flip_ = 0;
  Window::Axes dims_{};                    // sizes of the image with its borders
  std::int64_t pixel_ = 0, channels_ = 0;  // sum over all groups, in elements and in channels
  std::int64_t image_ = 0;
  std::vector<Segment> segments_;
};

TensorType checked(std::span<const Operand> operands, const Attributes& attributes, const char* name, std::int64_t columns,
                   Dims shape) {
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
  if (given(kSummand) && (operands[kSummand].dtype != DType::i32 || operands[kSummand].shape != Dims{columns}))
    throw refuse(ErrorKind::shape, "the bias must be int32 " + to_string(Dims{columns}));
  const std::string activation = attributes.get_string("activation", "");
  if (!activation.empty() && (activation != "Relu" || !given(kScale)))
    throw refuse(ErrorKind::unsupported, "the activation may be Relu, with a scale, not '" + activation + "'");
  if (!given(kScale)) return {DType::i32, std::move(shape)};
  if (operands[kScale].dtype != DType::f32 || !(number(kScale) || operands[kScale].shape == Dims{columns}))
    throw refuse(ErrorKind::shape, "the scale must be one float32, or one for each of " + std::to_string(columns));
  if (!given(kResultZero) || !is_byte(operands[kResultZero].dtype) || !number(kResultZero))
    throw refuse(ErrorKind::shape, "a scale needs the result's zero point, one uint8 or int8");
  return {operands[kResultZero].dtype, std::move(shape)};
}

std::unique_ptr<HostStep> pack_and_make(const StepRequest& request, bool linear) {
  const IntegerShape shape(shapes_of(request), request.attributes, linear, bytes(request.table));
  return make_integer_product(request, linear, shape.pack(*request.inputs[kWeights].constant));
}

}  // namespace

TensorType infer_integer_conv(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims &x = operands[kX].shape, &w = operands[kWeights].shape;
  if (x.size() < 3 || w.size() != x.size())
    throw Error(ErrorKind::shape, "IntegerConv of " + to_string(x) + " by " + to_string(w));
  Dims planes{x.front(), x.back()};
  planes.insert(planes.end(), x.begin() + 1, x.end() - 1);
  const ConvShape shape = conv_shape(planes, w, DType::i32, attributes);
  Dims result{shape.batch};
  for (const std::int64_t size : shape.window.out_dims()) result.push_back(size);
  result.push_back(w[0]);
  return checked(operands, attributes, "IntegerConv", w[0], std::move(result));
}

TensorType infer_integer_linear(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims &x = operands[kX].shape, &w = operands[kWeights].shape;
  if (x.empty() || w.size() != 2 || x.back() != w[0])
    throw Error(ErrorKind::shape, "IntegerLinear of " + to_string(x) + " by " + to_string(w));
  Dims result = x;
  result.back() = w[1];
  return checked(operands, attributes, "IntegerLinear", w[1], std::move(result));
}

std::unique_ptr<HostStep> make_integer_product(const StepRequest& request, bool linear, Tensor packed) {
  return std::make_unique<IntegerStep>(request, linear, std::move(packed));
}
std::unique_ptr<HostStep> make_integer_conv(const StepRequest& request) { return pack_and_make(request, false); }
std::unique_ptr<HostStep> make_integer_linear(const StepRequest& request) { return pack_and_make(request, true); }

}  // namespace walle
