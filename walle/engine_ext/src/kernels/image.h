// The image kernels: operations on rows of interleaved pixels, called by walle.cv's operators (atomic/image/*.cpp). Every
// instruction set fills the same table from the same sources (kernels/generic/image-*-inl.h), plain loops that the compiler
// vectorises for the set; the build for the baseline is the reference. Kernels never throw or allocate; lengths may be 0.
#pragma once
#include <cstdint>

namespace walle {

// Pixel types.
enum class Pixel : std::uint8_t { u8, u16, f32 };
inline constexpr int kPixelCount = 3;

enum class ColorKind : std::uint8_t {
  shuffle,  // channels reordered, dropped, or an opaque alpha added
  to_gray,
  from_gray,
  to_luma,  // luma and chroma: YCrCb or YUV
  from_luma,
  to_xyz,
  from_xyz,
  to_hsv,
  from_hsv,
  to_hls,
  from_hls,
  to_lab,
  from_lab,
  to_luv,
  from_luv,
  premultiply,
  unpremultiply,
  to_packed,  // 5 + 5 + 5 or 5 + 6 + 5 bits in two bytes
  from_packed,
  packed_to_gray,
  gray_to_packed,
  kCount
};

struct ColorTables;  // computed once (atomic/image/color.cpp)

struct ColorArgs {
  ColorKind kind = ColorKind::shuffle;
  int in_channels = 3, out_channels = 3;
  bool blue_first = true;  // the BGR or RGB side is BGR
  bool swapped = false;    // shuffle: BGR to RGB or back
  bool crcb = false;       // luma: YCrCb, not YUV
  bool full = false;       // hue in 0..255, not 0..179
  bool linear = false;     // Lab, Luv: from linear RGB
  int green_bits = 6;      // packed
  const ColorTables* tables = nullptr;
};

struct ColorTables {
  static constexpr int kCubeRoots = 3072, kGamma = 16384;
  std::uint16_t linear_u8[256];         // 255 * 8 * (linear value of an sRGB byte)
  std::uint16_t straight_u8[256];       // 8 * byte
  std::uint16_t cube_root[kCubeRoots];  // 2^15 * f(i / (255 * 8)) of CIE Lab
  float linear[256];                    // linear value of an sRGB byte
  std::uint8_t gamma[kGamma + 1];       // sRGB byte of i / kGamma
};

using ColorFn = void (*)(const ColorArgs& args, const void* in, void* out, std::int64_t pixels) noexcept;

// Convert a row of YUV with chroma for every second pixel to a row of pixels; steps are between values of luma and of chroma.
struct YuvRow {
  const std::uint8_t *luma, *u, *v;
  std::int64_t luma_step, chroma_step;
};
using FromYuvFn = void (*)(const YuvRow& row, bool blue_first, int channels, std::uint8_t* out, std::int64_t pixels) noexcept;
// Convert a row of pixels to luma and, where u is not null, to chroma of every second pixel.
using ToYuvFn = void (*)(const std::uint8_t* in, int channels, bool blue_first, std::uint8_t* luma, std::uint8_t* u,
                         std::uint8_t* v, std::int64_t chroma_step, std::int64_t pixels) noexcept;

// Byte movements for rasters. out[i] = in[count - 1 - i], items of `size` bytes, at most 16.
using ReverseFn = void (*)(const void* in, std::int64_t size, void* out, std::int64_t count) noexcept;
// Split triples of bytes into three planes, `plane` bytes apart; and interleave 1 to 4 planes to pixels.
using PlanesFn = void (*)(const void* in, void* out, std::int64_t plane, std::int64_t count) noexcept;
using WeaveFn = void (*)(const void* in, std::int64_t plane, int channels, void* out, std::int64_t count) noexcept;

// One axis resampled: out[i, c] = sum over t of weights[t * pixels + i] * in[places[t * pixels + i], c], places in pixels.
struct AxisTaps {
  const std::int32_t* places;
  const float* weights;       // either float weights
  const std::int16_t* whole;  // integer weights in fixed point otherwise
  int taps;
};
using ResampleRowFn = void (*)(const AxisTaps& axis, int channels, const void* in, void* out, std::int64_t pixels) noexcept;
// out[i] = sum over t of weights[t] * rows[t][i], rounded and saturated.
using JoinRowsFn = void (*)(const float* const* rows, const float* weights, int taps, void* out, std::int64_t count) noexcept;
using JoinWholeRowsFn = void (*)(const void* const* rows, const std::int16_t* weights, int taps, int bits, void* out,
                                 std::int64_t count) noexcept;
// out[i] = the `size` bytes at in + places[i] * size.
using PickRowFn = void (*)(const std::int32_t* places, std::int64_t size, const void* in, void* out,
                           std::int64_t pixels) noexcept;
// The mean of each two by two pixels of two rows.
using HalveRowsFn = void (*)(const void* upper, const void* lower, int channels, void* out, std::int64_t pixels) noexcept;

// Arguments for sampling an image between its pixels.
struct SampleArgs {
  const void* image = nullptr;
  std::int64_t height = 0, width = 0;
  int channels = 1;
  int reach = 2;                   // 1 nearest, 2 linear, 4 cubic, 8 Lanczos
  int border = 0;                  // Border of atomic/image/image.h
  double value[4] = {};            // colour of the constant border, by channel
  const float* weights = nullptr;  // weights of 32 positions between two pixels, for Lanczos: OpenCV's positions
};
// out[i] = the image at (x[i], y[i]), `count` pixels, at most kSampleBlock.
using SampleFn = void (*)(const SampleArgs& args, const float* x, const float* y, void* out, std::int64_t count) noexcept;
inline constexpr std::int64_t kSampleBlock = 256;
// Compute the source positions of the pixels of a row from column `start` on: (column * dx + x0, column * dy + y0), for a
// perspective divided by column * dw + w0. In float32, product and sum rounded once where the set can, as in OpenCV.
struct PlaceArgs {
  float dx, x0, dy, y0, dw, w0;
};
using PlacesFn = void (*)(const PlaceArgs& args, std::int64_t start, float* x, float* y, std::int64_t count) noexcept;

// out[i] = (sum over t of weights[t] * taps[t][i] + delta), integers shifted right by `shift` with rounding, then saturated: one
// pass of a separable filter, a whole small filter, or a derivative. Named by the types of taps and result; the sum has the wider
// one (32 bits for u16 taps), and weights have the sum's type (int16 for 16 bits, int32, float).
enum class Combine : std::uint8_t {
  u8_u16,
  u16_u8,
  u16_u8_short,  // summed in 16 bits
  u8_i16,
  i16_i16,
  i16_u8,
  i16_f32,
  u8_i32,
  u16_u32,
  u32_u16,  // summed in 64 bits
  i32_u8,
  i32_i16,
  i32_f32,
  u8_f32,
  u16_f32,
  i16_f32_wide,
  f32_u8,
  f32_u16,
  f32_i16,
  f32_f32,
  kCount
};
using CombineFn = void (*)(const void* const* taps, const void* weights, int count, float delta, int shift, void* out,
                           std::int64_t length) noexcept;

// Pixel types of order filters.
enum class Ordered : std::uint8_t { u8, u16, i16, f32 };
inline constexpr int kOrderedCount = 4;
// out[i] = the least or the greatest of taps[t][i].
using ExtremeFn = void (*)(const void* const* taps, int count, void* out, std::int64_t length) noexcept;
// out[i] = the median of nine or twenty-five taps; the taps of a column, `count` entries apart in `taps`, are sorted.
using MedianFn = void (*)(const void* const* taps, void* out, std::int64_t length) noexcept;
// Sort three or five rows position by position: rows[t][i] is the t-th least of taps[t][i].
using SortRowsFn = void (*)(const void* const* taps, void* const* rows, std::int64_t length) noexcept;

// Window sums, first along a row, of pixels or of their squares: sums[i] = sum over k < width of in[i + k * step], `length` sums;
// `spare` has room for length + width * step numbers. Integer pixels are summed in int32, floats in double.
using BoxRowFn = void (*)(const void* in, bool squared, std::int64_t step, std::int64_t width, void* sums, void* spare,
                          std::int64_t length) noexcept;
// Then along the columns: sums[i] += enter[i] - leave[i]; a null `leave` subtracts nothing.
using SlideFn = void (*)(const void* enter, const void* leave, void* sums, std::int64_t length) noexcept;
// out[i] = sums[i] * scale, rounded and saturated.
using ScaleFn = void (*)(const void* sums, double scale, void* out, std::int64_t length) noexcept;

using UnpackFn = void (*)(const void* in, int channels, float* const* planes, std::int64_t pixels) noexcept;
using PackFn = void (*)(const float* const* planes, int channels, void* out, std::int64_t pixels) noexcept;

// Bilateral filter: a mean weighted by distance in position and in colour, over planes of floats.
struct BilateralArgs {
  const float* const* planes = nullptr;  // `channels` padded planes, at the first pixel of the row
  int channels = 1;
  const std::int64_t* offsets = nullptr;  // places of the taps
  const float* space = nullptr;           // weights of the taps
  int taps = 0;
  const float* tones = nullptr;  // weights by difference in colour, `tone_scale` entries a unit
  float tone_scale = 1;
  std::int32_t last_tone = 0;
};
using BilateralFn = void (*)(const BilateralArgs& args, float* const* out, std::int64_t length) noexcept;

// out[i] = f(a[i], b[i]) or f(a[i]), saturated; `n` are the operation's parameters. AbsoluteScale, InRange and the comparisons
// that make masks give bytes.
enum class Pointwise : std::uint8_t {
  add,
  subtract,
  difference,
  least,
  greatest,
  bit_and,
  bit_or,
  bit_xor,
  weighted,  // n[0] * a + n[1] * b + n[2]
  multiply,  // n[0] * a * b
  binary,    // a > n[0] ? n[1] : 0
  binary_inv,
  truncate,
  to_zero,
  to_zero_inv,
  absolute_scale,  // |n[0] * a + n[1]|
  above,           // bytes: a > b + n[0] ? n[1] : 0
  not_above,
  kCount
};
using PointwiseFn = void (*)(const void* a, const void* b, const double* numbers, void* out, std::int64_t length) noexcept;
// out[i] = 255 where low[c] <= in[i, c] <= high[c] for all channels, else 0.
using InRangeFn = void (*)(const void* in, int channels, const double* low, const double* high, std::uint8_t* out,
                           std::int64_t pixels) noexcept;
// Add the sums of the channels' values, and of their squares, to the existing ones.
using SumFn = void (*)(const void* in, int channels, const std::uint8_t* mask, double* sums, double* squares,
                       std::int64_t pixels) noexcept;
// Canny's non-maximum suppression: out[i] = 0 where |gradient| is at most `low` or less than a neighbour's along the gradient, 1
// for a possible edge, 2 for a certain one. Takes the magnitudes of three rows, each with one more value on either side.
using ThinFn = void (*)(const std::int16_t* dx, const std::int16_t* dy, const std::int32_t* above, const std::int32_t* here,
                        const std::int32_t* below, std::int32_t low, std::int32_t high, std::uint8_t* out,
                        std::int64_t length) noexcept;
using MagnitudeFn = void (*)(const std::int16_t* dx, const std::int16_t* dy, bool squared, std::int32_t* out,
                             std::int64_t length) noexcept;

// out[i] = above[i] + in[0] + ... + in[i].
using IntegralRowFn = void (*)(const std::uint8_t* in, const std::int32_t* above, std::int32_t* out,
                               std::int64_t length) noexcept;

struct ImageTable {
  PointwiseFn pointwise[static_cast<int>(Pointwise::kCount)][kOrderedCount] = {};
  InRangeFn in_range[kOrderedCount] = {};
  SumFn sum[kOrderedCount] = {};
  ThinFn thin = nullptr;
  MagnitudeFn magnitude = nullptr;
  IntegralRowFn integral_row = nullptr;
  CombineFn combine[static_cast<int>(Combine::kCount)] = {};
  ExtremeFn least[kOrderedCount] = {}, greatest[kOrderedCount] = {};
  SortRowsFn sort3[kOrderedCount] = {}, sort5[kOrderedCount] = {};
  MedianFn median9[kOrderedCount] = {}, median25[kOrderedCount] = {};
  UnpackFn unpack[kPixelCount] = {};  // interleaved pixels to planes of floats
  PackFn pack[kPixelCount] = {};
  BoxRowFn box_row[kPixelCount] = {};
  SlideFn slide[2] = {};             // whole numbers, floats
  BoxRowFn box_row_words = nullptr;  // bytes in 16 bits, for sums that fit
  SlideFn slide_words = nullptr;
  ScaleFn scale_words[2] = {};  // results: bytes (by OpenCV's integer arithmetic), floats
  ScaleFn scale_sums[kPixelCount] = {}, float_sums[2] = {};
  BilateralFn bilateral = nullptr;
  ResampleRowFn resample_row[kPixelCount] = {};  // result: float
  // By integer weights, to one int32 plane per channel for up to four channels (interleaved for more), and to sixteenths in
  // int16.
  ResampleRowFn resample_bytes = nullptr, resample_short = nullptr;
  JoinRowsFn join_rows[kPixelCount] = {};
  JoinWholeRowsFn join_bytes = nullptr;         // sums of int32: exact, `bits` of fraction shifted out
  JoinWholeRowsFn join_linear_bytes = nullptr;  // two rows of int16, by OpenCV's 16-bit arithmetic
  HalveRowsFn halve_rows[kPixelCount] = {};
  PickRowFn pick_row = nullptr;
  SampleFn sample[kPixelCount] = {};
  PlacesFn affine = nullptr, perspective = nullptr;
  ReverseFn reverse = nullptr;
  PlanesFn planes3 = nullptr;
  WeaveFn weave = nullptr;
  FromYuvFn from_yuv = nullptr;
  ToYuvFn to_yuv = nullptr;
  ColorFn color[kPixelCount] = {};
};

}  // namespace walle
