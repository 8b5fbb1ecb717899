// Strassen's matrix product by constant weights, in Winograd's form: seven products of halves instead of eight, applied
// recursively to the depth that the parameter says (§4.1). The sums of weights are computed once, when they are packed; the sums
// of A's quarters are computed first in every run, those of the products stretch by stretch while they are in the cache.
//
// Against exact arithmetic, for a depth d and k0 = k / 2^d (Higham, Accuracy and Stability of Numerical Algorithms, 23.3):
// |error| <= 18^d * (k0^2 + 6 * k0) * eps * max |A| * max |W|. A bound by |A| |W| of each element does not hold for Strassen.
#include <algorithm>
#include <vector>

#include "atomic/products/linear.h"

namespace walle {

namespace {

constexpr std::string_view kName = "strassen";
constexpr std::int64_t kDeepest = 3, kProducts = 7;
// A stretch of rows of an operand, and the columns of a product that are computed at once, stay in the second-level cache.
constexpr std::int64_t kStrassenRowsBytes = 256 << 10, kPairsAtOnce = 6;

constexpr std::int64_t power(std::int64_t base, std::int64_t exponent) noexcept {
  return exponent == 0 ? 1 : base * power(base, exponent - 1);
}

// The products of one level, in the order in which leaves are counted; signs of the weights are in their sums.
enum Product : std::int64_t { kP1, kP2, kP3, kP4, kP5, kP6, kP7 };

// Sums of quarters: `count` elements of each.
struct Quarters {
  BinaryFn add, sub;

  explicit Quarters(const Table& table)
      : add(table.binary[static_cast<std::size_t>(BinaryOp::Add)][kF32]),
        sub(table.binary[static_cast<std::size_t>(BinaryOp::Sub)][kF32]) {}

 private:
  static constexpr std::size_t kF32 = static_cast<std::size_t>(Compute::f32);
};

// Packs the leaves' weights in turn. Sums are computed in float64 and rounded once.
void pack_level(const LinearProblem& problem, std::int64_t level, const float* w, std::int64_t row, float*& to) {
  const std::int64_t depth = problem.depth, columns = problem.columns;
  if (level == 0) {
    pack_linear(w, row, 1, depth, columns, *problem.table, to);
    to += static_cast<std::int64_t>(packed_linear_bytes(depth, columns, *problem.table)) / kFloat;
    return;
  }
  const LinearProblem half{problem.rows, depth / 2, columns / 2, problem.table};
  const float *w11 = w, *w12 = w + half.columns, *w21 = w + half.depth * row, *w22 = w21 + half.columns;
  std::vector<float> sums(static_cast<std::size_t>(half.depth * half.columns));
  const auto pack_sum = [&](double s11, double s12, double s21, double s22) {
    for (std::int64_t k = 0; k < half.depth; ++k)
      for (std::int64_t j = 0; j < half.columns; ++j) {
        const std::int64_t at = k * row + j;
        sums[static_cast<std::size_t>(k * half.columns + j)] =
            static_cast<float>(s11 * static_cast<double>(w11[at]) + s12 * static_cast<double>(w12[at]) +
                               s21 * static_cast<double>(w21[at]) + s22 * static_cast<double>(w22[at]));
      }
    pack_level(half, level - 1, sums.data(), half.columns, to);
  };
  pack_level(half, level - 1, w11, row, to);
  pack_level(half, level - 1, w21, row, to);
  pack_level(half, level - 1, w22, row, to);
  pack_sum(-1, 1, 1, -1);  // -(T4), so that it is added
  pack_sum(-1, 1, 0, 0);   // T1
  pack_sum(1, -1, 0, 1);   // T2
  pack_sum(0, -1, 0, 1);   // T3
}

class StrassenStep final : public SharedStep {
 public:
  StrassenStep(const LinearProblem& problem, std::int64_t levels, const EpilogueKernel& epilogue)
      : table_(*problem.table), sums_(table_), epilogue_(epilogue), levels_(levels), columns_(problem.columns) {
    const std::int64_t rows = problem.rows, depth = problem.depth, columns = problem.columns;
    leaf_ = {rows >> levels, depth >> levels, columns >> levels, &table_};
    chunk_ = linear_chunk(leaf_.depth, table_);
    a_sums_.resize(static_cast<std::size_t>(levels));
    plan_sums(levels, {false, 0, depth}, rows, depth);
    for (std::int64_t level = 0; level < levels; ++level) {
      products_.push_back(scratch_floats_);
      scratch_floats_ += (leaf_.rows << level) * (leaf_.columns << level);
    }
    scratch_bytes_ = static_cast<std::size_t>(scratch_floats_ * kFloat);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    Unit whole;
    whole.a = reinterpret_cast<const float*>(inputs[0]);
    whole.w = reinterpret_cast<const float*>(inputs[1]);
    whole.scratch = reinterpret_cast<float*>(scratch);
    for (const auto& level : a_sums_) sum_quarters(team, level, whole);
    const EpilogueOperands operands = epilogue_.operands(inputs);
    const View result{reinterpret_cast<float*>(output), columns_};
    const std::int64_t pairs = (leaf_.columns + 2 * table_.pack - 1) / (2 * table_.pack);
    const std::int64_t stripes = std::max<std::int64_t>((pairs + kPairsAtOnce - 1) / kPairsAtOnce, std::min(pairs, parts(team)));
    const std::int64_t fitting = std::max<std::int64_t>(1, kStrassenRowsBytes / (chunk_ * kFloat));
    const std::int64_t stretches = (leaf_.rows + fitting - 1) / fitting;
    team.each(stripes * stretches, [&](std::int64_t i, int) {
      Unit unit = whole;
      const std::int64_t stripe = i % stripes, stretch = i / stripes;
      unit.first_pair = pairs * stripe / stripes;
      unit.last_pair = pairs * (stripe + 1) / stripes;
      unit.first_row = leaf_.rows * stretch / stretches;
      unit.rows = leaf_.rows * (stretch + 1) / stretches - unit.first_row;
      multiply(unit, levels_, 0, result, operands.bias);
      finish(unit, result, operands);
    });
  }
  std::string_view algorithm() const noexcept override { return kName; }

