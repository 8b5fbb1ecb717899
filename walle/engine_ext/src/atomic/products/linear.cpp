// Linear: x [..., k] times w [k, n], plus bias [n] and residual [..., n] where they are given, then bounded to [low, high]; an
// activation may follow (see atomic/products/activation.h). What a matrix product by a constant becomes; float32.
#include "atomic/products/packed_linear.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/bfloat16.h"
#include "core/nest.h"
#include "kernels/bfloat16.h"

namespace walle {

namespace {

// A chunk's panel of weights, and the rows of A that go over it, stay in the second-level cache.
constexpr std::int64_t kPanelBytes = 128 << 10, kRowsBytes = 512 << 10;

}  // namespace

std::int64_t linear_chunk(std::int64_t depth, const Table& table) {
  const std::int64_t most = kPanelBytes / (2 * table.pack * kFloat);
  const std::int64_t chunks = (depth + most - 1) / std::max<std::int64_t>(1, most);
  return chunks == 0 ? 1 : (depth + chunks - 1) / chunks;
}

// [chunk][pair of blocks][k][columns of the pair], the columns behind the last one zero.
void pack_linear(const float* w, std::int64_t row, std::int64_t col, std::int64_t depth, std::int64_t columns, const Table& table,
                 float* packed) noexcept {
  const std::int64_t pack = table.pack, chunk = linear_chunk(depth, table);
  for (std::int64_t k0 = 0; k0 < depth; k0 += chunk) {
    const std::int64_t height = std::min(chunk, depth - k0);
    for (std::int64_t n = 0; n < columns; n += 2 * pack) {
      const std::int64_t width = columns - n > pack ? 2 * pack : pack, real = std::min(width, columns - n);
      for (std::int64_t k = 0; k < height; ++k, packed += width) {
        const float* from = w + (k0 + k) * row + n * col;
        if (col == 1)
          std::copy_n(from, real, packed);
        else
          for (std::int64_t j = 0; j < real; ++j) packed[j] = from[j * col];
        for (std::int64_t j = real; j < width; ++j) packed[j] = 0.0f;
      }
    }
  }
}

std::size_t packed_linear_bytes(std::int64_t depth, std::int64_t columns, const Table& table) noexcept {
  return static_cast<std::size_t>(depth * ((columns + table.pack - 1) / table.pack) * table.pack * kFloat);
}

void run_linear(Team& team, const LinearArgs& args, const Table& table) noexcept {
  const std::int64_t pack = table.pack, blocks = (args.columns + pack - 1) / pack, chunk = linear_chunk(args.depth, table);
  const PanelFn kernel = args.pairs ? bfloat16(table)->panel : table.panel;
  const std::int64_t panels = (blocks + 1) / 2;
  // As many rows at a time as stay near for the next panel, evenly; fewer where a team would have too little to share.
  std::int64_t at_once = std::max<std::int64_t>(1, kRowsBytes / (std::max<std::int64_t>(1, chunk) * kFloat));
  if (team.size() > 1 && panels < 4 * team.size()) at_once = std::min<std::int64_t>(at_once, 64);
  const std::int64_t stretches = (args.rows + at_once - 1) / at_once;
  if (stretches > 0) at_once = (args.rows + stretches - 1) / stretches;
  for (std::int64_t k = 0; k < args.depth || k == 0; k += chunk) {  // of nothing: bias and residual alone
    const Segment segment{k, std::min(chunk, args.depth - k)};
    team.each(
        stretches * panels,
        [&](std::int64_t unit, int) {
          const std::int64_t row = unit / panels * at_once, block = unit % panels * 2;
          PanelArgs panel;
          panel.rows = std::min(at_once, args.rows - row);
          panel.a = args.a + row * args.a_row;
          panel.a_step = args.a_row;
          panel.segments = &segment;
          panel.segment_count = 1;
          panel.blocks = std::min<std::int64_t>(2, blocks - block);
          panel.width = std::min(pack, args.columns - (block + panel.blocks - 1) * pack);
          panel.w = args.w + k * blocks * pack + segment.length * block * pack;
          panel.out = args.out + row * args.out_row + block * pack;
          panel.out_step = args.out_row;
          panel.out_block = pack;
          panel.accumulate = k > 0;
          if (args.finish.bias != nullptr) panel.finish.bias = args.finish.bias + block * pack;
          const float* residual =
              args.finish.residual == nullptr ? nullptr : args.finish.residual + row * args.out_row + block * pack;
          const bool last = k + chunk >= args.depth;
          if (args.activation == nullptr || !args.activation->residual_last()) panel.finish.residual = residual;
          if (last) panel.finish.low = args.finish.low, panel.finish.high = args.finish.high;
          kernel(panel);
          if (last && args.activation != nullptr)
            args.activation->run(panel.out, panel.rows, args.out_row, (panel.blocks - 1) * pack + panel.width,
                                 args.slope == nullptr ? nullptr : args.slope + block * pack, residual);
        },
        2.0 * static_cast<double>(args.rows * segment.length) * static_cast<double>(args.columns));
  }
}

namespace {

// The weights are packed once where they are constants that the plan keeps; else, in every run.
enum class Weights { plain, packed, pairs };

class LinearStep final : public SharedStep {
 public:
  LinearStep(const StepRequest& request, Weights weights, std::string_view algorithm)
      : table_(request.table), weights_(weights), activation_(request.attributes, request.table), algorithm_(algorithm) {
    const Dims& x = request.inputs[0].shape;
    args_.depth = x.back();
    args_.columns = request.result.shape.back();
    args_.rows = args_.columns == 0 ? 0 : element_count(request.result.shape) / args_.columns;
    args_.a_row = args_.depth;
    args_.out_row = args_.columns;
    args_.finish.low = static_cast<float>(request.attributes.get_float("low", args_.finish.low));
    args_.finish.high = static_cast<float>(request.attributes.get_float("high", args_.finish.high));
    bias_ = request.inputs.size() > 2 && !request.inputs[2].absent;
    residual_ = request.inputs.size() > 3 && !request.inputs[3].absent;
    if (weights_ == Weights::plain) scratch_bytes_ = packed_linear_bytes(args_.depth, args_.columns, table_);
    if (weights_ == Weights::pairs) scratch_bytes_ = static_cast<std::size_t>(args_.rows * ((args_.depth + 1) / 2) * kFloat);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    LinearArgs args = args_;
    args.a = reinterpret_cast<const float*>(inputs[0]);
    args.w = reinterpret_cast<const float*>(weights_ == Weights::plain ? scratch : inputs[1]);
    args.out = reinterpret_cast<float*>(output);
    if (bias_) args.finish.bias = reinterpret_cast<const float*>(inputs[2]);
    if (residual_) args.finish.residual = reinterpret_cast<const float*>(inputs[3]);
    if (activation_.any()) args.activation = &activation_;
    if (activation_.has_slope()) args.slope = reinterpret_cast<const float*>(inputs[kSlope]);
    if (weights_ == Weights::pairs) to_pairs(team, args, reinterpret_cast<float*>(scratch));
    if (weights_ == Weights::plain)
      pack_linear(reinterpret_cast<const float*>(inputs[1]), args.columns, 1, args.depth, args.columns, table_,
                  reinterpret_cast<float*>(scratch));
    run_linear(team, args, table_);
  }
  std::string_view algorithm() const noexcept override { return algorithm_; }

