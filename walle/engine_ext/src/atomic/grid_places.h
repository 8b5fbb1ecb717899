// Places that GridSample reads: a few taps along each axis around a coordinate of its grid, with their weights and slopes. The
// gradient of GridSample goes through the same.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/attributes.h"
#include "core/stop.h"

namespace walle {

enum class GridPadding : std::uint8_t { zeros, border, reflection };

// Up to four taps along one axis; index -1 reads zero. A slope is the derivative of a weight by the grid's coordinate.
template <class T>
struct GridAxisTaps {
  int count = 0;
  std::array<std::int64_t, 4> index{};
  std::array<T, 4> weight{}, slope{};
};
// Those of depth, height and width; an axis that the image lacks has one tap of weight 1.
template <class T>
using GridTaps = std::array<GridAxisTaps<T>, 3>;

// Reflect x at the borders until it is between them; `sign` is the derivative of the result.
template <class T>
T reflect(T x, T low, T high, T& sign) noexcept {
  const T range = high - low;
  sign = 0;
  if (!(range > 0)) return low;
  const bool below = x < low;
  sign = 1;
  if (!below && !(x > high)) return x;
  const T distance = below ? low - x : x - high;
  const T turns = std::trunc(distance / range), rest = distance - turns * range;
  const bool from_low = (std::fmod(turns, T{2}) == 0) == below;
  sign = from_low == below ? T{-1} : T{1};
  return from_low ? low + rest : high - rest;
}

template <class T>
struct GridPlaces {
  std::size_t rank = 0;
  std::int64_t batch = 0, channels = 0, plane = 0, count = 0;  // count: places of the grid for each image
  std::array<std::int64_t, 3> size{1, 1, 1};                   // depth, height and width

  // For an image [batch, channels, in...] and a grid [batch, out..., axes]. Throws Error (unsupported).
  GridPlaces(const Dims& x, const Dims& grid, const Attributes& attributes) {
    rank = x.size() - 2;
    batch = x[0];
    channels = x[1];
    std::copy(x.begin() + 2, x.end(), size.end() - static_cast<std::ptrdiff_t>(rank));
    plane = element_count(Dims(x.begin() + 2, x.end()));
    count = element_count(Dims(grid.begin() + 1, grid.end() - 1));
    align_ = attributes.get_int("align_corners", 0) != 0;
    const std::string mode = attributes.get_string("mode", "linear"), padding = attributes.get_string("padding_mode", "zeros");
    reach_ = mode == "nearest" ? 1 : mode == "linear" || mode == "bilinear" ? 2 : mode == "cubic" || mode == "bicubic" ? 4 : 0;
    if (reach_ == 0) throw Error(ErrorKind::unsupported, "GridSample mode '" + mode + "'; known are nearest, linear and cubic");
    if (padding != "zeros" && padding != "border" && padding != "reflection")
      throw Error(ErrorKind::unsupported, "GridSample padding_mode '" + padding + "'; known are zeros, border and reflection");
    padding_ = padding == "zeros" ? GridPadding::zeros : padding == "border" ? GridPadding::border : GridPadding::reflection;
  }

  // Calls visit(image, place, taps) for every place; a stop ends it early.
  template <class F>
  void walk(const T* grid, F&& visit) const noexcept {
    StopPoll poll;
    for (std::int64_t n = 0; n < batch; ++n)
      for (std::int64_t p = 0; p < count; ++p, grid += rank) {
        if (!poll.proceed(channels << (2 * rank))) return;
        GridTaps<T> taps;
        for (std::size_t axis = 0; axis < 3; ++axis) {
          if (axis < 3 - rank)
            taps[axis] = {1, {0}, {T{1}}, {}};
          else  // the grid's coordinates begin with the last axis
            taps[axis] = taps_at(grid[2 - axis], size[axis]);
        }
        visit(n, p, taps);
      }
  }

 private:
  GridAxisTaps<T> taps_at(T normal, std::int64_t length_of) const noexcept {
    const T length = static_cast<T>(length_of), low = align_ ? T{0} : T(-0.5), high = align_ ? length - 1 : length - T(0.5);
    T at = align_ ? (normal + 1) / 2 * (length - 1) : ((normal + 1) * length - 1) / 2;
    T slope = (align_ ? length - 1 : length) / 2;
    if (reach_ == 1) at = std::nearbyint(at);
    if (!(at >= low && at <= high)) {
      T sign = 1;
      if (padding_ == GridPadding::border) {
        sign = 0;
        at = std::clamp(at, T{0}, length - 1);
      }
      if (padding_ == GridPadding::reflection) at = reflect(at, low, high, sign);
      slope *= sign;
    }
    GridAxisTaps<T> taps;
    if (!(std::fabs(at) < T(1e15))) {  // too far outside or NaN: all zeros
      taps.count = 1;
      taps.index[0] = -1;
      return taps;
    }
    const T floor = std::floor(at), rest = at - floor;
    std::int64_t first = static_cast<std::int64_t>(floor);
    taps.count = reach_;
    if (reach_ == 1) {
      first = static_cast<std::int64_t>(at);
      taps.weight = {T{1}};
    } else if (reach_ == 2) {
      taps.weight = {1 - rest, rest};
      taps.slope = {-slope, slope};
    } else {
      --first;
      constexpr T a = T(-0.75);
      const auto far = [&](T d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
      const auto near = [&](T d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
      const auto far_slope = [&](T d) { return ((3 * a * d - 10 * a) * d + 8 * a) * slope; };
      const auto near_slope = [&](T d) { return (3 * (a + 2) * d - 2 * (a + 3)) * d * slope; };
      taps.weight = {far(rest + 1), near(rest), near(1 - rest), far(2 - rest)};
      taps.slope = {far_slope(rest + 1), near_slope(rest), -near_slope(1 - rest), -far_slope(2 - rest)};
    }
    for (int i = 0; i < reach_; ++i) {
      std::int64_t index = first + i;
      if (index < 0 || index >= length_of) {
        T sign;
        if (padding_ == GridPadding::zeros) index = -1;
        if (padding_ == GridPadding::border) index = std::clamp<std::int64_t>(index, 0, length_of - 1);
        if (padding_ == GridPadding::reflection)
          index = std::clamp<std::int64_t>(static_cast<std::int64_t>(reflect(static_cast<T>(index), low, high, sign)), 0,
                                           length_of - 1);
      }
      taps.index[static_cast<std::size_t>(i)] = index;
    }
    return taps;
  }

  bool align_ = false;
  int reach_ = 2;
  GridPadding padding_ = GridPadding::zeros;
};

}  // namespace walle
