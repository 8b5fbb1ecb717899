// Cost model of search (§4.1, eq. 3): Q, the work that an algorithm counts, and P, the rates at which an instruction set does
// each kind of work. Rates are data: those set for this machine, else those shipped for the CPU's family, else a formula's.
// Nothing is measured unless measure_rates() is called, so that all processes of a machine make the same plans.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/table.h"

namespace walle {

// Q: an algorithm's work by kind, each kind with its own rate.
struct Work {
  double panel = 0;     // floating-point operations of the tile kernel, the padding of tiles included
  double pairs = 0;     // operations of bfloat16's tile kernel
  double lanes = 0;     // operations of lane-by-lane kernels: depthwise sums, Winograd transforms
  double streamed = 0;  // bytes of weights that no cache near the core holds, read once for each pass over them
  double moved = 0;     // bytes that are read and written between memory and memory, near the core
  double far = 0;       // bytes moved where no cache near the core holds them
};

struct Rates {
  // Per microsecond: operations of the tile kernel, of that of bfloat16 (the same where there is none) and of lane-by-lane
  // kernels, bytes of weights streamed from memory, bytes moved between values in the caches.
  double panel = 0, pairs = 0, lanes = 0, streamed = 0, moved = 0;

  // Q / P in microseconds. Weights stream while the tile kernel computes, so the slower of the two counts; bytes moved far from
  // the core go at the rate of streaming.
  double us(const Work& work) const noexcept;
};

// The rates by name, to read and write them.
struct RateName {
  std::string_view name;
  double Rates::* rate;
};
std::span<const RateName> rate_names() noexcept;

// Return this instruction set's rates: as set, else shipped for this CPU's family (atomic/default_rates.h), else by the formula.
// Thread-safe.
Rates rates(const Table& table);
// Return where those rates come from: "calibrated" (they were set), "shipped: FAMILY" or "formula".
std::string rates_source(const Table& table);
// Sets what rates() returns for this instruction set. Throws Error (backend) for rates that are not finite and above 0.
void set_rates(const Table& table, const Rates& rates);
// Measure the rates, `seconds` for each, without setting them. A longer measurement is less disturbed by other work.
Rates measure_rates(const Table& table, double seconds);

// Return the most that one core does with this set's instructions, in 10^9 floating-point operations a second (a multiply-add
// is two): the best of several runs in `seconds`.
double peak_gflops(const Table& table, double seconds);

}  // namespace walle
