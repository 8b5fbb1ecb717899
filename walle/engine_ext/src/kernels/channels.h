// Kernels of operators by channel (atomic/channels.cpp), of gates (atomic/gate.cpp) and of PReluGradient. Pointers are to float32
// or float64 elements, which follow each other; numbers are given as float64 and rounded to the elements' type.
#pragma once
#include <cstdint>
#include <limits>

namespace walle {

// A gradient of bounds behind a * x + b: g[i] counts where low < a * x[i] + b < high, else as 0, also where that is NaN.
struct ChannelGate {
  double a = 0, b = 0, low = 0, high = 0;
  bool has_high = true;  // an absent bound holds
};

// out[i] = a * x[i] + b + p * g[i], limited to low and high, where NaN stays NaN; without the last term where g is null. out may
// be x or g.
struct AffineArgs {
  const void* x = nullptr;
  const void* g = nullptr;
  double a = 0, b = 0, p = 0;
  void* out = nullptr;
  std::int64_t count = 0;
  const ChannelGate* gate = nullptr;  // gate of g; null: all of g counts
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};

// out[i] = g[i] where low < x[i] < high, else 0, also where x[i] is NaN. Where bounds are included, 0 where x[i] < low or
// x[i] > high, else g[i]. out may be g or x.
struct GateArgs {
  const void* g = nullptr;
  const void* x = nullptr;
  double low = 0, high = 0;
  bool has_low = true, has_high = true;  // a bound that is absent holds
  bool includes_bounds = false;
  void* out = nullptr;
  std::int64_t count = 0;
};

// Rows of `count` elements, whose first elements are `step` apart. Sums of one call are accumulated in float32 where the elements
// are float32: a call has at most kChannelBlock elements.
struct ChannelRows {
  std::int64_t rows = 1, count = 0, step = 0;
};
inline constexpr std::int64_t kChannelBlock = 4096;

struct ChannelKernels {
  // out[0] = mean of all elements, out[1] = sum of (in[i] - mean)^2; rows and count >= 1.
  void (*moments)(const void* in, const ChannelRows& rows, double* out) noexcept;
  // out[0] = sum of g[i], out[1] = sum of g[i] * (x[i] - centre); of what passes the gate, where there is one.
  void (*sums)(const void* g, const void* x, double centre, const ChannelGate* gate, const ChannelRows& rows,
               double* out) noexcept;
  void (*affine)(const AffineArgs& args) noexcept;
  void (*gate)(const GateArgs& args) noexcept;
  // out[i] = g[i] where x[i] > 0, else slope * g[i]; returns the sum of g[i] * x[i] where not x[i] > 0. count <= kChannelBlock;
  // out may be g or x.
  double (*prelu_gradient)(const void* g, const void* x, double slope, void* out, std::int64_t count) noexcept;
  // The same with a slope for each element, whose product is added to sums[i].
  void (*prelu_gradient_row)(const void* g, const void* x, const void* slopes, void* out, void* sums,
                             std::int64_t count) noexcept;
};

}  // namespace walle
