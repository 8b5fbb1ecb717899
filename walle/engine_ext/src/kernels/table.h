// The kernel table, which an instruction set's folder fills and all layers above call. Kernels never throw or allocate. Strides
// are in elements; lengths may be 0; outputs alias no input unless a kernel's comment allows it.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "core/dtype.h"
#include "kernels/winograd.h"

namespace walle {

// The element types of kernels; other types are stored and converted. float16 and bfloat16 are computed in float32, rounded once.
enum class Compute : std::uint8_t { f32, f64, i32, i64, u8, b8, i8, i16, u16, u32, u64, f16, bf16, c64, c128 };
inline constexpr int kComputeCount = 15;
inline constexpr DType kComputeTypes[kComputeCount] = {DType::f32, DType::f64, DType::i32,  DType::i64, DType::u8,
                                                       DType::b8,  DType::i8,  DType::i16,  DType::u16, DType::u32,
                                                       DType::u64, DType::f16, DType::bf16, DType::c64, DType::c128};
// Return the index of a dtype's compute type; -1 where no kernel computes in it.
constexpr int compute_index(DType dtype) noexcept {
  for (int i = 0; i < kComputeCount; ++i)
    if (kComputeTypes[i] == dtype) return i;
  return -1;
}
// Return the index of a storage-only type, from float8e4m3fn on; -1 for a type that kernels compute in.
inline constexpr int kFirstStored = static_cast<int>(DType::f8e4m3fn);
inline constexpr int kStoredCount = static_cast<int>(DType::u2) - kFirstStored + 1;
constexpr int stored_index(DType dtype) noexcept {
  return dtype < DType::f8e4m3fn || dtype > DType::u2 ? -1 : static_cast<int>(dtype) - kFirstStored;
}
// Conversions from float to a storage-only type: [0] saturating, [1] not; for float8e8m0 these two for each Rounding in turn.
inline constexpr int kEncodings = 6;

#define WALLE_NAME1(op, types) op,
#define WALLE_NAME2(op, types, join) op,
enum class UnaryOp : std::uint8_t {
#define WALLE_UNARY WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_UNARY
  kCount
};
enum class BinaryOp : std::uint8_t {
#define WALLE_BINARY WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_BINARY
  kCount
};
enum class CompareOp : std::uint8_t {
#define WALLE_COMPARE WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_COMPARE
  kCount
};
enum class TestOp : std::uint8_t {
#define WALLE_TEST WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_TEST
  kCount
};
enum class PartOp : std::uint8_t {
#define WALLE_PART WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_PART
  kCount
};
enum class ReduceOp : std::uint8_t {
#define WALLE_REDUCE WALLE_NAME2
#include "kernels/kernels.inc"
#undef WALLE_REDUCE
  kCount
};
enum class ArgOp : std::uint8_t {
#define WALLE_ARG WALLE_NAME1
#include "kernels/kernels.inc"
#undef WALLE_ARG
  kCount
};
#undef WALLE_NAME1
#undef WALLE_NAME2

// out[i] = f(in[i * stride]) for i < count; out is contiguous and may be `in` where stride is 1.
using UnaryFn = void (*)(const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept;
// out[i] = f(a[i * a_stride], b[i * b_stride]); out is contiguous and may be `a` or `b` where that stride is 1.
using BinaryFn = void (*)(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, void* out,
                          std::int64_t count) noexcept;
// out[0] = f over in[i * stride], count >= 1. Floating-point sums are accumulated in float64 at least every 1024 elements and
// rounded once at the end.
using ReduceFn = void (*)(const void* in, std::int64_t stride, std::int64_t count, void* out) noexcept;
// out[i] = where[i] ? a[i] : b[i], by item size.
using SelectFn = void (*)(const void* where, std::int64_t where_stride, const void* a, std::int64_t a_stride, const void* b,
                          std::int64_t b_stride, void* out, std::int64_t count) noexcept;

// out[i] += factor[0] * in[i * stride]; in and out do not overlap.
using AxpyFn = void (*)(const void* factor, const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept;

// Output stage of a packed kernel's sums: + bias (one number a column or channel), + residual (laid out as the output), then
// clamped. A null pointer adds nothing; NaN stays NaN.
struct Finish {
  const float* bias = nullptr;
  const float* residual = nullptr;
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
};

// Some columns of a matrix whose columns lie in several places, one part beside the other: rows are `row` elements apart.
struct GemmPart {
  const float* at;
  std::int64_t row, columns;
};
// out[m, n] = sum_k a[m, k] * b[k, n]; a and b with any strides, out with rows `out_row` apart; m, n, k >= 0.
struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t rows = 0;  // those of the product that this is a piece of; 0: m
  const void* a = nullptr;
  std::int64_t a_row = 0, a_col = 0;
  const void* b = nullptr;
  std::int64_t b_row = 0, b_col = 0;
  void* out = nullptr;
  std::int64_t out_row = 0;
  void* scratch = nullptr;  // scratch_bytes(m, n, k), aligned to 64
  bool accumulate = false;  // adds to `out`; only where Gemm says that it can
  // Of float32, only where Gemm says that it finishes.
  Finish finish;                    // n numbers of bias, not added with `accumulate`; no residual
  const GemmPart* parts = nullptr;  // all of A, or of B, in their order; its address and strides above are not read
  std::int64_t part_count = 0;
  bool parts_of_b = false;
};
struct Gemm {
  // Against exact arithmetic: |error| <= 2 * k * eps * (|a| @ |b|) per element; avx512_bf16: of operands that are rounded.
  void (*run)(const GemmArgs& args) noexcept;
  std::size_t (*scratch_bytes)(std::int64_t m, std::int64_t n, std::int64_t k) noexcept;
  bool accumulates = false;  // supports GemmArgs::accumulate
  bool finishes = false;     // supports GemmArgs::finish and ::parts
};

// Composites that one kernel computes element by element; `a` and `b` are their attributes: alpha and beta of HardSigmoid, alpha
// of Elu, LeakyRelu and Swish.
enum class MapOp : std::uint8_t {
#define WALLE_MAP(op, ...) op,
#include "kernels/kernels.inc"
#undef WALLE_MAP
  kCount
};
// out[i] = f(in[i]); out may be `in`.
using MapFn = void (*)(const void* in, void* out, std::int64_t count, float a, float b) noexcept;
// out[i] = in[i] < 0 ? in[i] * slope[i % period] : in[i]; the period is 1, a multiple of `pack`, or at least `count`. out may be
// `in`.
using PReluFn = void (*)(const float* in, const float* slope, std::int64_t period, float* out, std::int64_t count) noexcept;
// Along the middle axis of float32 [rows, count, columns], contiguous; count >= 1; out may be in.
struct RowsArgs {
  const float* in = nullptr;
  float* out = nullptr;
  std::int64_t rows = 0, count = 0, columns = 1;
  // For normalisations, which have one column: `count` numbers each; `shift` may be null.
  const float* scale = nullptr;
  const float* shift = nullptr;
  float epsilon = 0;
};
using RowsFn = void (*)(const RowsArgs& args) noexcept;
// out[c] = sum over rows of in[row * step + c], in float32, for at most kMostSummedRows rows.
inline constexpr std::int64_t kMostSummedRows = 4096;
using SumRowsFn = void (*)(const float* in, std::int64_t step, std::int64_t rows, float* out, std::int64_t columns) noexcept;

// dst[r * dst_row + c] = src[c * src_column + r] for r < rows and c < columns; items of four bytes at multiples of four.
using TransposeFn = void (*)(const void* src, std::int64_t src_column, void* dst, std::int64_t dst_row, std::int64_t rows,
                             std::int64_t columns) noexcept;

// The lanes that one block of a packed layout contributes to another: lane i of each pixel of the other is lane `lanes[i]` of
// this one; negative: another part supplies it.
struct LanePart {
  const float* in;
  const std::int32_t* lanes;
};
inline constexpr std::int64_t kMostLaneParts = 4;
// Assembles one block of `pixels` pixels from 1 to kMostLaneParts parts; a lane that no part supplies is 0. `out` may be a part's
// `in`.
using PermuteLanesFn = void (*)(const LanePart* parts, std::int64_t count, float* out, std::int64_t pixels) noexcept;
// A segment of the summed-over axis: `length` neighbouring elements of A's row from `offset` on.
struct Segment {
  std::int64_t offset, length;
};
// out[r, j] (+)= sum over the segments and k of a[r * a_step + offset + k] * w[.., j] for `blocks` (1 or 2) blocks of `pack`
// columns j: the tile kernel shared by matrix multiplication, convolution (a row is a pixel, a segment a tap) and Winograd.
struct PanelArgs {
  std::int64_t rows = 0;
  const float* a = nullptr;
  std::int64_t a_step = 0;
  const Segment* segments = nullptr;
  std::int64_t segment_count = 0;
  std::int64_t blocks = 1;
  const float* w = nullptr;  // [every k of every segment][blocks * pack]
  float* out = nullptr;      // row r, block b at r * out_step + b * out_block
  std::int64_t out_step = 0, out_block = 0;
  std::int64_t width = 0;   // columns of the last block that are written, 1 to pack
  bool accumulate = false;  // add to the existing output; bias and residual are then not added again
  Finish finish;            // bias has blocks * pack numbers, or the width's where the last block is cut; out's place in residual
};
using PanelFn = void (*)(const PanelArgs& args) noexcept;

// out[i, lane] = sum over taps of in[i * in_step + offset + lane] * w[place + lane] for `count` pixels of one block of channels.
// `out` may be `in` where the only tap has offset 0 and in_step is `pack`.
struct Tap {
  std::int64_t offset, place;
};
struct LaneArgs {
  std::int64_t count = 0;
  const float* in = nullptr;
  std::int64_t in_step = 0;
  const Tap* taps = nullptr;
  std::int64_t tap_count = 0;
  const float* w = nullptr;
  float* out = nullptr;  // pixels `pack` apart
  Finish finish;         // bias has `pack` numbers
};
using LaneFn = void (*)(const LaneArgs& args) noexcept;
struct DepthwiseRowArgs;     // kernels/depthwise.h
struct DepthwiseWeightArgs;  // kernels/depthwise.h
using DepthwiseRowFn = void (*)(const DepthwiseRowArgs& args) noexcept;
using DepthwiseWeightFn = void (*)(const DepthwiseWeightArgs& args) noexcept;

// Winograd's transforms of `count` tiles of one block of channels between an image and planes of positions: position (i, j) of a
// square form is i * size + j; any other form has one row and is transformed along its columns only. The input transform reads
// the rows and columns of the tile in [first, last) and takes the others as 0; the output transform writes those before `last`.
struct WinogradArgs {
  std::int64_t count = 0;
  const float* in = nullptr;
  float* out = nullptr;
  std::int64_t tile = 0, row = 0, column = 0;  // steps in the image
  std::int64_t position = 0;                   // distance from one plane to the next; tiles lie `pack` apart in each
  std::int64_t row_first = 0, row_last = 0, column_first = 0, column_last = 0;
  Finish finish;  // finish of the output; bias has `pack` numbers
};
using WinogradFn = void (*)(const WinogradArgs& args) noexcept;
struct Winograd {
  WinogradFn input = nullptr, output = nullptr;
};

// Run `rounds` times kPeakChains independent multiply-adds of one vector, to measure a core's peak rate; return their sum.
inline constexpr int kPeakChains = 12;  // enough to hide the latency; with two constants they fit into 16 registers
using PeakFn = float (*)(std::int64_t rounds) noexcept;

// One pass of a Fourier transform of columns of numbers, real and imaginary parts separate (atomic/fourier.cpp):
// out[p][k][q] = turn(k, p) * sum_j in[j][p][q] * exp(-2 pi i j k / radix) for p < count, k < radix and q < width: a piece of
// a pass over all p < rest and q < step. In and out do not overlap.
struct FourierPass {
  std::int64_t radix = 1, rest = 1, step = 1, count = 1, width = 1;
  const double *re = nullptr, *im = nullptr;
  double *out_re = nullptr, *out_im = nullptr;
  const double* turns = nullptr;  // (radix - 1, 2, rest): the real and imaginary parts of turn(k, p), k from 1 on
  const double* wheel = nullptr;  // (radix, 2): exp(-2 pi i j / radix)
};
using FourierFn = void (*)(const FourierPass& pass) noexcept;

template <class Op>
inline constexpr std::size_t kCountOf = static_cast<std::size_t>(Op::kCount);

struct ChannelKernels;  // kernels/channels.h
struct ImageTable;      // kernels/image.h
struct Bytes;           // kernels/bytes.h
struct Bfloat16;        // kernels/bfloat16.h

// A null entry: no kernel for that element type.
struct Table {
  std::string_view name;
  int lanes = 1;  // floats in one vector
  UnaryFn unary[kCountOf<UnaryOp>][kComputeCount] = {};
  UnaryFn test[kCountOf<TestOp>][kComputeCount] = {};
  UnaryFn part[kCountOf<PartOp>][kComputeCount] = {};  // complex numbers; the result has the type of their parts
  BinaryFn binary[kCountOf<BinaryOp>][kComputeCount] = {};
  BinaryFn compare[kCountOf<CompareOp>][kComputeCount] = {};
  ReduceFn reduce[kCountOf<ReduceOp>][kComputeCount] = {};
  ReduceFn arg[kCountOf<ArgOp>][kComputeCount] = {};
  UnaryFn cast[kComputeCount][kComputeCount] = {};  // [from][to]
  UnaryFn to_odd[kComputeCount] = {};               // result: float32, rounded to odd: rounding it again is exact
  UnaryFn decode[kStoredCount] = {};                // result: float32
  UnaryFn encode[kStoredCount][kEncodings] = {};    // source: float32; for integers int32, whose low bits are kept
  SelectFn select[5] = {};                          // [log2 of the item size]
  Gemm gemm[kComputeCount] = {};
  AxpyFn axpy[kComputeCount] = {};
  const ImageTable* image = nullptr;
  const ChannelKernels* channels[2] = {};  // float32 and float64
  const Bytes* bytes = nullptr;
  const Bfloat16* bfloat16 = nullptr;
  // float32 composites; null where only the decomposition computes them.
  MapFn map[kCountOf<MapOp>] = {};
  PReluFn prelu = nullptr;
  RowsFn softmax = nullptr, log_softmax = nullptr, layer_norm = nullptr, rms_norm = nullptr;
  SumRowsFn sum_rows = nullptr;
  TransposeFn transpose = nullptr;         // four-byte items
  PermuteLanesFn permute_lanes = nullptr;  // blocks of `pack` floats
  // Of float32 in packed layouts, whose channels lie in blocks of `pack`.
  int pack = 4;
  PanelFn panel = nullptr;
  LaneFn depthwise = nullptr;
  DepthwiseRowFn depthwise_row = nullptr;
  DepthwiseWeightFn depthwise_weights = nullptr;
  Winograd winograd[kWinogradFormCount][2] = {};  // [place in kWinogradForms][square]
  PeakFn peak = nullptr;
  FourierFn fourier = nullptr;
  LaneFn pool_max = nullptr, pool_sum = nullptr;  // no weights; a sum is multiplied by w[0]; no output stage
};

// An instruction set of the host's CPU; the public API calls its name a backend.
struct InstructionSet {
  std::string_view name;
  bool available = false;  // true if this CPU has it
  bool exact = true;       // float32 precision or better; otherwise it is used only where requested by name
};
// All instruction sets, in ascending order of preference (kernels/sets.inc).
std::span<const InstructionSet> instruction_sets() noexcept;

// Return the table of the best instruction set of this CPU, or of the one that WALLE_FORCE_ISA names; decided once a process.
// Throw Error (backend) for a forced name that is unknown or that the CPU lacks.
const Table& kernels();
// Return whether WALLE_FORCE_ISA determines the table of "auto".
bool forced_instruction_set() noexcept;
// Return the table of one instruction set; "auto" means kernels(). Throw Error (backend) as above.
const Table& kernels(std::string_view backend);

}  // namespace walle
