// Cost model of search (§4.1, eq. 3): Q, the work that an algorithm counts, and P, the rates at which an instruction set does
// each kind of work. Rates are data: those set for this machine, else those shipped for the CPU's family, else a formula's.
// Nothing is measured unless measure_rates() is called, so that all processes of a machine make the same plans.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/table.h"

namespace walle {

// Bytes of values that the caches near a core keep from one operator to the next, beside what else passes through them.
constexpr double kNearBytes = 1 << 20;
// Bytes that a cache shared by several cores keeps from run to run, and its rate as a multiple of that of main memory: 25 to 28
// against 17.8 kB/us (Emerald Rapids).
constexpr double kSharedBytes = 24 << 20, kSharedRatio = 1.5;

// Q: an algorithm's work by kind, each kind with its own rate.
struct Work {
  double panel = 0;     // floating-point operations of the tile kernel, the padding of tiles included
  double pairs = 0;     // operations of bfloat16's tile kernel
  double lanes = 0;     // operations of lane-by-lane kernels: depthwise sums, Winograd transforms
  double streamed = 0;  // bytes of weights that no cache near the core holds, read once for each pass over them
  double moved = 0;     // bytes that are read and written between memory and memory, near the core
  double far = 0;       // bytes moved where no cache near the core holds them
  double retained = 0;  // bytes of values that do not fit, which are near at the next use unless weights pass between

  // Adds the reading and writing of values, `bytes` in all. Of values that just do not fit, most is still near
  // at the next use; of nine times as much, nothing (depthwise convolutions of 1.2 to 18 MB).
  void move(double bytes) noexcept {
    const double beyond = bytes * std::clamp((bytes / kNearBytes - 1) / 8, 0.0, 1.0);
    far += beyond;
    (bytes > kNearBytes ? retained : moved) += bytes - beyond;
  }
};

struct Rates {
  // Per microsecond: operations of the tile kernel, of that of bfloat16 (the same where there is none) and of lane-by-lane
  // kernels, bytes of weights streamed from memory, bytes moved between values in the caches.
  double panel = 0, pairs = 0, lanes = 0, streamed = 0, moved = 0;

  // Of a program (for_weights): the rate of its weights as a multiple of `streamed`, whether the tile kernel waits for them,
  // whether those of one product evict what is retained, and S of eq. 3, the time of a step beside its work.
  double weights_ratio = 1;
  bool weights_wait = true, weights_evict = false;
  double step_us = 0.05;

  // Q / P + S in microseconds. Weights from a cache are read while the tile kernel computes, so the slower of the two counts;
  // those from main memory are waited for.
  double us(const Work& work) const noexcept;
  // Return these rates for a program, by the bytes of all its weights and the mean of one product.
  Rates for_weights(double bytes, double mean) const noexcept;
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
