// ColorConvert: conversion of pixels between colour spaces. YuvToColor and ColorToYuv: conversion of video formats with
// subsampled chroma.
#include <algorithm>
#include <array>
#include <cmath>

#include "atomic/image/image.h"
#include "core/stop.h"

namespace walle {

namespace {

const ColorTables& color_tables() {
  static const ColorTables tables = [] {
    ColorTables result;
    const auto linear = [](double x) { return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4); };
    for (int i = 0; i < 256; ++i) {
      result.linear[i] = static_cast<float>(linear(i / 255.0));
      result.linear_u8[i] = static_cast<std::uint16_t>(std::nearbyint(255 * 8 * linear(i / 255.0)));
      result.straight_u8[i] = static_cast<std::uint16_t>(8 * i);
    }
    for (int i = 0; i < ColorTables::kCubeRoots; ++i) {
      const double x = i / (255.0 * 8);
      result.cube_root[i] =
          static_cast<std::uint16_t>(std::nearbyint(32768 * (x < 0.008856 ? x * 7.787 + 0.13793103448275862 : std::cbrt(x))));
    }
    for (int i = 0; i <= ColorTables::kGamma; ++i) {
      const double x = static_cast<double>(i) / ColorTables::kGamma;
      const auto shown = static_cast<float>(x <= 0.0031308 ? x * 12.92 : 1.055 * std::pow(x, 1 / 2.4) - 0.055);
      result.gamma[i] = static_cast<std::uint8_t>(std::nearbyint(shown * 255.0f));
    }
    return result;
  }();
  return tables;
}

constexpr std::array<std::string_view, static_cast<std::size_t>(ColorKind::kCount)> kKinds{
    "shuffle",  "to_gray",     "from_gray",     "to_luma",   "from_luma",   "to_xyz",         "from_xyz",
    "to_hsv",   "from_hsv",    "to_hls",        "from_hls",  "to_lab",      "from_lab",       "to_luv",
    "from_luv", "premultiply", "unpremultiply", "to_packed", "from_packed", "packed_to_gray", "gray_to_packed"};

ColorArgs color_args(const Attributes& attributes) {
  ColorArgs args;
  const std::string kind = attributes.get_string("kind", "shuffle");
  const auto* found = std::find(kKinds.begin(), kKinds.end(), kind);
  if (found == kKinds.end()) throw Error(ErrorKind::unsupported, "ColorConvert does not support kind '" + kind + "'");
  args.kind = static_cast<ColorKind>(found - kKinds.begin());
  args.in_channels = static_cast<int>(attributes.get_int("in_channels", 3));
  args.out_channels = static_cast<int>(attributes.get_int("out_channels", 3));
  args.blue_first = attributes.get_int("blue_first", 1) != 0;
  args.swapped = attributes.get_int("swapped", 0) != 0;
  args.crcb = attributes.get_int("crcb", 0) != 0;
  args.full = attributes.get_int("full", 0) != 0;
  args.linear = attributes.get_int("linear", 0) != 0;
  args.green_bits = static_cast<int>(attributes.get_int("green_bits", 6));
  return args;
}

// Ranges of the channel counts of a kind's input and output.
struct ChannelRange {
  int in_min, in_max, out_min, out_max;
};
ChannelRange channel_range(ColorKind kind) {
  switch (kind) {
    case ColorKind::shuffle: return {3, 4, 3, 4};
    case ColorKind::to_gray: return {3, 4, 1, 1};
    case ColorKind::from_gray: return {1, 1, 3, 4};
    case ColorKind::to_packed: return {3, 4, 2, 2};
    case ColorKind::from_packed: return {2, 2, 3, 4};
    case ColorKind::packed_to_gray: return {2, 2, 1, 1};
    case ColorKind::gray_to_packed: return {1, 1, 2, 2};
    case ColorKind::premultiply:
    case ColorKind::unpremultiply: return {4, 4, 4, 4};
    case ColorKind::from_luma:
    case ColorKind::from_xyz:
    case ColorKind::from_hsv:
    case ColorKind::from_hls:
    case ColorKind::from_lab:
    case ColorKind::from_luv: return {3, 3, 3, 4};
    default: return {3, 4, 3, 3};
  }
}

class ColorStep final : public HostStep {
 public:
  explicit ColorStep(const StepRequest& request) : args_(color_args(request.attributes)) {
    args_.tables = &color_tables();
    pixels_ = image_shape("ColorConvert", request.inputs[0].shape).pixels();
    const auto pixel_bytes = [&](const Dims& shape, DType dtype) {
      return static_cast<std::size_t>(image_shape("ColorConvert", shape).channels) * item_size(dtype);
    };
    in_pixel_ = pixel_bytes(request.inputs[0].shape, request.inputs[0].dtype);
    out_pixel_ = pixel_bytes(request.result.shape, request.result.dtype);
    kernel_ = request.table.image->color[pixel_index("ColorConvert", request.result.dtype)];
  }
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    constexpr std::int64_t kWeight = 4;  // blocks are whole vectors: they change no result
    StopPoll poll;
    run_in_blocks(pixels_, kWeight, poll, [&](std::int64_t first, std::int64_t last) {
      kernel_(args_, inputs[0] + static_cast<std::size_t>(first) * in_pixel_,
              output + static_cast<std::size_t>(first) * out_pixel_, last - first);
    });
  }

