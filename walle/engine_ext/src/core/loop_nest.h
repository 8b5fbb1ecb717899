// A loop nest over several tensors at once: elementwise and reducing steps iterate over it. A broadcast axis has stride 0.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

#include "core/stop.h"
#include "core/team.h"
#include "core/tensor.h"

namespace walle {

template <std::size_t N>
struct LoopNest {
  int axes = 0;
  std::array<std::int64_t, kMaxAxes> size{};                   // length of each axis, outermost first
  std::array<std::array<std::int64_t, kMaxAxes>, N> stride{};  // step of each tensor along each axis, in bytes

  // Builds the nest of `shape`; strides are in elements. Axes of size 1 are dropped, and neighbouring axes are merged where the
  // strides of every tensor allow it; the order of the axes stays. Throws Error (shape) where more than kMaxAxes remain.
  static LoopNest make(const Dims& shape, const std::array<Dims, N>& strides, const std::array<std::size_t, N>& item_sizes) {
    LoopNest nest;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] == 1) continue;
      std::array<std::int64_t, N> byte_strides;
      for (std::size_t i = 0; i < N; ++i) byte_strides[i] = strides[i][axis] * static_cast<std::int64_t>(item_sizes[i]);
      const auto last = static_cast<std::size_t>(nest.axes - 1);
      bool merges = nest.axes > 0;
      for (std::size_t i = 0; merges && i < N; ++i) merges = nest.stride[i][last] == byte_strides[i] * shape[axis];
      if (!merges && nest.axes == kMaxAxes)
        throw Error(ErrorKind::shape, "shape " + to_string(shape) + " has more than " + std::to_string(kMaxAxes) +
                                          " axes that cannot be merged; make the operands contiguous or reshape them");
      const std::size_t target = merges ? last : static_cast<std::size_t>(nest.axes++);
      nest.size[target] = merges ? nest.size[target] * shape[axis] : shape[axis];
      for (std::size_t i = 0; i < N; ++i) nest.stride[i][target] = byte_strides[i];
    }
    return nest;
  }

  std::int64_t count() const noexcept {
    std::int64_t product = 1;
    for (std::size_t i = 0; i < static_cast<std::size_t>(axes); ++i) product *= size[i];
    return product;
  }
  // Length of the innermost axis.
  std::int64_t row() const noexcept { return axes > 0 ? size[static_cast<std::size_t>(axes - 1)] : 1; }
  // Stride of a tensor along the innermost axis, in elements.
  std::int64_t row_stride(std::size_t tensor, std::size_t item_size) const noexcept {
    return axes > 0 ? stride[tensor][static_cast<std::size_t>(axes - 1)] / static_cast<std::int64_t>(item_size) : 0;
  }

  // Splits the outermost axis into even pieces and calls f(piece, addresses, member) for each, on the team's threads where the
  // work is large enough, until a stop is requested. `weight` is the work of one element, in elements. f must not throw.
  template <class F>
  void split(Team& team, const std::array<std::byte*, N>& addresses, std::int64_t weight, F&& f) const noexcept {
    constexpr std::int64_t kMinPiece = 1 << 14;  // elements whose time is well above that of waking a thread
    const std::int64_t work = count() * weight, most = axes == 0 ? 1 : std::max<std::int64_t>(size[0], 1);
    const std::int64_t shared =
        team.size() == 1 ? 1 : std::clamp<std::int64_t>(std::min(most, work / kMinPiece), 1, 4 * team.size());
    const std::int64_t pieces = std::min(most, std::max(shared, work / StopPoll::kInterval));
    team.each(pieces, [&](std::int64_t i, int member) {
      LoopNest piece = *this;
      std::array<std::byte*, N> piece_addresses = addresses;
      if (pieces > 1) {
        const std::int64_t first = size[0] * i / pieces;
        piece.size[0] = size[0] * (i + 1) / pieces - first;
        for (std::size_t t = 0; t < N; ++t)
          if (piece_addresses[t] != nullptr) piece_addresses[t] += first * stride[t][0];
      }
      f(piece, piece_addresses, member);
    });
  }

  // Calls f(addresses) for the first element of each iteration of the axes outside the `inner` innermost ones: inner = 1 visits
  // every row, inner = 0 every element. Where f returns a bool, stops at the first false.
  template <class F>
  void walk(std::array<std::byte*, N> addresses, std::size_t inner, F&& f) const noexcept {
    if (count() == 0) return;
    const std::size_t outer = static_cast<std::size_t>(axes) - (axes > 0 ? inner : 0);
    std::array<std::int64_t, kMaxAxes> index{};
    for (;;) {
      if constexpr (std::is_same_v<decltype(f(addresses)), bool>) {
        if (!f(addresses)) return;
      } else {
        f(addresses);
      }
      std::size_t axis = outer;
      for (;;) {
        if (axis == 0) return;
        --axis;
        for (std::size_t i = 0; i < N; ++i) addresses[i] += stride[i][axis];
        if (++index[axis] < size[axis]) break;
        for (std::size_t i = 0; i < N; ++i) addresses[i] -= size[axis] * stride[i][axis];
        index[axis] = 0;
      }
    }
  }
};

}  // namespace walle
