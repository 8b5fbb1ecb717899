// Strassen's matrix product by constant weights, in Winograd's form: seven products of halves instead of eight, again for each of
// them as deep as the parameter says (§4.1). The sums of weights are made once, when they are packed; the sums of A's quarters
// come first in every run, and those of the products are made stretch by stretch while they are near.
//
// Against exact arithmetic, for a depth d and k0 = k / 2^d (Higham, Accuracy and Stability of Numerical Algorithms, 23.3):
// |error| <= 18^d * (k0^2 + 6 * k0) * eps * max |A| * max |W|. A bound by |A| |W| of each element does not hold for Strassen.
#include <algorithm>
#include <vector>

#include "atomic/products/packed_linear.h"

namespace walle {

namespace {

constexpr std::int64_t kDeepest = 3, kProducts = 7;
// A stretch of rows of an operand, and the columns of a product that are made at once, stay in the second-level cache.
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

// The leaves' weights in turn. Sums are made in float64 and rounded once.
void pack_level(const LinearShape& shape, std::int64_t level, const float* w, std::int64_t row, float*& to) {
  const std::int64_t depth = shape.depth, columns = shape.columns;
  if (level == 0) {
    pack_linear(w, row, 1, depth, columns, *shape.table, to);
    to += static_cast<std::int64_t>(packed_linear_bytes(depth, columns, *shape.table)) / kFloat;
    return;
  }
  const LinearShape half{shape.rows, depth / 2, columns / 2, shape.table};
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
  StrassenStep(const StepRequest& request, std::int64_t levels)
      : table_(request.table), sums_(request.table), activation_(request.attributes, request.table), levels_(levels) {
    const std::int64_t depth = request.inputs[0].shape.back(), columns = request.result.shape.back();
    const std::int64_t rows = element_count(request.result.shape) / columns;
    columns_ = columns;
    leaf_ = {rows >> levels, depth >> levels, columns >> levels, &table_};
    chunk_ = linear_chunk(leaf_.depth, table_);
    a_sums_.resize(static_cast<std::size_t>(levels));
    plan_sums(levels, {false, 0, depth}, rows, depth);
    for (std::int64_t level = 0; level < levels; ++level) {
      products_.push_back(scratch_floats_);
      scratch_floats_ += (leaf_.rows << level) * (leaf_.columns << level);
    }
    scratch_bytes_ = static_cast<std::size_t>(scratch_floats_ * kFloat);
    low_ = static_cast<float>(request.attributes.get_float("low", low_));
    high_ = static_cast<float>(request.attributes.get_float("high", high_));
    bias_ = request.inputs.size() > 2 && !request.inputs[2].absent;
    residual_ = request.inputs.size() > 3 && !request.inputs[3].absent;
    const auto binary = [&](BinaryOp op) {
      return table_.binary[static_cast<std::size_t>(op)][static_cast<std::size_t>(Compute::f32)];
    };
    if (low_ != -kInfinity) maximum_ = binary(BinaryOp::Maximum);
    if (high_ != kInfinity) minimum_ = binary(BinaryOp::Minimum);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    Unit whole;
    whole.a = reinterpret_cast<const float*>(inputs[0]);
    whole.w = reinterpret_cast<const float*>(inputs[1]);
    whole.scratch = reinterpret_cast<float*>(scratch);
    for (const auto& level : a_sums_) sum_quarters(team, level, whole);
    const auto* bias = bias_ ? reinterpret_cast<const float*>(inputs[2]) : nullptr;
    const auto* residual = residual_ ? reinterpret_cast<const float*>(inputs[3]) : nullptr;
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
      multiply(unit, levels_, 0, result, bias);
      finish(unit, result, residual, activation_.has_slope() ? reinterpret_cast<const float*>(inputs[kSlope]) : nullptr);
    });
  }
  std::string_view algorithm() const noexcept override { return kLinearStrassen.name; }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  // Where an operand of A's lies, in A itself or among the sums.
  struct Operand {
    bool summed;
    std::int64_t offset, row;
  };
  // S1 to S4 one behind the other, each of `rows` x `depth`.
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