 private:
  // An operand of A: part of A itself, or one of the sums.
  struct Operand {
    bool summed;
    std::int64_t offset, row;
  };
  // S1 to S4 one after the other, each of `rows` x `depth`.
  struct ASums {
    Operand from;
    std::int64_t rows, depth, to;
  };
  // A product in the result or in scratch. Halves of any level lie a power of two of the leaf's size apart.
  struct View {
    float* at;
    std::int64_t row;
  };
  // The part of every leaf's product that is computed at once.
  struct Unit {
    const float *a, *w;
    float* scratch;
    std::int64_t first_row = 0, rows = 0, first_pair = 0, last_pair = 0;
  };

  static std::int64_t parts(const Team& team) noexcept { return team.size() > 1 ? 4 * team.size() : 1; }

  void plan_sums(std::int64_t level, Operand a, std::int64_t rows, std::int64_t depth) {
    if (level == 0) {
      operands_.push_back(a);
      return;
    }
    rows /= 2;
    depth /= 2;
    const ASums made{a, rows, depth, scratch_floats_};
    scratch_floats_ += 4 * rows * depth;
    a_sums_[static_cast<std::size_t>(levels_ - level)].push_back(made);
    const auto quarter = [&](std::int64_t i, std::int64_t j) {
      return Operand{a.summed, a.offset + i * rows * a.row + j * depth, a.row};
    };
    const auto sum = [&](std::int64_t s) { return Operand{true, made.to + (s - 1) * rows * depth, depth}; };
    for (const Operand& operand : {quarter(0, 0), quarter(0, 1), sum(4), quarter(1, 1), sum(1), sum(2), sum(3)})
      plan_sums(level - 1, operand, rows, depth);
  }

  void sum_quarters(Team& team, const std::vector<ASums>& level, const Unit& whole) const noexcept {
    constexpr std::int64_t kRows = 16;
    const std::int64_t stretches = (level.front().rows + kRows - 1) / kRows;
    team.each(static_cast<std::int64_t>(level.size()) * stretches, [&](std::int64_t i, int) {
      const ASums& made = level[static_cast<std::size_t>(i / stretches)];
      const std::int64_t first = i % stretches * kRows, last = std::min(made.rows, first + kRows), size = made.rows * made.depth;
      for (std::int64_t row = first; row < last; ++row) {
        const float* a11 = (made.from.summed ? whole.scratch : whole.a) + made.from.offset + row * made.from.row;
        const float *a12 = a11 + made.depth, *a21 = a11 + made.rows * made.from.row, *a22 = a21 + made.depth;
        float *s1 = whole.scratch + made.to + row * made.depth, *s2 = s1 + size, *s3 = s2 + size, *s4 = s3 + size;
        sums_.add(a21, 1, a22, 1, s1, made.depth);
        sums_.sub(s1, 1, a11, 1, s2, made.depth);
        sums_.sub(a11, 1, a21, 1, s3, made.depth);
        sums_.sub(a12, 1, s2, 1, s4, made.depth);
      }
    });
  }

