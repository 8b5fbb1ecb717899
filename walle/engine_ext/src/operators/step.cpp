#include "operators/step.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "atomic/conversion.h"
#include "atomic/products/products.h"
#include "atomic/rows.h"
#include "core/nest.h"
#include "core/work_context.h"

namespace walle {

namespace {

template <std::size_t N>
Nest<N + 1> broadcast_nest(std::span<const Layout> inputs, const TensorType& result) {
  std::array<Dims, N + 1> strides;
  std::array<std::size_t, N + 1> item;
  for (std::size_t i = 0; i < N; ++i) {
    strides[i] = broadcast_strides(inputs[i].shape, inputs[i].strides, result.shape);
    item[i] = item_size(inputs[i].dtype);
  }
  strides[N] = contiguous_strides(result.shape);
  item[N] = item_size(result.dtype);
  return Nest<N + 1>::make(result.shape, strides, item);
}

// One kernel over every element of N inputs, broadcast.
template <std::size_t N>
class ElementwiseStep : public SharedStep {
 public:
  ElementwiseStep(std::span<const Layout> inputs, const TensorType& result) : nest_(broadcast_nest<N>(inputs, result)) {
    std::array<std::size_t, N> items;
    for (std::size_t i = 0; i < N; ++i) items[i] = item_size(inputs[i].dtype);
    rows_ = Rows<N>(nest_, items, item_size(result.dtype));
  }

 protected:
  template <class F>
  void each_row(Team& team, std::byte* const* inputs, std::byte* output, F&& f) const noexcept {
    std::array<std::byte*, N + 1> at;
    for (std::size_t i = 0; i < N; ++i) at[i] = inputs[i];
    at[N] = output;
    nest_.share(team, at, 1, [&](const auto& piece, const auto& from, int) { rows_.walk(piece, from, f); });
  }

 private:
  Nest<N + 1> nest_;
  Rows<N> rows_;
};

class UnaryStep final : public ElementwiseStep<1> {
 public:
  UnaryStep(UnaryFn kernel, std::span<const Layout> inputs, const TensorType& result)
      : ElementwiseStep(inputs, result), kernel_(kernel) {}
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    each_row(team, inputs, output, [this](const auto& in, const auto& stride, std::byte* out, std::int64_t count) {
      kernel_(in[0], stride[0], out, count);
    });
  }

 private:
  UnaryFn kernel_;
};

class BinaryStep final : public ElementwiseStep<2> {
 public:
  BinaryStep(BinaryFn kernel, std::span<const Layout> inputs, const TensorType& result)
      : ElementwiseStep(inputs, result), kernel_(kernel) {}
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    each_row(team, inputs, output, [this](const auto& in, const auto& stride, std::byte* out, std::int64_t count) {
      kernel_(in[0], stride[0], in[1], stride[1], out, count);
    });
  }

 private:
  BinaryFn kernel_;
};

class SelectStep final : public ElementwiseStep<3> {
 public:
  SelectStep(SelectFn kernel, std::span<const Layout> inputs, const TensorType& result)
      : ElementwiseStep(inputs, result), kernel_(kernel) {}
  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    each_row(team, inputs, output, [this](const auto& in, const auto& stride, std::byte* out, std::int64_t count) {
      kernel_(in[0], stride[0], in[1], stride[1], in[2], stride[2], out, count);
    });
  }

 private:
  SelectFn kernel_;
};

// The two halves of a reduction's coordinates: what is kept (input and output strides) and what is reduced (input strides).
struct ReduceNests {
  Nest<2> kept;
  Nest<1> reduced;

  ReduceNests(const Layout& input, DType result, std::span<const std::size_t> axes) {
    Dims kept_shape, kept_strides, reduced_shape, reduced_strides;
    for (std::size_t i = 0; i < input.shape.size(); ++i) {
      const bool gone = std::binary_search(axes.begin(), axes.end(), i);
      (gone ? reduced_shape : kept_shape).push_back(input.shape[i]);
      (gone ? reduced_strides : kept_strides).push_back(input.strides[i]);
    }
    const std::size_t item = item_size(input.dtype);
    kept = Nest<2>::make(kept_shape, {kept_strides, contiguous_strides(kept_shape)}, {item, item_size(result)});
    reduced = Nest<1>::make(reduced_shape, {reduced_strides}, {item});
  }
};

