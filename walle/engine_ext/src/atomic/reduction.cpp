#include "atomic/reduction.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "atomic/joined_rows.h"
#include "core/loop_nest.h"
#include "core/stop.h"

namespace walle {

namespace {

// The two halves of a reduction's coordinates: what is kept (input and output strides) and what is reduced (input strides).
struct ReduceNests {
  LoopNest<2> kept;
  LoopNest<1> reduced;

  ReduceNests(const Layout& input, DType result, std::span<const std::size_t> axes) {
    Dims kept_shape, kept_strides, reduced_shape, reduced_strides;
    for (std::size_t i = 0; i < input.shape.size(); ++i) {
      const bool is_reduced = std::binary_search(axes.begin(), axes.end(), i);
      (is_reduced ? reduced_shape : kept_shape).push_back(input.shape[i]);
      (is_reduced ? reduced_strides : kept_strides).push_back(input.strides[i]);
    }
    const std::size_t item = item_size(input.dtype);
    kept = LoopNest<2>::make(kept_shape, {kept_strides, contiguous_strides(kept_shape)}, {item, item_size(result)});
    reduced = LoopNest<1>::make(reduced_shape, {reduced_strides}, {item});
  }
};

// Reduction of partial results in blocks, each by one call of the kernel of the elements: so sums of floats keep the error of a
// block, and no partial result has its own call.
class PartialResults {
 public:
  PartialResults(ReduceFn reduce, std::size_t item) noexcept : reduce_(reduce), item_(item) {}

  // Returns where to store the next partial result.
  std::byte* next() noexcept { return place(0); }

  // Reduces all partial results, of which there is one at least.
  void finish(std::byte* out) noexcept {
    for (int level = 0;; ++level) {
      bool more = false;
      for (int above = level + 1; above < kLevels; ++above) more = more || counts_[above] > 0;
      if (!more) return reduce_(parts_[level], 1, counts_[level], out);
      std::byte* to = place(level + 1);
      reduce_(parts_[level], 1, counts_[level], to);
    }
  }

 private:
  static constexpr int kLevels = 4;
  static constexpr std::int64_t kBlock = 64;

  std::byte* place(int level) noexcept {
    std::byte* first = parts_[level];
    if (counts_[level] == kBlock) {
      alignas(8) std::byte result[kMaxItemSize];
      reduce_(first, 1, kBlock, result);
      const bool last = level + 1 == kLevels;
      std::memcpy(last ? first : place(level + 1), result, item_);
      counts_[level] = last ? 1 : 0;
    }
    return first + static_cast<std::size_t>(counts_[level]++) * item_;
  }

