// Linear as an atomic operator: x [..., k] times w [k, n] and an epilogue (bias [n], residual [..., n]; see atomic/epilogue.h),
// of float32. Products by a constant matrix become Linear (plan/fuse.cpp).
#include "atomic/products/linear.h"

#include <algorithm>
#include <array>

#include "core/bfloat16.h"
#include "core/loop_nest.h"
#include "kernels/bfloat16.h"

namespace walle {

namespace {

// A chunk's panel of weights, and the rows of A that it multiplies, stay in the second-level cache.
constexpr std::int64_t kPanelBytes = 128 << 10, kRowsBytes = 512 << 10;

}  // namespace

std::int64_t linear_chunk(std::int64_t depth, const Table& table) {
  const std::int64_t most = kPanelBytes / (2 * table.pack * kFloat);
  const std::int64_t chunks = (depth + most - 1) / std::max<std::int64_t>(1, most);
  return chunks == 0 ? 1 : (depth + chunks - 1) / chunks;
}

// [chunk][pair of blocks][k][columns of the pair], the columns after the last one zero.
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

void run_linear(Team& team, const LinearArgs& args, const EpilogueKernel& epilogue, const Table& table) noexcept {
  const std::int64_t pack = table.pack, blocks = (args.columns + pack - 1) / pack, chunk = linear_chunk(args.depth, table);
  const PanelFn kernel = args.pairs ? bfloat16(table)->panel : table.panel;
  const std::int64_t panels = (blocks + 1) / 2;
  // As many rows at a time as stay in the cache for the next panel, evenly; fewer where a team would have too few pieces.
  std::int64_t at_once = std::max<std::int64_t>(1, kRowsBytes / (std::max<std::int64_t>(1, chunk) * kFloat));
  if (team.size() > 1 && panels < 4 * team.size()) at_once = std::min<std::int64_t>(at_once, 64);
  const std::int64_t stretches = (args.rows + at_once - 1) / at_once;
  if (stretches > 0) at_once = (args.rows + stretches - 1) / stretches;
  for (std::int64_t k = 0; k < args.depth || k == 0; k += chunk) {  // once even without depth: bias and residual alone
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
          const EpilogueOperands operands = args.operands.at(block * pack, row * args.out_row + block * pack);
          const bool last = k + chunk >= args.depth;
          panel.finish = epilogue.finish(operands, last);
          kernel(panel);
          if (last && epilogue.has_rest())
            epilogue.run_rest(panel.out, panel.rows, args.out_row, (panel.blocks - 1) * pack + panel.width, operands);
        },
        2.0 * static_cast<double>(args.rows * segment.length) * static_cast<double>(args.columns));
  }
}