class ReduceStep final : public SharedStep {
 public:
  ReduceStep(ReduceOp op, bool mean, const Layout& input, std::span<const std::size_t> axes, const Table& table)
      : nests_(input, input.dtype, axes), item_(item_size(input.dtype)) {
    const auto type = static_cast<std::size_t>(compute_index(input.dtype));
    constexpr BinaryOp joins[] = {
#define WALLE_REDUCE(op, types, join) BinaryOp::join,
#include "kernels/kernels.inc"
#undef WALLE_REDUCE
    };
    reduce_ = table.reduce[static_cast<std::size_t>(op)][type];
    join_ = table.binary[static_cast<std::size_t>(joins[static_cast<std::size_t>(op)])][type];
    copy_ = table.cast[type][type];
    if (op == ReduceOp::ReduceSum && input.dtype == DType::f32) sum_rows_ = table.sum_rows;
    scale_ = mean ? table.binary[static_cast<std::size_t>(BinaryOp::Div)][type] : nullptr;
    // Of nothing: a sum is 0, a product 1, the greatest the least number there is, the least the greatest (a mean 0 / 0).
    if (op == ReduceOp::ReduceMax || op == ReduceOp::ReduceMin) {
      const double bound =
          op == ReduceOp::ReduceMax ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
      table.cast[1][type](&bound, 0, &identity_, 1);
      if (input.dtype == DType::b8) *identity_ = static_cast<std::byte>(op == ReduceOp::ReduceMin);
    } else {
      table.cast[3][type](op == ReduceOp::ReduceProd ? &kOne : &kZero, 0, &identity_, 1);
    }
    const std::int64_t count = nests_.reduced.count();
    table.cast[3][type](&count, 0, &count_, 1);
    // Rows of kept elements are joined whole where they lie closer in memory than the reduced ones.
    by_rows_ = nests_.kept.axes > 0 && nests_.reduced.axes > 0 &&
               std::abs(nests_.kept.row_stride(0, item_)) < std::abs(nests_.reduced.row_stride(0, item_));
    short_rows_ = by_rows_ && nests_.kept.row() <= kShortRow && nests_.kept.row_stride(0, item_) == 1 &&
                  nests_.reduced.row_stride(0, item_) == nests_.kept.row();
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::int64_t kept = nests_.kept.count();
    if (nests_.reduced.count() == 0)
      copy_(&identity_, 0, output, kept);
    else if (short_rows_ && nests_.kept.axes == 1)  // its one row is not to be cut
      run_short_rows(nests_.kept, {inputs[0], output});
    else
      nests_.kept.share(team, {inputs[0], output}, nests_.reduced.count(), [&](const Nest<2>& piece, const auto& from, int) {
        if (short_rows_)
          run_short_rows(piece, from);
        else if (by_rows_)
          run_rows(piece, from);
        else
          run_elements(piece, from);
      });
    if (scale_ != nullptr) scale_(output, 1, &count_, 0, output, kept);
  }

 private:
  using Places = std::array<std::byte*, 2>;  // of the input and the output
  static constexpr std::int64_t kZero = 0, kOne = 1;

  void run_elements(const Nest<2>& kept, const Places& places) const noexcept {
    const std::int64_t row = nests_.reduced.row(), stride = nests_.reduced.row_stride(0, item_);
    Wanted wanted;
    kept.walk(places, 0, [&](const auto& to) {
      bool first = true;
      nests_.reduced.walk({to[0]}, 1, [&](const auto& from) {
        for (std::int64_t done = 0; done < row; done += Wanted::kEvery) {
          const std::int64_t count = std::min(Wanted::kEvery, row - done);
          if (!wanted.next(count)) return false;
          alignas(8) std::byte part[8];
          reduce_(from[0] + done * stride * static_cast<std::int64_t>(item_), stride, count, first ? to[1] : part);
          if (!first) join_(to[1], 1, part, 1, to[1], 1);
          first = false;
        }
        return true;
      });
      return static_cast<bool>(wanted);
    });
  }
  void run_rows(const Nest<2>& kept, const Places& places) const noexcept {
    const std::int64_t row = kept.row(), stride = kept.row_stride(0, item_);
    const bool at_once =
        sum_rows_ != nullptr && stride == 1 && nests_.reduced.axes == 1 && nests_.reduced.row() <= kMostSummedRows;
    Wanted wanted;
    kept.walk(places, 1, [&](const auto& to) {
      if (at_once) return sum_columns(to[0], to[1], row, wanted);
      bool first = true;
      nests_.reduced.walk({to[0]}, 0, [&](const auto& from) {
        if (!wanted.next(row)) return false;
        if (first)
          copy_(from[0], stride, to[1], row);
        else
          join_(to[1], 1, from[0], stride, to[1], row);
        first = false;
        return true;
      });
      return static_cast<bool>(wanted);
    });
  }