  ReduceFn reduce_;
  std::size_t item_;
  std::int64_t counts_[kLevels] = {};
  alignas(64) std::byte parts_[kLevels][kBlock * static_cast<std::int64_t>(kMaxItemSize)];
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
    rounds_ = op == ReduceOp::ReduceSum && (is_floating(input.dtype) || is_complex(input.dtype));
    if (rounds_ && input.dtype != DType::f32) piece_ = kSummedAtOnce;
    scale_ = mean ? table.binary[static_cast<std::size_t>(BinaryOp::Div)][type] : nullptr;
    // Over no elements a sum is 0, a product 1, a maximum the least number of the type, a minimum the greatest, a mean 0 / 0.
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
    else if (short_rows_ && nests_.kept.axes == 1)  // one row must not be split among threads
      run_short_rows(nests_.kept, {inputs[0], output});
    else
      nests_.kept.split(team, {inputs[0], output}, nests_.reduced.count(), [&](const LoopNest<2>& piece, const auto& from, int) {
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
  using Places = std::array<std::byte*, 2>;  // addresses in the input and the output
  static constexpr std::int64_t kZero = 0, kOne = 1;

  void run_elements(const LoopNest<2>& kept, const Places& places) const noexcept {
    const std::int64_t row = nests_.reduced.row(), bytes = nests_.reduced.row_stride(0, item_) * static_cast<std::int64_t>(item_);
    const std::int64_t stride = nests_.reduced.row_stride(0, item_);
    const bool at_once = row <= piece_ && nests_.reduced.axes <= 1;
    StopPoll poll;
    kept.walk(places, 0, [&](const auto& to) {
      if (at_once) {
        if (!poll.proceed(row)) return false;
        reduce_(to[0], stride, row, to[1]);
        return true;
      }
      PartialResults parts(reduce_, item_);
      nests_.reduced.walk({to[0]}, 1, [&](const auto& from) {
        for (std::int64_t done = 0; done < row; done += piece_) {
          const std::int64_t count = std::min(piece_, row - done);
          if (!poll.proceed(count)) return false;
          reduce_(from[0] + done * bytes, stride, count, parts.next());
        }
        return true;
      });
      if (poll.stopped()) return false;
      parts.finish(to[1]);
      return true;
    });
  }
  void run_rows(const LoopNest<2>& kept, const Places& places) const noexcept {
    const std::int64_t row = kept.row(), stride = kept.row_stride(0, item_);
    const bool at_once =
        sum_rows_ != nullptr && stride == 1 && nests_.reduced.axes == 1 && nests_.reduced.row() <= kMostSummedRows;
    const bool in_blocks = rounds_ && nests_.reduced.count() > JoinedRows::kBlock;
    StopPoll poll;
    kept.walk(places, 1, [&](const auto& to) {
      if (at_once) return sum_columns(to[0], to[1], row, poll);
      if (in_blocks) return sum_in_blocks(to, row, stride, poll);
      bool first = true;
      nests_.reduced.walk({to[0]}, 0, [&](const auto& from) {
        if (!poll.proceed(row)) return false;
        if (first)
          copy_(from[0], stride, to[1], row);
        else
          join_(to[1], 1, from[0], stride, to[1], row);
        first = false;
        return true;
      });
      return !poll.stopped();
    });
  }

  bool sum_in_blocks(const Places& places, std::int64_t row, std::int64_t stride, StopPoll& poll) const noexcept {
    const auto item = static_cast<std::int64_t>(item_), most = JoinedRows::kBytes / item;
    for (std::int64_t done = 0; done < row; done += most) {
      const std::int64_t width = std::min(most, row - done);
      JoinedRows rows(join_, copy_);
      nests_.reduced.walk({places[0] + done * stride * item}, 0, [&](const auto& from) {
        if (!poll.proceed(width)) return false;
        rows.add(from[0], stride, width);
        return true;
      });
      if (poll.stopped()) return false;
      copy_(rows.finish(width), 1, places[1] + done * item, width);
    }
    return true;
  }

  bool sum_columns(const std::byte* input, std::byte* output, std::int64_t columns, StopPoll& poll) const noexcept {
    constexpr std::int64_t kColumns = 1 << 14;
    for (std::int64_t done = 0; done < columns; done += kColumns) {
      const std::int64_t count = std::min(kColumns, columns - done);
      if (!poll.proceed(count * nests_.reduced.row())) return false;
      sum_rows_(reinterpret_cast<const float*>(input) + done, nests_.reduced.row_stride(0, item_), nests_.reduced.row(),
                reinterpret_cast<float*>(output) + done, count);
    }
    return true;
  }

  // Short rows (channels, say) that follow each other: as many of them as fill a buffer are joined as one row, whose halves are
  // joined last.
  void run_short_rows(const LoopNest<2>& kept, const Places& places) const noexcept {
    const std::int64_t row = kept.row(), count = nests_.reduced.row(), bytes = row * static_cast<std::int64_t>(item_);
    const std::int64_t many = std::min(kShortBytes / bytes, count);
    StopPoll poll;
    kept.walk(places, 1, [&](const auto& to) {
      JoinedRows rows(join_, copy_);
      nests_.reduced.walk({to[0]}, 1, [&](const auto& from) {
        if (!poll.proceed(count * row)) return false;
        std::int64_t done = 0;
        for (; done + many <= count; done += many) rows.add(from[0] + done * bytes, 1, many * row);
        if (done < count) rows.add_start(from[0] + done * bytes, (count - done) * row);
        return true;
      });
      if (poll.stopped()) return false;
      std::byte* joined = rows.finish(many * row);
      for (std::int64_t left = many; left > 1;) {
        const std::int64_t half = left / 2;
        join_(joined, 1, joined + (left - half) * bytes, 1, joined, half * row);
        left -= half;
      }
      copy_(joined, 1, to[1], row);
      return true;
    });
  }

  static constexpr std::int64_t kShortRow = 32, kShortBytes = 1 << 12, kSummedAtOnce = 1 << 11;
  ReduceNests nests_;
  std::size_t item_;
  ReduceFn reduce_;
  BinaryFn join_, scale_;
  UnaryFn copy_;
  SumRowsFn sum_rows_ = nullptr;
  alignas(8) std::byte identity_[kMaxItemSize], count_[kMaxItemSize];
  std::int64_t piece_ = StopPoll::kInterval;  // elements of one call of the kernel
  bool rounds_, by_rows_, short_rows_;
};

// The index of the first best element, or of the last one: the first when the row is read backwards.
class ArgStep final : public HostStep {
 public:
  ArgStep(ReduceFn kernel, bool last, const Layout& input, std::span<const std::size_t> axes)
      : kernel_(kernel), nests_(input, DType::i64, axes), item_(item_size(input.dtype)), last_(last) {}
  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const std::int64_t row = nests_.reduced.row(), stride = nests_.reduced.row_stride(0, item_);
    const std::int64_t step = (last_ ? -stride : stride) * static_cast<std::int64_t>(item_);
    StopPoll poll;
    nests_.kept.walk({inputs[0], output}, 0, [&](const auto& at) {
      std::int64_t place = place_of_best(last_ ? at[0] - (row - 1) * step : at[0], step, row, poll);
      if (last_) place = row - 1 - place;
      std::memcpy(at[1], &place, sizeof(place));
      return !poll.stopped();
    });
  }

 private:
  // `step` is in bytes. The best element of each piece is compared with the best so far.
  std::int64_t place_of_best(const std::byte* row, std::int64_t step, std::int64_t count, StopPoll& poll) const noexcept {
    std::int64_t best = 0;
    for (std::int64_t done = 0; done < count && poll.proceed(std::min(StopPoll::kInterval, count - done));
         done += StopPoll::kInterval) {
      std::int64_t place = 0;
      kernel_(row + done * step, step / static_cast<std::int64_t>(item_), std::min(StopPoll::kInterval, count - done), &place);
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

}  // namespace

std::unique_ptr<HostStep> make_reduce_step(ReduceOp op, const Layout& input, std::span<const std::size_t> axes,
                                           const Table& table) {
  return std::make_unique<ReduceStep>(op, false, input, axes, table);
}

std::unique_ptr<HostStep> make_mean_step(const Layout& input, std::span<const std::size_t> axes, const Table& table) {
  return std::make_unique<ReduceStep>(ReduceOp::ReduceSum, true, input, axes, table);
}

std::unique_ptr<HostStep> make_arg_step(ArgOp op, bool last, const Layout& input, std::span<const std::size_t> axes,
                                        const Table& table) {
  const auto type = static_cast<std::size_t>(compute_index(input.dtype));
  return std::make_unique<ArgStep>(table.arg[static_cast<std::size_t>(op)][type], last, input, axes);
}

}  // namespace walle
