// Rates without a measurement of this machine: those shipped for CPU families, and a formula for all other CPUs.
#pragma once
#include "atomic/rates.h"

namespace walle {

// A CPU as CPUID names it, such as "AuthenticAMD", 25, 17; the vendor is empty where the CPU has no CPUID.
struct Cpu {
  std::string vendor;
  int family = 0, model = 0;
};
Cpu this_cpu();

struct ShippedRates {
  std::string_view family;  // name of a CPU family, such as "AMD Zen 4"
  std::string_view set;     // name of an instruction set
  Rates rates;
};
// Return what was measured for the CPU's family and an instruction set; null where nothing was.
const ShippedRates* shipped_rates(const Cpu& cpu, std::string_view set) noexcept;

// Return the rates of an instruction set by the widths of its vectors and a nominal clock; an unknown set has those of scalar.
// They are for comparisons of algorithms and sets; as times they may be far off.
Rates formula_rates(std::string_view set) noexcept;

}  // namespace walle