  bool sum_columns(const std::byte* input, std::byte* output, std::int64_t columns, Wanted& wanted) const noexcept {
    constexpr std::int64_t kColumns = 1 << 14;
    for (std::int64_t done = 0; done < columns; done += kColumns) {
      const std::int64_t count = std::min(kColumns, columns - done);
      if (!wanted.next(count * nests_.reduced.row())) return false;
      sum_rows_(reinterpret_cast<const float*>(input) + done, nests_.reduced.row_stride(0, item_), nests_.reduced.row(),
                reinterpret_cast<float*>(output) + done, count);
    }
    return true;
  }

  // Rows of a few elements (channels, say) that follow each other: as many of them as fill a buffer are one row, joined whole,
  // and its parts are joined last.
  void run_short_rows(const Nest<2>& kept, const Places& places) const noexcept {
    const std::int64_t row = kept.row(), count = nests_.reduced.row();
    const std::int64_t many = std::min(kShortBuffer / row, count), bytes = row * static_cast<std::int64_t>(item_);
    alignas(64) std::byte sums[kShortBuffer * 8];
    Wanted wanted;
    kept.walk(places, 1, [&](const auto& to) {
      bool first = true;
      nests_.reduced.walk({to[0]}, 1, [&](const auto& from) {
        if (!wanted.next(count * row)) return false;
        copy_(from[0], 1, sums, many * row);
        std::int64_t done = many;
        for (; done + many <= count; done += many) join_(sums, 1, from[0] + done * bytes, 1, sums, many * row);
        for (std::int64_t i = 0; i < many + count - done; ++i) {
          const std::byte* part = i < many ? sums + i * bytes : from[0] + (done + i - many) * bytes;
          if (first)
            copy_(part, 1, to[1], row);
          else
            join_(to[1], 1, part, 1, to[1], row);
          first = false;
        }
        return true;
      });
      return static_cast<bool>(wanted);
    });
  }

  static constexpr std::int64_t kShortRow = 32, kShortBuffer = 512;
  ReduceNests nests_;
  std::size_t item_;
  ReduceFn reduce_;
  BinaryFn join_, scale_;
  UnaryFn copy_;
  SumRowsFn sum_rows_ = nullptr;
  alignas(8) std::byte identity_[8], count_[8];
  bool by_rows_, short_rows_;
};

// The last place of the best element is the first one from behind.
class ArgStep final : public Step {
 public:
  ArgStep(ReduceFn kernel, bool last, const Layout& input, std::span<const std::size_t> axes)
      : kernel_(kernel), nests_(input, DType::i64, axes), item_(item_size(input.dtype)), last_(last) {}
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::int64_t row = nests_.reduced.row(), stride = nests_.reduced.row_stride(0, item_);
    const std::int64_t step = (last_ ? -stride : stride) * static_cast<std::int64_t>(item_);
    Wanted wanted;
    nests_.kept.walk({inputs[0], output}, 0, [&](const auto& at) {
      std::int64_t place = place_of_best(last_ ? at[0] - (row - 1) * step : at[0], step, row, wanted);
      if (last_) place = row - 1 - place;
      std::memcpy(at[1], &place, sizeof(place));
      return static_cast<bool>(wanted);
    });
  }

 private:
  // `step` is in bytes. The best of each piece runs against the best so far.
  std::int64_t place_of_best(const std::byte* row, std::int64_t step, std::int64_t count, Wanted& wanted) const noexcept {
    std::int64_t best = 0;
    for (std::int64_t done = 0; done < count && wanted.next(std::min(Wanted::kEvery, count - done)); done += Wanted::kEvery) {
      std::int64_t place = 0;
      kernel_(row + done * step, step / static_cast<std::int64_t>(item_), std::min(Wanted::kEvery, count - done), &place);
      place += done;
      if (done > 0) {
        alignas(8) std::byte both[16];
        std::memcpy(both, row + best * step, item_);
        std::memcpy(both + item_, row + place * step, item_);
        std::int64_t winner = 0;
        kernel_(both, 1, 2, &winner);
        if (winner == 0) continue;
      }
      best = place;
    }
    return best;
  }

  ReduceFn kernel_;
  ReduceNests nests_;
  std::size_t item_;
  bool last_;
};

