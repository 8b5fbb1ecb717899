#include "atomic/elementwise_group.h"

#include <algorithm>
#include <cstring>

#include "core/loop_nest.h"
#include "core/stop.h"

namespace walle {

namespace {

class ElementwiseGroupStep final : public SharedStep {
 public:
  ElementwiseGroupStep(std::string algorithm, std::span<const GroupOperand> operands, std::span<const GroupStage> stages,
                       const TensorType& result)
      : algorithm_(std::move(algorithm)), operand_count_(operands.size()) {
    std::array<Dims, kMostGroupOperands + 1> strides;
    std::array<std::size_t, kMostGroupOperands + 1> items;
    strides.fill(Dims(result.shape.size(), 0));
    items.fill(1);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      strides[i] = operands[i].strides;
      items[i] = item_size(operands[i].dtype);
      offsets_[i] = operands[i].offset * static_cast<std::int64_t>(items[i]);
      is_aligned_[i] =
          operands[i].offset == 0 && operands[i].dtype == result.dtype && operands[i].strides == contiguous_strides(result.shape);
    }
    strides[kResult] = contiguous_strides(result.shape);
    items[kResult] = item_size(result.dtype);
    nest_ = Nest::make(result.shape, strides, items);
    result_item_ = static_cast<std::int64_t>(items[kResult]);
    add_operands(items);
    add_stages(stages);
  }

  void run_by(Team& team, std::byte* const* inputs, std::byte* output, std::byte* scratch) const noexcept override {
    Addresses at{};
    for (std::size_t i = 0; i < operand_count_; ++i) at[i] = inputs[i] + offsets_[i];
    at[kResult] = output;
    nest_.split(team, at, static_cast<std::int64_t>(stages_.size()), [&](const Nest& piece, const Addresses& from, int member) {
      run_piece(piece, from, scratch + static_cast<std::size_t>(member) * scratch_bytes_);
    });
  }
  bool scratch_each() const noexcept override { return true; }
  std::string_view algorithm() const noexcept override { return algorithm_; }
  // Kernels read an element before they write it, and no element twice.
  bool may_overwrite(std::size_t operand) const noexcept override { return is_aligned_[operand]; }

 private:
  // Elements of a block: a few values of it fit into the first-level cache, and calls of kernels take a small part of the time.
  static constexpr std::int64_t kBlock = 1024;
  // Rows of at most this many elements are joined to blocks; operands that are broadcast along them are copied for that.
  static constexpr std::int64_t kShort = 256;
  // Bytes between buffers beside their elements: at equal distances from multiples of 4096, loads would wait for stores to
  // others.
  static constexpr std::size_t kGap = 192;

  static constexpr std::size_t kResult = kMostGroupOperands;  // place of the result in the nest
  using Nest = LoopNest<kMostGroupOperands + 1>;
  using Addresses = std::array<std::byte*, kMostGroupOperands + 1>;
  using Values = std::array<std::byte*, kMostGroupOperands + kMostGroupStages>;

  struct Read {
    std::int64_t inner = 0, outer = 0;  // in bytes, along a row and between joined rows
    std::size_t item = 1;
    std::size_t buffer = 0;  // place in scratch memory, where it is gathered
    bool is_gathered = false;
  };
  struct Stage {
    decltype(GroupStage::kernel) kernel;
    std::array<std::size_t, 3> operands{};
    std::array<std::int64_t, 3> strides{};
    std::size_t buffer = 0;  // place of the result in scratch memory; the last stage writes the group's
  };

  std::size_t add_buffer(std::size_t item) {
    const std::size_t place = scratch_bytes_;
    scratch_bytes_ += static_cast<std::size_t>(kBlock) * item + kGap;
    return place;
  }

  void add_operands(const std::array<std::size_t, kMostGroupOperands + 1>& items) {
    is_joined_ = nest_.axes > 1 && nest_.row() <= kShort;
    const auto last = static_cast<std::size_t>(std::max(nest_.axes - 1, 0));
    for (std::size_t i = 0; i < operand_count_ && nest_.axes > 0; ++i) {
      Read& read = reads_[i];
      const auto item = static_cast<std::int64_t>(items[i]);
      read.item = items[i];
      read.inner = nest_.stride[i][last];
      read.outer = is_joined_ ? nest_.stride[i][last - 1] : 0;
      const bool is_even = !is_joined_ || read.outer == read.inner * nest_.row();
      read.is_gathered = !is_even || (read.inner != 0 && read.inner != item);
      if (read.is_gathered) read.buffer = add_buffer(read.item);
    }
  }

