#include "atomic/default_rates.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace walle {

namespace {

// Models of one design, first to last: AMD gives out blocks of 16 numbers, Intel single ones.
struct Family {
  std::string_view name, vendor;
  int family, first_model, last_model;
};
constexpr Family kFamilies[] = {
    {"AMD Zen 4", "AuthenticAMD", 25, 0x10, 0x1F},          {"AMD Zen 4", "AuthenticAMD", 25, 0x60, 0x7F},
    {"AMD Zen 4", "AuthenticAMD", 25, 0xA0, 0xAF},          {"Intel Sapphire Rapids", "GenuineIntel", 6, 143, 143},
    {"Intel Sapphire Rapids", "GenuineIntel", 6, 207, 207},  // Emerald Rapids: the same core
};

// In operations and bytes per microsecond: panel, pairs, lanes, streamed, moved. Only what was measured is here.
constexpr ShippedRates kShipped[] = {
    // EPYC (family 25, model 17), one core of a virtual machine: medians of 385 slices, measured as `walle model calibrate` does,
    // three runs in six minutes, while other work took both cores. Medians of the runs differ by at most 2.3 %.
    {"AMD Zen 4", "scalar", {4860, 4860, 2970, 39100, 101000}},
    {"AMD Zen 4", "avx2", {111000, 111000, 60300, 39100, 101000}},
    {"AMD Zen 4", "avx512", {117000, 117000, 74400, 39100, 101000}},
    {"AMD Zen 4", "avx512_bf16", {117000, 234000, 74400, 39100, 101000}},
    // Emerald Rapids (model 207, no bfloat16), one core of a virtual machine: medians of three runs of 24 to 45 s, measured as
    // `walle model calibrate` does, while other work took both cores. Medians of the runs differ by at most 0.8 %, those of
    // streaming by 8 % and of moving by 4 %. Nothing was measured on Sapphire Rapids.
    {"Intel Sapphire Rapids", "scalar", {6230, 6230, 2520, 16700, 83200}},
    {"Intel Sapphire Rapids", "avx2", {87200, 87200, 48400, 16700, 83200}},
    {"Intel Sapphire Rapids", "avx512", {172000, 172000, 93000, 16700, 83200}},
};

// What the kernels of an instruction set do in one cycle.
struct PerCycle {
  std::string_view set;
  double panel, pairs, lanes;
};
constexpr PerCycle kPerCycle[] = {
    // Not vectorised, as measured on Zen 4, whose clock is taken as the one at which avx512 reaches 32 operations.
    {"scalar", 1.3, 1.3, 0.8},
    // Two units of 8 lanes, a multiply-add is two operations: 32, of which the tile kernel reaches 30 on Zen 4. Lane-by-lane
    // kernels load a vector for each multiply-add, and so reach half.
    {"avx2", 30, 30, 16},
    // Between CPUs with one unit of 16 lanes or two of 8 (32 operations) and those with two of 16 (64).
    {"avx512", 45, 45, 24},
    {"avx512_bf16", 45, 90, 24},  // pairs of 16-bit products in the time of one of 32 bits
    {"neon", 15, 15, 8},          // two units of 4 lanes
};
// Bytes of one cycle: a core's share of a server's main memory, and a copy in the second-level cache, read and written.
constexpr double kStreamedPerCycle = 5, kMovedPerCycle = 20;
constexpr double kCyclesPerUs = 3000;

}  // namespace

Cpu this_cpu() {
  Cpu cpu;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return cpu;
  char vendor[12];
  std::memcpy(vendor, &b, 4);
  std::memcpy(vendor + 4, &d, 4);
  std::memcpy(vendor + 8, &c, 4);
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return cpu;
  const int base_family = a >> 8 & 0xF, base_model = a >> 4 & 0xF;
  const int more_family = a >> 20 & 0xFF, more_model = a >> 16 & 0xF;
  cpu.vendor.assign(vendor, sizeof vendor);
  cpu.family = base_family + (base_family == 0xF ? more_family : 0);
  cpu.model = base_model + (base_family == 0xF || base_family == 6 ? more_model << 4 : 0);
#endif
  return cpu;
}

const ShippedRates* shipped_rates(const Cpu& cpu, std::string_view set) noexcept {
  for (const Family& family : kFamilies) {
    if (cpu.vendor != family.vendor || cpu.family != family.family) continue;
    if (cpu.model < family.first_model || cpu.model > family.last_model) continue;
    for (const ShippedRates& one : kShipped)
      if (one.family == family.name && one.set == set) return &one;
  }
  return nullptr;
}

Rates formula_rates(std::string_view set) noexcept {
  PerCycle rate = kPerCycle[0];
  for (const PerCycle& one : kPerCycle)
    if (one.set == set) rate = one;
  return {rate.panel * kCyclesPerUs, rate.pairs * kCyclesPerUs, rate.lanes * kCyclesPerUs, kStreamedPerCycle * kCyclesPerUs,
          kMovedPerCycle * kCyclesPerUs};
}

}  // namespace walle