// (..., m, k) @ (..., k, n) with broadcast batches; vectors count as one row or one column.
class MatMulStep final : public SharedStep {
 public:
  MatMulStep(std::span<const Layout> inputs, const TensorType& result, const Table& table) {
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
    batch_ = Nest<3>::make(batch, {batch_strides(a), batch_strides(b), out_strides}, {item, item, item});
    fold_batch(item);
    if (args_.n == 1 && args_.m > 1) {  // a column: the same numbers as a row of the transposed product
      std::swap(args_.m, args_.n);
      std::swap(args_.a_row, args_.b_col);
      std::swap(args_.a_col, args_.b_row);
      args_.out_row = args_.n;
      swapped_ = true;
    }
    gemm_ = table.gemm[static_cast<std::size_t>(compute_index(result.dtype))];
    constexpr std::size_t kLine = Storage::kAlignment;  // every member's part is aligned
    scratch_bytes_ = (gemm_.scratch_bytes(args_.m, args_.n, args_.k) + kLine - 1) / kLine * kLine;
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    const std::int64_t weight = args_.m * args_.n * args_.k;
    if (batch_.count() == 1 && team.size() > 1 && args_.m > 1) return run_rows(team, inputs, output, scratch);
    const Wanted asked;
    batch_.share(team, {inputs[0], inputs[1], output}, weight, [&](const auto& piece, const auto& from, int member) {
      Wanted wanted = asked;
      piece.walk(from, 0, [&](const auto& at) {
        GemmArgs args = args_;
        args.a = at[swapped_ ? 1 : 0];
        args.b = at[swapped_ ? 0 : 1];
        args.out = at[2];
        args.scratch = scratch + static_cast<std::size_t>(member) * scratch_bytes_;
        run_product(gemm_, args, item_, wanted);
        return static_cast<bool>(wanted);
      });
    });
  }
  bool scratch_each() const noexcept override { return true; }

 private:
  // One product, in pieces of its rows.
  void run_rows(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept {
    const std::int64_t pieces = std::min<std::int64_t>(args_.m, team.size());
    const Wanted asked;
    team.each(
        pieces,
        [&](std::int64_t i, int member) {
          Wanted wanted = asked;
          const std::int64_t first = args_.m * i / pieces;
          GemmArgs args = args_;
          args.m = args_.m * (i + 1) / pieces - first;
          args.a = inputs[swapped_ ? 1 : 0] + first * args_.a_row * item_;
          args.b = inputs[swapped_ ? 0 : 1];
          args.out = output + first * args_.out_row * item_;
          args.scratch = scratch + static_cast<std::size_t>(member) * scratch_bytes_;
          run_product(gemm_, args, item_, wanted);
        },
        2.0 * static_cast<double>(args_.m * args_.n) * static_cast<double>(args_.k));
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
  Nest<3> batch_;
  Gemm gemm_{};
  bool swapped_ = false;
};

}  // namespace

std::unique_ptr<Step> make_step(const OpDef& op, std::span<const Layout> inputs, const TensorType& result,
                                std::span<const std::size_t> axes, const Attributes& attributes, const Table& table,
                                const Epilogue& epilogue) {
  if (op.make_step != nullptr) return op.make_step({inputs, result, attributes, table, epilogue});
  if (op.fused != nullptr) return make_fused(*op.fused, op.name, inputs, attributes, table);
  if (is_half(inputs[0].dtype) && (op.family == Family::reduce || op.family == Family::mean || op.family == Family::matmul))
    return std::make_unique<WidenedStep>(inputs, result, table, [&](std::span<const Layout> wide, const TensorType& wide_result) {
      return make_step(op, wide, wide_result, axes, attributes, table);
    });
  const auto type = static_cast<std::size_t>(compute_index(inputs[0].dtype));
  switch (op.family) {
    case Family::unary: return std::make_unique<UnaryStep>(table.unary[op.code][type], inputs, result);
    case Family::test: return std::make_unique<UnaryStep>(table.test[op.code][type], inputs, result);
    case Family::binary: return std::make_unique<BinaryStep>(table.binary[op.code][type], inputs, result);
    case Family::compare: return std::make_unique<BinaryStep>(table.compare[op.code][type], inputs, result);
    case Family::select: {
      const auto log2 = static_cast<std::size_t>(std::bit_width(item_size(result.dtype)) - 1);
      return std::make_unique<SelectStep>(table.select[log2], inputs, result);
    }
    case Family::reduce: return std::make_unique<ReduceStep>(static_cast<ReduceOp>(op.code), false, inputs[0], axes, table);
    case Family::mean: return std::make_unique<ReduceStep>(ReduceOp::ReduceSum, true, inputs[0], axes, table);
    case Family::arg:
      return std::make_unique<ArgStep>(table.arg[op.code][type], attributes.get_int("select_last_index", 0) != 0, inputs[0],
                                       axes);
    case Family::matmul: return std::make_unique<MatMulStep>(inputs, result, table);
    case Family::none: break;
  }
  throw Error(ErrorKind::unsupported, std::string(op.name) + " has no kernel");
}

}  // namespace walle
