// Products of a matrix whose columns are several values side by side, as Concat joins them: no copy of all of them is made.
#include <algorithm>

#include "atomic/product_pieces.h"
#include "atomic/products/matmul.h"

namespace walle {

namespace {

class JoinedProductStep final : public SharedStep {
 public:
  JoinedProductStep(JoinedProduct product, const Table& table) : product_(std::move(product)), gemm_(table.gemm[0]) {
    const std::int64_t depth = product_.joined.is_second ? std::min(product_.k, kDepth) : product_.k;
    const std::int64_t fitting = kMultiplications / std::max<std::int64_t>(product_.n * depth, 1);
    rows_ = std::clamp<std::int64_t>(fitting / RowPieces::kBlock, 1, kMostBlocks) * RowPieces::kBlock;
    scratch_bytes_ = (gemm_.scratch_bytes(product_.m, product_.n, product_.k) + kLine - 1) / kLine * kLine;
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t pieces = std::clamp<std::int64_t>(product_.m / RowPieces::kLeast, 1, team.size());
    const StopPoll start;
    team.each(
        pieces,
        [&](std::int64_t i, int member) {
          const std::int64_t first = RowPieces::begin(product_.m, pieces, i), last = RowPieces::begin(product_.m, pieces, i + 1);
          StopPoll poll = start;
          for (std::int64_t row = first; row < last; row += rows_)
            if (!run_rows(inputs, output, scratch + static_cast<std::size_t>(member) * scratch_bytes_, row,
                          std::min(rows_, last - row), poll))
              return;
        },
        2.0 * static_cast<double>(product_.m * product_.n) * static_cast<double>(product_.k));
  }
  std::string_view algorithm() const noexcept override { return "joined"; }
  bool scratch_each() const noexcept override { return true; }

 private:
  static constexpr std::size_t kLine = Storage::kAlignment;  // every thread's part is aligned
  static constexpr std::int64_t kMultiplications = 1 << 28;  // those of some ten milliseconds, after which a run may stop
  static constexpr std::int64_t kMostBlocks = 12, kDepth = 1 << 12, kMultiplicationsAtOnce = 8;

  // False where the run is to stop.
  bool run_rows(std::byte* const* inputs, std::byte* output, std::byte* scratch, std::int64_t row, std::int64_t rows,
                StopPoll& poll) const noexcept {
    const JoinedOperand& joined = product_.joined;
    const auto at = [&](std::size_t input) { return reinterpret_cast<const float*>(inputs[input]); };
    const std::size_t count = joined.parts.size();
    const float* other = at(count);
    GemmPart parts[JoinedOperand::kMostParts];
    GemmArgs args;
    args.m = rows;
    args.n = product_.n;
    args.out = reinterpret_cast<float*>(output) + row * product_.n;
    args.out_row = product_.n;
    args.scratch = scratch;
    args.parts = parts;
    args.part_count = static_cast<std::int64_t>(count);
    args.parts_of_b = joined.is_second;
    // The columns of A are the depth: A that is joined is not cut.
    const std::int64_t most = joined.is_second ? kDepth : std::max<std::int64_t>(product_.k, 1);
    for (std::int64_t depth = 0; depth < product_.k; depth += most) {
      args.k = std::min(most, product_.k - depth);
      if (!poll.proceed(rows * product_.n * args.k / kMultiplicationsAtOnce)) return false;
      const std::int64_t skipped = joined.is_second ? depth : row;
      for (std::size_t i = 0; i < count; ++i) {
        const JoinedOperand::Part& part = joined.parts[i];
        parts[i] = {at(i) + part.offset + skipped * part.row, part.row, part.columns};
      }
      if (joined.is_second) {
        args.a = other + row * joined.row + depth * joined.column;
        args.a_row = joined.row;
        args.a_col = joined.column;
      } else {
        args.b = other;
        args.b_row = joined.row;
        args.b_col = joined.column;
      }
      args.accumulate = depth > 0;
      if (product_.has_bias) args.finish.bias = at(count + 1);
      if (depth + args.k == product_.k) args.finish.low = product_.low, args.finish.high = product_.high;
      gemm_.run(args);
    }
    return true;
  }

  JoinedProduct product_;
  Gemm gemm_;
  std::int64_t rows_;
};

}  // namespace

std::unique_ptr<HostStep> make_joined_product_step(JoinedProduct product, const Table& table) {
  return std::make_unique<JoinedProductStep>(std::move(product), table);
}

}  // namespace walle
