// A loop nest over several tensors at once: what elementwise and reducing steps walk. Broadcasting is a stride of 0.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

#include "core/team.h"
#include "core/tensor.h"

namespace walle {

template <std::size_t N>
struct Nest {
  int axes = 0;
  std::array<std::int64_t, kMaxAxes> size{};
  std::array<std::array<std::int64_t, kMaxAxes>, N> stride{};  // in bytes

  // Axes of size 1 dropped and neighbours merged where every tensor allows it; the order of the axes stays.
  // Throws Error (shape) where more than kMaxAxes remain.
  static Nest make(const Dims& shape, const std::array<Dims, N>& strides, const std::array<std::size_t, N>& item) {
    Nest nest;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] == 1) continue;
      std::array<std::int64_t, N> step;
      for (std::size_t i = 0; i < N; ++i) step[i] = strides[i][axis] * static_cast<std::int64_t>(item[i]);
      const auto last = static_cast<std::size_t>(nest.axes - 1);
      bool merges = nest.axes > 0;
      for (std::size_t i = 0; merges && i < N; ++i) merges = nest.stride[i][last] == step[i] * shape[axis];
      if (!merges && nest.axes == kMaxAxes)
        throw Error(ErrorKind::shape, "shape " + to_string(shape) + " keeps more than " + std::to_string(kMaxAxes) + " axes");
      const std::size_t at = merges ? last : static_cast<std::size_t>(nest.axes++);
      nest.size[at] = merges ? nest.size[at] * shape[axis] : shape[axis];
      for (std::size_t i = 0; i < N; ++i) nest.stride[i][at] = step[i];
    }
    return nest;
  }

  std::int64_t count() const noexcept {
    std::int64_t product = 1;
    for (std::size_t i = 0; i < static_cast<std::size_t>(axes); ++i) product *= size[i];
    return product;
  }
  // Length of the innermost axis, and a tensor's step along it in elements.
  std::int64_t row() const noexcept { return axes > 0 ? size[static_cast<std::size_t>(axes - 1)] : 1; }
  std::int64_t row_stride(std::size_t tensor, std::size_t item) const noexcept {
    return axes > 0 ? stride[tensor][static_cast<std::size_t>(axes - 1)] / static_cast<std::int64_t>(item) : 0;
  }

  // Calls f(piece, its addresses) for even pieces along the outermost axis, by a team where there is enough to share; `weight` is
  // the work of one element, in elements. f(piece, addresses, member) must not throw.
  template <class F>
  void share(Team& team, const std::array<std::byte*, N>& at, std::int64_t weight, F&& f) const noexcept {
    constexpr std::int64_t kWorth = 1 << 14;  // elements whose time is well above that of waking a thread
    const std::int64_t most = axes == 0 ? 1 : std::min<std::int64_t>(size[0], count() * weight / kWorth);
    const std::int64_t pieces = team.size() == 1 ? 1 : std::clamp<std::int64_t>(most, 1, 4 * team.size());
    team.each(pieces, [&](std::int64_t i, int member) {
      Nest piece = *this;
      std::array<std::byte*, N> from = at;
      if (pieces > 1) {
        const std::int64_t first = size[0] * i / pieces;
        piece.size[0] = size[0] * (i + 1) / pieces - first;
        for (std::size_t t = 0; t < N; ++t)
          if (from[t] != nullptr) from[t] += first * stride[t][0];
      }
      f(piece, from, member);
    });
  }

  // Calls f(addresses) for the first element of every row, or (inner = 0) of every element; where f returns a bool, up to the
  // first false.
  template <class F>
  void walk(std::array<std::byte*, N> at, std::size_t inner, F&& f) const noexcept {
    if (count() == 0) return;
    const std::size_t outer = static_cast<std::size_t>(axes) - (axes > 0 ? inner : 0);
    std::array<std::int64_t, kMaxAxes> index{};
    for (;;) {
      if constexpr (std::is_same_v<decltype(f(at)), bool>) {
        if (!f(at)) return;
      } else {
        f(at);
      }
      std::size_t axis = outer;
      for (;;) {
        if (axis == 0) return;
        --axis;
        for (std::size_t i = 0; i < N; ++i) at[i] += stride[i][axis];
        if (++index[axis] < size[axis]) break;
        for (std::size_t i = 0; i < N; ++i) at[i] -= size[axis] * stride[i][axis];
        index[axis] = 0;
      }
    }
  }
};

}  // namespace walle