  void finish(const Unit& unit, View to, const float* residual, const float* slope) const noexcept {
    if (residual == nullptr && maximum_ == nullptr && minimum_ == nullptr && !activation_.any()) return;
    each_row(unit, levels_, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
      float* at = to.at + row * to.row + column;
      const float* more = residual == nullptr ? nullptr : residual + row * to.row + column;
      if (more != nullptr && !activation_.residual_last()) sums_.add(at, 1, more, 1, at, count);
      if (maximum_ != nullptr) maximum_(at, 1, &low_, 0, at, count);
      if (minimum_ != nullptr) minimum_(at, 1, &high_, 0, at, count);
      if (activation_.any()) activation_.run(at, 1, count, count, slope == nullptr ? nullptr : slope + column, more);
    });
  }

  const Table& table_;
  Quarters sums_;
  Activation activation_;
  std::int64_t levels_, columns_ = 0, chunk_ = 0, scratch_floats_ = 0;
  LinearShape leaf_;
  std::vector<std::vector<ASums>> a_sums_;  // by level, the outermost first
  std::vector<Operand> operands_;           // by leaf
  std::vector<std::int64_t> products_;      // by level, the innermost first: where a product lies until it is added
  float low_ = -kInfinity, high_ = kInfinity;
  bool bias_ = false, residual_ = false;
  BinaryFn maximum_ = nullptr, minimum_ = nullptr;
};

// Halves of halves without remainder, and whole blocks of columns.
std::vector<std::int64_t> parameters(const LinearShape& shape) {
  std::vector<std::int64_t> depths;
  if (shape.rows * shape.depth * shape.columns == 0) return depths;
  for (std::int64_t d = 1; d <= kDeepest; ++d) {
    const std::int64_t parts = std::int64_t{1} << d;
    if (shape.rows % parts != 0 || shape.depth % parts != 0 || shape.columns % (parts * shape.table->pack) != 0) break;
    depths.push_back(d);
  }
  return depths;
}

Work work(const LinearShape& shape, std::int64_t levels) {
  const double rows = static_cast<double>(shape.rows), depth = static_cast<double>(shape.depth),
               columns = static_cast<double>(shape.columns);
  const auto part = [&](std::int64_t level) {  // of all sums of one level, beside one quarter of a matrix at the outermost
    return static_cast<double>(power(kProducts, level)) / static_cast<double>(power(4, level + 1));
  };
  Work work;
  work.panel = 2 * rows * depth * columns * static_cast<double>(power(kProducts, levels)) / static_cast<double>(power(8, levels));
  work.streamed =
      depth * columns * kFloat * static_cast<double>(power(kProducts, levels)) / static_cast<double>(power(4, levels));
  work.moved = rows * (depth + columns) * kFloat;
  // Quarters are read and written whole, after all of the others: no cache near the core holds them until then.
  for (std::int64_t level = 0; level < levels; ++level) {
    work.far += 12 * rows * depth * kFloat * part(level);
    // Of the products: two sums and one store beside what the tile kernel does; above the innermost level, five sums more.
    work.far += (level + 1 == levels ? 7 : 22) * rows * columns * kFloat * part(level);
  }
  return work;
}

Tensor pack(const LinearShape& shape, std::int64_t levels, const float* w) {
  Tensor packed = Tensor::empty(DType::f32, {power(kProducts, levels) * (shape.depth >> levels) * (shape.columns >> levels)});
  float* to = packed.data<float>();
  pack_level(shape, levels, w, shape.columns, to);
  return packed;
}

std::unique_ptr<Step> make(const StepRequest& request, std::int64_t levels) {
  return std::make_unique<StrassenStep>(request, levels);
}

}  // namespace

const LinearAlgorithm kLinearStrassen{"strassen", &parameters, &work, &pack, &make, true};

}  // namespace walle