  View quarter(View whole, std::int64_t level, std::int64_t i, std::int64_t j) const noexcept {
    return {whole.at + (i * leaf_.rows * whole.row + j * leaf_.columns) * (std::int64_t{1} << level), whole.row};
  }

  // to = product of this level and its place among the leaves, + bias.
  void multiply(const Unit& unit, std::int64_t level, std::int64_t leaf, View to, const float* bias) const noexcept {
    if (level == 0) return multiply_leaf(unit, leaf, to, nullptr, bias);
    --level;
    const View c11 = quarter(to, level, 0, 0), c12 = quarter(to, level, 0, 1), c21 = quarter(to, level, 1, 0),
               c22 = quarter(to, level, 1, 1);
    const View product{unit.scratch + products_[static_cast<std::size_t>(level)], leaf_.columns << level};
    const std::int64_t step = power(kProducts, level);
    const float* right = bias == nullptr ? nullptr : bias + (leaf_.columns << level);
    const auto place = [&](Product p) { return leaf + p * step; };
    multiply(unit, level, place(kP1), c12, nullptr);
    add_product(unit, level, place(kP2), c11, c12, bias);
    add_product(unit, level, place(kP6), c12, c12, nullptr);
    add_product(unit, level, place(kP7), c22, c12, nullptr);
    add_product(unit, level, place(kP4), c21, c22, bias);
    multiply(unit, level, place(kP5), product, right);
    add(unit, level, c12, product);
    add(unit, level, c22, product);
    add_product(unit, level, place(kP3), c12, c12, nullptr);
  }

  // to = product + `more`, + bias; `more` may be `to`.
  void add_product(const Unit& unit, std::int64_t level, std::int64_t leaf, View to, View more,
                   const float* bias) const noexcept {
    if (level == 0) return multiply_leaf(unit, leaf, to, more.at, bias);
    const View product{unit.scratch + products_[static_cast<std::size_t>(level)], leaf_.columns << level};
    multiply(unit, level, leaf, to.at == more.at ? product : to, bias);
    add(unit, level, to, to.at == more.at ? product : more);
  }

  void multiply_leaf(const Unit& unit, std::int64_t leaf, View to, const float* more, const float* bias) const noexcept {
    const std::int64_t pack = table_.pack, blocks = (leaf_.columns + pack - 1) / pack;
    const Operand& operand = operands_[static_cast<std::size_t>(leaf)];
    const float* a = (operand.summed ? unit.scratch : unit.a) + operand.offset + unit.first_row * operand.row;
    const float* w = unit.w + leaf * leaf_.depth * leaf_.columns;
    for (std::int64_t k = 0; k < leaf_.depth; k += chunk_) {
      const Segment segment{k, std::min(chunk_, leaf_.depth - k)};
      for (std::int64_t pair = unit.first_pair; pair < unit.last_pair; ++pair) {
        const std::int64_t block = 2 * pair, at = unit.first_row * to.row + block * pack;
        PanelArgs panel;
        panel.rows = unit.rows;
        panel.a = a;
        panel.a_step = operand.row;
        panel.segments = &segment;
        panel.segment_count = 1;
        panel.blocks = std::min<std::int64_t>(2, blocks - block);
        panel.width = pack;
        panel.w = w + k * leaf_.columns + segment.length * block * pack;
        panel.out = to.at + at;
        panel.out_step = to.row;
        panel.out_block = pack;
        panel.accumulate = k > 0;
        if (more != nullptr) panel.finish.residual = more + at;
        if (bias != nullptr) panel.finish.bias = bias + block * pack;
        table_.panel(panel);
      }
    }
  }

