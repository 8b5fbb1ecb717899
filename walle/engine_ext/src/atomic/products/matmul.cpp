#include "atomic/products/matmul.h"

#include <algorithm>

#include "atomic/product_pieces.h"
#include "core/loop_nest.h"

namespace walle {

namespace {

// (..., m, k) @ (..., k, n) with broadcast batches; vectors count as one row or one column.
class MatMulStep final : public SharedStep {
 public:
  MatMulStep(std::span<const Layout> inputs, const TensorType& result, const Table& table, const Epilogue& epilogue)
      : has_bias_(epilogue.bias) {
    args_.finish.low = epilogue.low;
    args_.finish.high = epilogue.high;
    Layout a = inputs[0], b = inputs[1];
    Dims shape = result.shape;
    if (a.shape.size() == 1) {
      a.shape.insert(a.shape.begin(), 1);
      a.strides.insert(a.strides.begin(), 0);
      shape.insert(shape.end() - (b.shape.size() > 1 ? 1 : 0), 1);
    }
    if (b.shape.size() == 1) {
      b.shape.push_back(1);
      b.strides.push_back(0);
      shape.push_back(1);
    }
    const std::size_t item = item_size(result.dtype);
    item_ = static_cast<std::int64_t>(item);
    const auto last_two = [](const Dims& dims) { return dims.cend() - 2; };
    args_.m = last_two(a.shape)[0];
    args_.k = last_two(a.shape)[1];
    args_.n = last_two(b.shape)[1];
    args_.a_row = last_two(a.strides)[0];
    args_.a_col = last_two(a.strides)[1];
    args_.b_row = last_two(b.strides)[0];
    args_.b_col = last_two(b.strides)[1];
    args_.out_row = args_.n;
    const Dims batch(shape.cbegin(), last_two(shape));
    const auto batch_strides = [&](const Layout& x) {
      return broadcast_strides(Dims(x.shape.cbegin(), last_two(x.shape)), Dims(x.strides.cbegin(), last_two(x.strides)), batch);
    };
    Dims out_strides = contiguous_strides(shape);
    out_strides.resize(batch.size());
    batch_ = LoopNest<3>::make(batch, {batch_strides(a), batch_strides(b), out_strides}, {item, item, item});
    fold_batch(item);
    if (args_.n == 1 && args_.m > 1) {  // a column has the same numbers as a row of the transposed product
      std::swap(args_.m, args_.n);
      std::swap(args_.a_row, args_.b_col);
      std::swap(args_.a_col, args_.b_row);
      args_.out_row = args_.n;
      swapped_ = true;
    }
    gemm_ = table.gemm[static_cast<std::size_t>(compute_index(result.dtype))];
    constexpr std::size_t kLine = Storage::kAlignment;  // every thread's part is aligned
    scratch_bytes_ = (gemm_.scratch_bytes(args_.m, args_.n, args_.k) + kLine - 1) / kLine * kLine;
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t weight = args_.m * args_.n * args_.k;
    if (batch_.count() == 1 && team.size() > 1 && args_.m > 1) return run_rows(team, inputs, output, scratch);
    const StopPoll start;
    const Finish finish = finish_of(inputs);
    batch_.split(team, {inputs[0], inputs[1], output}, weight, [&](const auto& piece, const auto& from, int member) {
      StopPoll poll = start;
      piece.walk(from, 0, [&](const auto& at) {
        GemmArgs args = args_;
        args.a = at[swapped_ ? 1 : 0];
        args.b = at[swapped_ ? 0 : 1];
        args.out = at[2];
        args.finish = finish;
        args.scratch = scratch + static_cast<std::size_t>(member) * scratch_bytes_;
        run_product(gemm_, args, item_, poll);
        return !poll.stopped();
      });
    });
  }
  bool scratch_each() const noexcept override { return true; }

 private:
  // One product, in pieces of its rows.
  void run_rows(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept {
    const std::int64_t pieces = std::clamp<std::int64_t>(args_.m / RowPieces::kLeast, 1, team.size());
    const StopPoll start;
    const Finish finish = finish_of(inputs);
    team.each(
        pieces,
        [&](std::int64_t i, int member) {
          StopPoll poll = start;
          const std::int64_t first = RowPieces::begin(args_.m, pieces, i);
          GemmArgs args = args_;
          args.rows = args_.m;
          args.m = RowPieces::begin(args_.m, pieces, i + 1) - first;
          if (args.m == 0) return;
          args.a = inputs[swapped_ ? 1 : 0] + first * args_.a_row * item_;
          args.b = inputs[swapped_ ? 0 : 1];
          args.out = output + first * args_.out_row * item_;
          args.finish = finish;
          args.scratch = scratch + static_cast<std::size_t>(member) * scratch_bytes_;
          run_product(gemm_, args, item_, poll);
        },
        2.0 * static_cast<double>(args_.m * args_.n) * static_cast<double>(args_.k));
  }

  Finish finish_of(std::byte* const* inputs) const noexcept {
    Finish finish = args_.finish;
    if (has_bias_) finish.bias = reinterpret_cast<const float*>(inputs[kBias]);
    return finish;
  }

  // One B for a whole batch axis, and A's rows evenly spaced through it: the batch is just more rows.
  void fold_batch(std::size_t item) {
    const auto bytes = static_cast<std::int64_t>(item);
    if (batch_.axes == 1 && batch_.stride[1][0] == 0 && batch_.stride[0][0] == args_.m * args_.a_row * bytes) {
      args_.m *= batch_.size[0];
      batch_.axes = 0;
    }
  }

  GemmArgs args_;
  std::int64_t item_ = 0;
  LoopNest<3> batch_;
  Gemm gemm_{};
  bool swapped_ = false, has_bias_;
};

}  // namespace

std::unique_ptr<HostStep> make_matmul_step(std::span<const Layout> inputs, const TensorType& result, const Table& table,
                                           const Epilogue& epilogue) {
  return std::make_unique<MatMulStep>(inputs, result, table, epilogue);
}

}  // namespace walle