 private:
  ColorArgs args_;
  std::int64_t pixels_;
  std::size_t in_pixel_, out_pixel_;
  ColorFn kernel_;
};

// Memory layout of a video image: planes below each other (planar: I420, YV12), interleaved chroma below the luma (semi-planar:
// NV12, NV21), or both in one row (4:2:2: YUY2, YVYU, UYVY). `u_first` is the order of the chroma values.
struct YuvLayout {
  bool planar = false, packed = false, u_first = true, luma_first = true, two_images = false;
  std::int64_t height = 0, width = 0;  // size of the picture

  static YuvLayout make(const Attributes& attributes) {
    YuvLayout layout;
    const std::string name = attributes.get_string("layout", "planar");
    if (name != "planar" && name != "semi_planar" && name != "packed")
      throw Error(ErrorKind::unsupported, "YUV layout '" + name + "' is not supported; known are planar, semi_planar and packed");
    layout.planar = name == "planar";
    layout.packed = name == "packed";
    layout.u_first = attributes.get_int("u_first", 1) != 0;
    layout.luma_first = attributes.get_int("luma_first", 1) != 0;
    return layout;
  }
};

YuvLayout layout_from(std::span<const Dims> shapes, const Attributes& attributes) {
  YuvLayout layout = YuvLayout::make(attributes);
  const ImageShape from = image_shape("YuvToColor", shapes[0]);
  layout.two_images = shapes.size() > 1;
  layout.width = from.width;
  layout.height = layout.packed || layout.two_images ? from.height : from.height / 3 * 2;
  bool fits = from.channels == (layout.packed ? 2 : 1) && from.width % 2 == 0;
  if (!layout.packed) fits = fits && layout.height % 2 == 0 && (layout.two_images || from.height % 3 == 0);
  if (layout.two_images) fits = fits && !layout.planar && !layout.packed && shapes[1] == Dims{from.height / 2, from.width / 2, 2};
  if (!fits)
    throw Error(ErrorKind::shape,
                "YuvToColor of shape " + to_string(shapes[0]) +
                    "; 4:2:0 takes one channel of even width and a height that is a multiple of 3, 4:2:2 two channels");
  return layout;
}

std::vector<Dims> shapes_of(std::span<const Layout> inputs) {
  std::vector<Dims> shapes;
  for (const Layout& input : inputs) shapes.push_back(input.shape);
  return shapes;
}

class FromYuvStep final : public HostStep {
 public:
  explicit FromYuvStep(const StepRequest& request)
      : layout_(layout_from(shapes_of(request.inputs), request.attributes)),
        channels_(static_cast<int>(request.result.shape[2])),
        blue_first_(request.attributes.get_int("blue_first", 1) != 0),
        kernel_(request.table.image->from_yuv) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const auto* in = reinterpret_cast<const std::uint8_t*>(inputs[0]);
    auto* out = reinterpret_cast<std::uint8_t*>(output);
    const std::int64_t width = layout_.width, height = layout_.height;
    StopPoll poll;
    for (std::int64_t y = 0; y < height && poll.proceed(width); ++y, out += width * channels_) {
      YuvRow row;
      if (layout_.packed) {
        const std::uint8_t *from = in + 2 * width * y, *chroma = from + (layout_.luma_first ? 1 : 0);
        row = {from + (layout_.luma_first ? 0 : 1), chroma + (layout_.u_first ? 0 : 2), chroma + (layout_.u_first ? 2 : 0), 2, 4};
      } else if (layout_.planar) {
        const std::int64_t plane = height / 2 * (width / 2);
        const std::uint8_t *first = in + height * width + y / 2 * (width / 2), *second = first + plane;
        row = {in + width * y, layout_.u_first ? first : second, layout_.u_first ? second : first, 1, 1};
      } else {
        const std::uint8_t* chroma = layout_.two_images ? reinterpret_cast<const std::uint8_t*>(inputs[1]) : in + height * width;
        chroma += y / 2 * width;
        row = {in + width * y, chroma + (layout_.u_first ? 0 : 1), chroma + (layout_.u_first ? 1 : 0), 1, 2};
      }
      kernel_(row, blue_first_, channels_, out, width);
    }
  }

 private:
  YuvLayout layout_;
  int channels_;
  bool blue_first_;
  FromYuvFn kernel_;
};