  // work(offset of a row's first element in a view of this row length, count) for each row of each leaf of a product.
  template <class F>
  void each_row(const Unit& unit, std::int64_t level, F&& work) const noexcept {
    const std::int64_t first = unit.first_pair * 2 * table_.pack,
                       last = std::min(unit.last_pair * 2 * table_.pack, leaf_.columns);
    for (std::int64_t i = 0; i < std::int64_t{1} << level; ++i)
      for (std::int64_t row = 0; row < unit.rows; ++row)
        for (std::int64_t j = 0; j < std::int64_t{1} << level; ++j)
          work(i * leaf_.rows + unit.first_row + row, j * leaf_.columns + first, last - first);
  }

  void add(const Unit& unit, std::int64_t level, View to, View from) const noexcept {
    each_row(unit, level, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
      float* at = to.at + row * to.row + column;
      sums_.add(at, 1, from.at + row * from.row + column, 1, at, count);
    });
  }

  void finish(const Unit& unit, View to, const EpilogueOperands& operands) const noexcept {
    if (epilogue_.only_bias()) return;
    each_row(unit, levels_, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
      const std::int64_t place = row * to.row + column;
      epilogue_.run_row(to.at + place, count, operands.at(column, place));
    });
  }

  const Table& table_;
  Quarters sums_;
  EpilogueKernel epilogue_;
  std::int64_t levels_, columns_ = 0, chunk_ = 0, scratch_floats_ = 0;
  LinearProblem leaf_;
  std::vector<std::vector<ASums>> a_sums_;  // by level, the outermost first
  std::vector<Operand> operands_;           // by leaf
  std::vector<std::int64_t> products_;      // by level, the innermost first: where a product lies until it is added
};

// Depths at which halves have no remainder, and columns fill whole blocks.
std::vector<std::int64_t> strassen_parameters(const LinearProblem& problem) {
  std::vector<std::int64_t> depths;
  if (!problem.constant_weights || problem.rows * problem.depth * problem.columns == 0) return depths;
  for (std::int64_t d = 1; d <= kDeepest; ++d) {
    const std::int64_t parts = std::int64_t{1} << d;
    if (problem.rows % parts != 0 || problem.depth % parts != 0 || problem.columns % (parts * problem.table->pack) != 0) break;
    depths.push_back(d);
  }
  return depths;
}

Work strassen_work(const LinearProblem& problem, std::int64_t levels) {
  const double rows = static_cast<double>(problem.rows), depth = static_cast<double>(problem.depth),
               columns = static_cast<double>(problem.columns);
  const auto part = [&](std::int64_t level) {  // share of all sums of one level, beside one quarter of a matrix at the outermost
    return static_cast<double>(power(kProducts, level)) / static_cast<double>(power(4, level + 1));
  };
  Work work;
  work.panel = 2 * rows * depth * columns * static_cast<double>(power(kProducts, levels)) / static_cast<double>(power(8, levels));
  work.streamed =
      depth * columns * kFloat * static_cast<double>(power(kProducts, levels)) / static_cast<double>(power(4, levels));
  work.move(rows * (depth + columns) * kFloat);
  // Each quarter is read and written whole, one after the other: no cache near the core holds one until its next use.
  for (std::int64_t level = 0; level < levels; ++level) {
    work.far += 12 * rows * depth * kFloat * part(level);
    // Of the products: two sums and one store beside what the tile kernel does; above the innermost level, five sums more.
    work.far += (level + 1 == levels ? 7 : 22) * rows * columns * kFloat * part(level);
  }
  return work;
}

Tensor strassen_pack(const LinearProblem& problem, std::int64_t levels, const float* w) {
  Tensor packed = Tensor::empty(DType::f32, {power(kProducts, levels) * (problem.depth >> levels) * (problem.columns >> levels)});
  float* to = packed.data<float>();
  pack_level(problem, levels, w, problem.columns, to);
  return packed;
}

std::unique_ptr<HostStep> strassen_make(const LinearProblem& problem, std::int64_t levels, const EpilogueKernel& epilogue) {
  return std::make_unique<StrassenStep>(problem, levels, epilogue);
}

}  // namespace

// Taken by name only: an element's error is bounded by the whole of x, not by its own row.
extern const LinearAlgorithm kLinearStrassen;
const LinearAlgorithm kLinearStrassen{kName, &strassen_parameters, &strassen_work, &strassen_pack, &strassen_make, true};

}  // namespace walle