 private:
  void to_pairs(Team& team, LinearArgs& args, float* pairs) const noexcept {
    constexpr std::int64_t kRows = 64;
    const std::int64_t row = (args.depth + 1) / 2;
    team.each((args.rows + kRows - 1) / kRows, [&](std::int64_t stretch, int) {
      const std::int64_t first = stretch * kRows, rows = std::min(kRows, args.rows - first);
      bfloat16(table_)->narrow(args.a + first * args.a_row, args.a_row, rows, args.depth, pairs + first * row, row);
    });
    args.pairs = true;
    args.a = pairs;
    args.a_row = args.depth = row;
  }

  const Table& table_;
  Weights weights_;
  Activation activation_;
  bool bias_ = false, residual_ = false;
  std::string_view algorithm_;
  LinearArgs args_;
};

}  // namespace

TensorType infer_linear(std::span<const Operand> operands, const Attributes& attributes) {
  check_activation(attributes);
  const Dims &x = operands[0].shape, &w = operands[1].shape;
  for (const Operand& operand : operands)
    if (!operand.absent && operand.dtype != DType::f32)
      throw Error(ErrorKind::dtype, "Linear takes float32 only, not " + std::string(dtype_name(operand.dtype)));
  if (x.empty() || w.size() != 2 || x.back() != w[0])
    throw Error(ErrorKind::shape, "Linear of " + to_string(x) + " by " + to_string(w));
  Dims result = x;
  result.back() = w[1];
  if (operands.size() > 2 && !operands[2].absent && operands[2].shape != Dims{w[1]})
    throw Error(ErrorKind::shape,
                "Linear with a bias of shape " + to_string(operands[2].shape) + " for " + std::to_string(w[1]) + " columns");
  if (operands.size() > 3 && !operands[3].absent && operands[3].shape != result)
    throw Error(ErrorKind::shape,
                "Linear with a residual of shape " + to_string(operands[3].shape) + " for a result of " + to_string(result));
  return {DType::f32, result};
}

std::unique_ptr<Step> make_linear(const StepRequest& request) {
  return std::make_unique<LinearStep>(request, Weights::plain, "packing");
}

namespace {

// With fewer rows than this the tile kernel splits its sums.
constexpr std::int64_t kFewRows = 4;

std::vector<std::int64_t> packed_parameters(const LinearShape& shape) {
  return shape.rows >= kFewRows || shape.rows == 0 ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{};
}
std::vector<std::int64_t> gemv_parameters(const LinearShape& shape) {
  return packed_parameters(shape).empty() ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{};
}

Work packed_work(const LinearShape& shape, std::int64_t) {
  Work work;
  const auto rows = static_cast<double>(shape.rows), depth = static_cast<double>(shape.depth);
  const auto weights = static_cast<double>(packed_linear_bytes(shape.depth, shape.columns, *shape.table));
  work.panel = 2 * rows * weights / kFloat;
  work.streamed = weights;
  work.moved = rows * (depth + static_cast<double>(shape.columns)) * kFloat;
  return work;
}

Tensor packed_pack(const LinearShape& shape, std::int64_t, const float* w) {
  Tensor made = Tensor::empty(
      DType::f32, {static_cast<std::int64_t>(packed_linear_bytes(shape.depth, shape.columns, *shape.table)) / kFloat});
  pack_linear(w, shape.columns, 1, shape.depth, shape.columns, *shape.table, made.data<float>());
  return made;
}

std::unique_ptr<Step> packed_make(const StepRequest& request, std::int64_t) {
  return std::make_unique<LinearStep>(request, Weights::packed, kLinearPacked.name);
}
std::unique_ptr<Step> gemv_make(const StepRequest& request, std::int64_t) {
  return std::make_unique<LinearStep>(request, Weights::packed, kLinearGemv.name);
}

std::vector<std::int64_t> pairs_parameters(const LinearShape& shape) {
  return bfloat16(*shape.table) != nullptr ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{};
}

Work pairs_work(const LinearShape& shape, std::int64_t) {
  Work work = packed_work(shape, 0);
  work.pairs = work.panel;
  work.panel = 0;
  work.streamed /= 2;
  work.moved +=
      static_cast<double>(shape.rows * shape.depth * kFloat);  // x once, and half of it again on its way through scratch
  return work;
}

// [pairs, columns, 2] in the order of pack_linear.
Tensor pairs_pack(const LinearShape& shape, std::int64_t, const float* w) {
  const std::int64_t depth = shape.depth, columns = shape.columns;
  const Table& table = *shape.table;
  const std::int64_t rows = (depth + 1) / 2;
  std::vector<float> pairs(static_cast<std::size_t>(rows * columns));  // by their bits
  for (std::int64_t k = 0; k < depth; k += 2)
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::uint32_t low = to_bfloat16(w[k * columns + j]), high = k + 1 < depth ? to_bfloat16(w[(k + 1) * columns + j]) : 0;
      pairs[static_cast<std::size_t>(k / 2 * columns + j)] = std::bit_cast<float>(low | high << 16);
    }
  const auto elements = static_cast<std::int64_t>(packed_linear_bytes(rows, columns, table)) / kFloat;
  Tensor packed = Tensor::empty(DType::f32, {elements});
  pack_linear(pairs.data(), columns, 1, rows, columns, table, reinterpret_cast<float*>(packed.raw()));
  return packed;
}

std::unique_ptr<Step> pairs_make(const StepRequest& request, std::int64_t) {
  return std::make_unique<LinearStep>(request, Weights::pairs, kLinearPairs.name);
}

}  // namespace

const LinearAlgorithm kLinearPacked{"packed", &packed_parameters, &packed_work, &packed_pack, &packed_make};
const LinearAlgorithm kLinearGemv{"gemv", &gemv_parameters, &packed_work, &packed_pack, &gemv_make};
const LinearAlgorithm kLinearPairs{"packed bf16", &pairs_parameters, &pairs_work, &pairs_pack, &pairs_make};

std::span<const LinearAlgorithm* const> linear_algorithms() noexcept {
  static constexpr std::array<const LinearAlgorithm*, 4> all{&kLinearPacked, &kLinearGemv, &kLinearStrassen, &kLinearPairs};
  return all;
}

}  // namespace walle