  // Results that no later stage reads leave their buffer to later ones.
  void add_stages(std::span<const GroupStage> stages) {
    std::vector<std::size_t> last(stages.size(), 0);
    std::size_t item = 1;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      item = std::max(item, item_size(stages[i].dtype));
      for (const int operand : stages[i].operands)
        if (static_cast<std::size_t>(operand) >= operand_count_) last[static_cast<std::size_t>(operand) - operand_count_] = i;
    }
    std::vector<std::size_t> unused;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      Stage stage{stages[i].kernel};
      for (std::size_t k = 0; k < stages[i].operands.size(); ++k) {
        const auto operand = static_cast<std::size_t>(stages[i].operands[k]);
        stage.operands[k] = operand;
        // One element alone has stride 0, as in a step of its own: kernels have another code for it, which may round otherwise.
        const bool is_one =
            operand < operand_count_ ? reads_[operand].inner == 0 && !reads_[operand].is_gathered : nest_.axes == 0;
        stage.strides[k] = is_one ? 0 : 1;
      }
      if (i + 1 < stages.size()) {
        if (unused.empty()) unused.push_back(add_buffer(item));
        stage.buffer = unused.back();
        unused.pop_back();
      }
      for (std::size_t k = 0; k < i; ++k)
        if (last[k] == i) unused.push_back(stages_[k].buffer);
      stages_.push_back(stage);
    }
  }

  // Runs a part of the nest, until a stop is requested.
  void run_piece(const Nest& nest, const Addresses& from, std::byte* scratch) const noexcept {
    StopPoll poll;
    Values values{};
    for (std::size_t i = 0; i + 1 < stages_.size(); ++i) values[operand_count_ + i] = scratch + stages_[i].buffer;
    const std::int64_t row = nest.row();
    // Rows that are joined; else blocks of one row.
    const std::int64_t many = is_joined_ ? nest.size[static_cast<std::size_t>(nest.axes - 2)] : row;
    const std::int64_t unit = is_joined_ ? row : 1, most = std::max<std::int64_t>(kBlock / std::max<std::int64_t>(unit, 1), 1);
    nest.walk(from, is_joined_ ? 2 : 1, [&](const Addresses& at) {
      for (std::int64_t first = 0, count = 0; first < many; first += count) {
        count = std::min(most, many - first);
        if (!poll.proceed(count * unit * static_cast<std::int64_t>(stages_.size()))) return false;
        for (std::size_t i = 0; i < operand_count_; ++i) {
          const Read& read = reads_[i];
          values[i] = at[i] + first * (is_joined_ ? read.outer : read.inner);
          if (!read.is_gathered) continue;
          std::byte* const buffer = scratch + read.buffer;
          if (first == 0 || !is_joined_ || read.outer != 0)
            gather(read, values[i], is_joined_ ? count : 1, is_joined_ ? row : count, buffer);
          values[i] = buffer;
        }
        values[operand_count_ + stages_.size() - 1] = at[kResult] + first * unit * result_item_;
        run_stages(values, count * unit);
      }
      return true;
    });
  }

  template <class T>
  static void gather_rows(const std::byte* from, std::int64_t outer, std::int64_t inner, std::int64_t rows, std::int64_t row,
                          std::byte* buffer) noexcept {
    auto* to = reinterpret_cast<T*>(buffer);
    for (std::int64_t r = 0; r < rows; ++r, from += outer, to += row) {
      if (inner == static_cast<std::int64_t>(sizeof(T))) {
        std::memcpy(to, from, static_cast<std::size_t>(row) * sizeof(T));
      } else if (inner == 0) {
        T same;
        std::memcpy(&same, from, sizeof(T));
        std::fill_n(to, row, same);
      } else {
        for (std::int64_t c = 0; c < row; ++c) std::memcpy(to + c, from + c * inner, sizeof(T));
      }
    }
  }
  static void gather(const Read& read, const std::byte* from, std::int64_t rows, std::int64_t row, std::byte* to) noexcept {
    switch (read.item) {
      case 1: return gather_rows<std::uint8_t>(from, read.outer, read.inner, rows, row, to);
      case 2: return gather_rows<std::uint16_t>(from, read.outer, read.inner, rows, row, to);
      case 4: return gather_rows<std::uint32_t>(from, read.outer, read.inner, rows, row, to);
      default: return gather_rows<std::uint64_t>(from, read.outer, read.inner, rows, row, to);
    }
  }

  void run_stages(const Values& values, std::int64_t count) const noexcept {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const Stage& stage = stages_[i];
      std::byte* const out = values[operand_count_ + i];
      const auto in = [&](std::size_t k) { return values[stage.operands[k]]; };
      const auto& stride = stage.strides;
      if (const auto* unary = std::get_if<UnaryFn>(&stage.kernel))
        (*unary)(in(0), stride[0], out, count);
      else if (const auto* binary = std::get_if<BinaryFn>(&stage.kernel))
        (*binary)(in(0), stride[0], in(1), stride[1], out, count);
      else if (const auto* select = std::get_if<SelectFn>(&stage.kernel))
        (*select)(in(0), stride[0], in(1), stride[1], in(2), stride[2], out, count);
      else if (const auto* map = std::get_if<GroupStage::BoundMap>(&stage.kernel))
        map->kernel(in(0), out, count, map->a, map->b);
    }
  }

  std::string algorithm_;
  std::size_t operand_count_;
  std::int64_t result_item_ = 1;
  bool is_joined_ = false;
  Nest nest_;
  std::array<Read, kMostGroupOperands> reads_;
  std::array<std::int64_t, kMostGroupOperands> offsets_{};  // in bytes
  std::array<bool, kMostGroupOperands> is_aligned_{};       // operands with the result's elements in their order
  std::vector<Stage> stages_;
};

}  // namespace

std::unique_ptr<HostStep> make_elementwise_group(std::string algorithm, std::span<const GroupOperand> operands,
                                                 std::span<const GroupStage> stages, const TensorType& result) {
  return std::make_unique<ElementwiseGroupStep>(std::move(algorithm), operands, stages, result);
}

}  // namespace walle