class ToYuvStep final : public HostStep {
 public:
  explicit ToYuvStep(const StepRequest& request)
      : layout_(YuvLayout::make(request.attributes)),
        input_(image_shape("ColorToYuv", request.inputs[0].shape)),
        blue_first_(request.attributes.get_int("blue_first", 1) != 0),
        kernel_(request.table.image->to_yuv) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const auto* in = reinterpret_cast<const std::uint8_t*>(inputs[0]);
    auto* out = reinterpret_cast<std::uint8_t*>(output);
    const std::int64_t width = input_.width, plane = input_.height / 2 * (width / 2);
    StopPoll poll;
    for (std::int64_t y = 0; y < input_.height && poll.proceed(width); ++y) {
      std::uint8_t* first = out + input_.height * width + y / 2 * (layout_.planar ? width / 2 : width);
      std::uint8_t* second = layout_.planar ? first + plane : first + 1;
      const bool chroma = y % 2 == 0;
      kernel_(in + y * input_.row(), static_cast<int>(input_.channels), blue_first_, out + y * width,
              chroma ? (layout_.u_first ? first : second) : nullptr, layout_.u_first ? second : first, layout_.planar ? 1 : 2,
              width);
    }
  }

 private:
  YuvLayout layout_;
  ImageShape input_;
  bool blue_first_;
  ToYuvFn kernel_;
};

void check_u8(const char* op, DType dtype) {
  if (dtype != DType::u8) throw Error(ErrorKind::dtype, std::string(op) + " takes uint8, not " + std::string(dtype_name(dtype)));
}

}  // namespace

TensorType infer_color_convert(std::span<const Operand> operands, const Attributes& attributes) {
  const ColorArgs args = color_args(attributes);
  const ImageShape shape = image_shape("ColorConvert", operands[0].shape);
  const std::size_t pixel = pixel_index("ColorConvert", operands[0].dtype);
  const ChannelRange range = channel_range(args.kind);
  if (args.in_channels < range.in_min || args.in_channels > range.in_max || args.out_channels < range.out_min ||
      args.out_channels > range.out_max || (args.green_bits != 5 && args.green_bits != 6))
    throw Error(ErrorKind::model, "ColorConvert from " + std::to_string(args.in_channels) + " to " +
                                      std::to_string(args.out_channels) + " channels is not supported by kind '" +
                                      attributes.get_string("kind", "shuffle") + "'");
  if (shape.channels != args.in_channels)
    throw Error(ErrorKind::shape, "ColorConvert takes " + std::to_string(args.in_channels) +
                                      " channels here, not an image of shape " + to_string(operands[0].shape));
  const bool u8_only = args.kind >= ColorKind::premultiply;
  const bool no_u16 = args.kind >= ColorKind::to_hsv;
  if ((u8_only && pixel != 0) || (no_u16 && pixel == 1))
    throw Error(ErrorKind::dtype, "ColorConvert takes " + std::string(u8_only ? "uint8" : "uint8 and float32") +
                                      " for this conversion, not " + std::string(dtype_name(operands[0].dtype)));
  Dims result{shape.height, shape.width};
  if (args.out_channels > 1) result.push_back(args.out_channels);
  return {operands[0].dtype, result};
}
std::unique_ptr<HostStep> make_color_convert(const StepRequest& request) { return std::make_unique<ColorStep>(request); }

TensorType infer_yuv_to_color(std::span<const Operand> operands, const Attributes& attributes) {
  std::vector<Dims> shapes;
  for (const Operand& operand : operands) {
    check_u8("YuvToColor", operand.dtype);
    shapes.push_back(operand.shape);
  }
  const YuvLayout layout = layout_from(shapes, attributes);
  const std::int64_t channels = attributes.get_int("channels", 3);
  if (channels != 3 && channels != 4)
    throw Error(ErrorKind::model, "YuvToColor returns 3 or 4 channels, not " + std::to_string(channels));
  return {DType::u8, {layout.height, layout.width, channels}};
}
std::unique_ptr<HostStep> make_yuv_to_color(const StepRequest& request) { return std::make_unique<FromYuvStep>(request); }

TensorType infer_color_to_yuv(std::span<const Operand> operands, const Attributes& attributes) {
  check_u8("ColorToYuv", operands[0].dtype);
  const ImageShape from = image_shape("ColorToYuv", operands[0].shape);
  if ((from.channels != 3 && from.channels != 4) || from.height % 2 != 0 || from.width % 2 != 0 ||
      YuvLayout::make(attributes).packed)
    throw Error(ErrorKind::shape,
                "ColorToYuv takes 3 or 4 channels of even height and width and a planar or semi-planar layout, not shape " +
                    to_string(operands[0].shape));
  return {DType::u8, {from.height / 2 * 3, from.width}};
}
std::unique_ptr<HostStep> make_color_to_yuv(const StepRequest& request) { return std::make_unique<ToYuvStep>(request); }

}  // namespace walle