namespace {

// Weights that the step packs in every run, or weights that were packed once.
enum class Weights { plain, packed, pairs };

class LinearStep final : public SharedStep {
 public:
  LinearStep(const LinearProblem& problem, Weights weights, std::string_view algorithm, const EpilogueKernel& epilogue)
      : table_(*problem.table), weights_(weights), epilogue_(epilogue), algorithm_(algorithm) {
    args_.rows = problem.rows;
    args_.depth = problem.depth;
    args_.columns = problem.columns;
    args_.a_row = args_.depth;
    args_.out_row = args_.columns;
    if (weights_ == Weights::plain) scratch_bytes_ = packed_linear_bytes(args_.depth, args_.columns, table_);
    if (weights_ == Weights::pairs) scratch_bytes_ = static_cast<std::size_t>(args_.rows * ((args_.depth + 1) / 2) * kFloat);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    LinearArgs args = args_;
    args.a = reinterpret_cast<const float*>(inputs[0]);
    args.w = reinterpret_cast<const float*>(weights_ == Weights::plain ? scratch : inputs[1]);
    args.out = reinterpret_cast<float*>(output);
    args.operands = epilogue_.operands(inputs);
    if (weights_ == Weights::pairs) to_pairs(team, args, reinterpret_cast<float*>(scratch));
    if (weights_ == Weights::plain)
      pack_linear(reinterpret_cast<const float*>(inputs[1]), args.columns, 1, args.depth, args.columns, table_,
                  reinterpret_cast<float*>(scratch));
    run_linear(team, args, epilogue_, table_);
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
  EpilogueKernel epilogue_;
  std::string_view algorithm_;
  LinearArgs args_;
};

}  // namespace

TensorType infer_linear(std::span<const Operand> operands, const Attributes& attributes) {
  read_epilogue(attributes, false, false);  // throws where it is wrong
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

LinearProblem linear_problem(const Dims& result, const Dims& w, const Table& table, bool constant_weights) {
  return {w[1] == 0 ? 0 : element_count(result) / w[1], w[0], w[1], &table, constant_weights};
}

std::unique_ptr<HostStep> make_linear(const StepRequest& request) {
  const LinearProblem problem = linear_problem(request.result.shape, request.inputs[1].shape, request.table, false);
  const LinearChoice best = weigh(linear_algorithms(), problem, rates(request.table)).front();
  return best.algorithm->make(problem, best.parameter, EpilogueKernel(request.epilogue, request.table));
}

namespace {

// With fewer rows than this the tile kernel splits its sums.
constexpr std::int64_t kFewRows = 4;

std::vector<std::int64_t> packed_parameters(const LinearProblem& problem) {
  return single_parameter(problem.constant_weights && (problem.rows >= kFewRows || problem.rows == 0));
}
std::vector<std::int64_t> gemv_parameters(const LinearProblem& problem) {
  return single_parameter(problem.constant_weights && problem.rows > 0 && problem.rows < kFewRows);
}
std::vector<std::int64_t> pairs_parameters(const LinearProblem& problem) {
  return single_parameter(problem.constant_weights && bfloat16(*problem.table) != nullptr);
}
std::vector<std::int64_t> packing_parameters(const LinearProblem& problem) { return single_parameter(!problem.constant_weights); }

Work packed_work(const LinearProblem& problem, std::int64_t) {
  Work work;
  const auto rows = static_cast<double>(problem.rows), depth = static_cast<double>(problem.depth);
  const auto weights = static_cast<double>(packed_linear_bytes(problem.depth, problem.columns, *problem.table));
  work.panel = 2 * rows * weights / kFloat;
  work.streamed = weights;
  work.move(rows * (depth + static_cast<double>(problem.columns)) * kFloat);
  return work;
}

Tensor packed_pack(const LinearProblem& problem, std::int64_t, const float* w) {
  Tensor made = Tensor::empty(
      DType::f32, {static_cast<std::int64_t>(packed_linear_bytes(problem.depth, problem.columns, *problem.table)) / kFloat});
  pack_linear(w, problem.columns, 1, problem.depth, problem.columns, *problem.table, made.data<float>());
  return made;
}

// Weights are read and written once more.
Work packing_work(const LinearProblem& problem, std::int64_t) {
  Work work = packed_work(problem, 0);
  work.move(2 * work.streamed);
  return work;
}

Work pairs_work(const LinearProblem& problem, std::int64_t) {
  Work work = packed_work(problem, 0);
  work.pairs = work.panel;
  work.panel = 0;
  work.streamed /= 2;
  work.moved +=
      static_cast<double>(problem.rows * problem.depth * kFloat);  // x once, and half of it again on its way through scratch
  return work;
}

// [pairs, columns, 2] in the order of pack_linear.
Tensor pairs_pack(const LinearProblem& problem, std::int64_t, const float* w) {
  const std::int64_t depth = problem.depth, columns = problem.columns;
  const Table& table = *problem.table;
  const std::int64_t rows = (depth + 1) / 2;
  std::vector<float> pairs(static_cast<std::size_t>(rows * columns));  // bfloat16 pairs, stored as floats by their bits
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

// A name's storage is static: the algorithms below.
template <Weights kWeights, const LinearAlgorithm& kAlgorithm>
std::unique_ptr<HostStep> make_as(const LinearProblem& problem, std::int64_t, const EpilogueKernel& epilogue) {
  return std::make_unique<LinearStep>(problem, kWeights, kAlgorithm.name, epilogue);
}

extern const LinearAlgorithm kPacked, kGemv, kPairs, kPacking;
const LinearAlgorithm kPacked{"packed", &packed_parameters, &packed_work, &packed_pack, &make_as<Weights::packed, kPacked>};
// For few rows, by more sums than the tile has elements.
const LinearAlgorithm kGemv{"gemv", &gemv_parameters, &packed_work, &packed_pack, &make_as<Weights::packed, kGemv>};
// x and weights rounded to bfloat16, where the instruction set has it.
const LinearAlgorithm kPairs{"packed bf16", &pairs_parameters, &pairs_work, &pairs_pack, &make_as<Weights::pairs, kPairs>};
// Computed weights are packed in every run.
const LinearAlgorithm kPacking{"packing", &packing_parameters, &packing_work, nullptr, &make_as<Weights::plain, kPacking>};

}  // namespace

extern const LinearAlgorithm kLinearStrassen;  // strassen.cpp

Algorithms<LinearProblem> linear_algorithms() noexcept {
  static constexpr std::array<const LinearAlgorithm*, 5> all{&kPacked, &kGemv, &kLinearStrassen, &kPairs, &kPacking};
  return all;
}

}  // namespace walle
