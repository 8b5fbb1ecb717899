// P of eq. 3: how fast a backend does each kind of work on this machine, measured and never guessed from a clock frequency.
#pragma once
#include "atomic/products/packed_convolution.h"

namespace walle {

struct Rates {
  // Per microsecond: operations of the tile kernel, of that of bfloat16 (the same where there is none) and of lane-by-lane
  // kernels, bytes of weights streamed from memory, bytes moved between values in the caches.
  double panel = 0, pairs = 0, lanes = 0, streamed = 0, moved = 0;

  // Q / P of a piece of work. Weights stream while the tile kernel computes, so the slower of the two counts; what is moved far
  // from the core goes at their rate.
  double us(const Work& work) const noexcept;
};

// The rates by name, for what reads and writes them.
struct RateName {
  std::string_view name;
  double Rates::* rate;
};
std::span<const RateName> rate_names() noexcept;

// This backend's: as they were set, or measured at the first asking in a few milliseconds. Thread-safe.
Rates rates(const Table& table);
// What rates() gives for this backend from now on. Throws Error (backend) for rates that are not finite and above 0.
void set_rates(const Table& table, const Rates& rates);
// Measured anew with `seconds` for each rate, and not set: the longer, the likelier other work is left out.
Rates measure_rates(const Table& table, double seconds);

// The most that one core does with this backend's instructions, in 10^9 floating-point operations a second (a multiply-add is
// two): the best of several runs in `seconds`.
double peak_gflops(const Table& table, double seconds);

}  // namespace walle
