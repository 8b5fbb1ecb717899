// The rows of an elementwise step as its kernel is to see them: long, every input either one element or contiguous. Short rows
// (channels against one number a pixel, say) are joined, and other strides gathered, piece by piece in a buffer.
#pragma once
#include <array>
#include <cstring>

#include "core/loop_nest.h"
#include "core/stop.h"

namespace walle {

// Of N inputs and an output that is contiguous.
template <std::size_t N>
class Rows {
 public:
  Rows() = default;
  Rows(const LoopNest<N + 1>& nest, const std::array<std::size_t, N>& items, std::size_t out_item)
      : items_(items), out_item_(out_item), joined_(nest.axes > 1 && nest.row() <= kShort) {
    const auto last = static_cast<std::size_t>(std::max(nest.axes - 1, 0));
    for (std::size_t i = 0; i < N && nest.axes > 0; ++i) {
      const auto item = static_cast<std::int64_t>(items[i]);
      inner_[i] = nest.stride[i][last];
      outer_[i] = joined_ ? nest.stride[i][last - 1] : 0;
      const bool even = !joined_ || outer_[i] == inner_[i] * nest.row();
      gathered_[i] = (!even || (inner_[i] != 0 && inner_[i] != item)) && nest.row() > 1;
      any_ = any_ || gathered_[i];
      stride_[i] = gathered_[i] ? 1 : inner_[i] / item;
    }
    joined_ = joined_ && any_;  // what needs no buffer has been merged by the nest
  }

  // f(inputs, their strides in elements, output, count) for pieces of the nest, which is the constructor's or a part of it, until
  // a stop is requested.
  template <class F>
  void walk(const LoopNest<N + 1>& nest, const std::array<std::byte*, N + 1>& from, F&& f) const noexcept {
    StopPoll poll;
    if (!any_) {
      const std::int64_t row = nest.row();
      nest.walk(from, 1, [&](auto at) {
        for (std::int64_t first = 0; first < row; first += kLong) {
          const std::int64_t count = std::min(kLong, row - first);
          if (!poll.proceed(count)) return false;
          f(inputs_of(at), stride_, at[N], count);
          for (std::size_t i = 0; i < N; ++i) at[i] += count * inner_[i];
          at[N] += count * static_cast<std::int64_t>(out_item_);
        }
        return true;
      });
      return;
    }
    alignas(64) std::byte buffer[N][kBuffer * static_cast<std::int64_t>(kMaxItemSize)];
    const std::int64_t row = nest.row(), width = joined_ ? row : std::min(row, kBuffer);
    const std::int64_t many = joined_ ? nest.size[static_cast<std::size_t>(nest.axes - 2)] : 1;
    nest.walk(from, joined_ ? 2 : 1, [&](const auto& at) {
      for (std::int64_t done = 0, first = 0; first < many * row; first += done) {
        // Whole rows, or a stretch of one.
        const std::int64_t rows = joined_ ? std::min(kBuffer / width, many - first / row) : 1;
        done = joined_ ? rows * row : std::min(width, row - first);
        if (!poll.proceed(done)) return false;
        std::array<std::byte*, N> inputs;
        for (std::size_t i = 0; i < N; ++i) {
          inputs[i] = at[i] + (joined_ ? first / row * outer_[i] : first * inner_[i]);
          if (!gathered_[i]) continue;
          if (first == 0 || !joined_ || outer_[i] != 0) gather(i, inputs[i], rows, done / rows, buffer[i]);
          inputs[i] = buffer[i];
        }
        f(inputs, stride_, at[N] + first * static_cast<std::int64_t>(out_item_), done);
      }
      return true;
    });
  }

 private:
  static constexpr std::int64_t kShort = 32, kBuffer = 512, kLong = StopPoll::kInterval / 4;  // elements

  static std::array<std::byte*, N> inputs_of(const std::array<std::byte*, N + 1>& at) noexcept {
    std::array<std::byte*, N> inputs;
    for (std::size_t i = 0; i < N; ++i) inputs[i] = at[i];
    return inputs;
  }
  void gather(std::size_t i, const std::byte* from, std::int64_t rows, std::int64_t row, std::byte* to) const noexcept {
    switch (items_[i]) {
      case 1: return gather_rows<std::uint8_t>(from, outer_[i], inner_[i], rows, row, to);
      case 2: return gather_rows<std::uint16_t>(from, outer_[i], inner_[i], rows, row, to);
      case 4: return gather_rows<std::uint32_t>(from, outer_[i], inner_[i], rows, row, to);
      case 8: return gather_rows<std::uint64_t>(from, outer_[i], inner_[i], rows, row, to);
      default: return gather_rows<std::array<std::uint64_t, 2>>(from, outer_[i], inner_[i], rows, row, to);
    }
  }
  template <class T>
  static void gather_rows(const std::byte* from, std::int64_t outer, std::int64_t inner, std::int64_t rows, std::int64_t row,
                          std::byte* buffer) noexcept {
    auto* to = reinterpret_cast<T*>(buffer);
    const auto repeat = [&]<std::int64_t kRow>(std::integral_constant<std::int64_t, kRow>) {
      for (std::int64_t r = 0; r < rows; ++r, from += outer) {
        T same;
        std::memcpy(&same, from, sizeof(T));
        for (std::int64_t c = 0; c < kRow; ++c) to[r * kRow + c] = same;
      }
    };
    if (inner == 0 && row == 2) return repeat(std::integral_constant<std::int64_t, 2>());
    if (inner == 0 && row == 3) return repeat(std::integral_constant<std::int64_t, 3>());
    if (inner == 0 && row == 4) return repeat(std::integral_constant<std::int64_t, 4>());
    for (std::int64_t r = 0; r < rows; ++r, from += outer) {
      const std::byte* at = from;
      for (std::int64_t c = 0; c < row; ++c, at += inner, ++to) std::memcpy(to, at, sizeof(T));
    }
  }

  std::array<std::size_t, N> items_{};
  std::size_t out_item_ = 1;
  std::array<std::int64_t, N> inner_{}, outer_{}, stride_{};  // the first two in bytes, along a row and between rows
  std::array<bool, N> gathered_{};
  bool joined_ = false, any_ = false;
};

}  // namespace walle
