// Tests of rates: families of CPUs, the formula, and that the rates of a set are those that were set.
#include "atomic/rates.h"

#include "atomic/default_rates.h"
#include "check.h"
#include "kernels/table.h"

using namespace walle;

namespace {

bool equal(const Rates& a, const Rates& b) {
  for (const RateName& one : rate_names())
    if (a.*one.rate != b.*one.rate) return false;
  return true;
}

void families_are_those_of_their_vendor_and_models() {
  for (const int model : {0x10, 0x11, 0x1F, 0x61, 0x74, 0xA0}) {
    const ShippedRates* found = shipped_rates({"AuthenticAMD", 25, model}, "avx2");
    CHECK(found != nullptr && found->family == "AMD Zen 4" && found->set == "avx2");
  }
  for (const int model : {0x01, 0x21, 0x50, 0x80}) CHECK(shipped_rates({"AuthenticAMD", 25, model}, "avx2") == nullptr);
  CHECK(shipped_rates({"AuthenticAMD", 26, 0x11}, "avx2") == nullptr);
  CHECK(shipped_rates({"GenuineIntel", 25, 0x11}, "avx2") == nullptr);
  for (const int model : {143, 207}) {
    const ShippedRates* found = shipped_rates({"GenuineIntel", 6, model}, "avx512");
    CHECK(found != nullptr && found->family == "Intel Sapphire Rapids" && found->set == "avx512");
    CHECK(shipped_rates({"GenuineIntel", 6, model}, "avx512_bf16") == nullptr);
  }
  for (const int model : {142, 144, 173, 206, 208}) CHECK(shipped_rates({"GenuineIntel", 6, model}, "avx512") == nullptr);
  CHECK(shipped_rates({}, "avx2") == nullptr);
  CHECK(shipped_rates({"AuthenticAMD", 25, 0x11}, "neon") == nullptr);
}

// Rates have three significant digits, so that text such as 1.23e+06 has them all.
bool has_three_digits(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2e", rate);
  return std::stod(text) == rate;
}

void rates_are_positive_and_have_three_digits() {
  for (const InstructionSet& set : instruction_sets()) {
    for (const RateName& one : rate_names()) {
      const double rate = formula_rates(set.name).*one.rate;
      CHECK(rate > 0 && has_three_digits(rate));
      for (const Cpu& cpu : {Cpu{"AuthenticAMD", 25, 0x11}, Cpu{"GenuineIntel", 6, 207}})
        if (const ShippedRates* shipped = shipped_rates(cpu, set.name))
          CHECK(shipped->rates.*one.rate > 0 && has_three_digits(shipped->rates.*one.rate));
    }
  }
}

void wider_sets_are_no_slower_by_the_formula() {
  double least = 0;
  for (const char* set : {"scalar", "avx2", "avx512"}) {
    CHECK(formula_rates(set).panel >= least && formula_rates(set).lanes <= formula_rates(set).panel);
    least = formula_rates(set).panel;
  }
  CHECK(formula_rates("neon").panel > formula_rates("scalar").panel);
  CHECK(equal(formula_rates("unknown"), formula_rates("scalar")));
}

void work_far_from_the_core_takes_longer() {
  const Rates rates = formula_rates("avx512");
  Work near, far;
  near.move(kNearBytes);
  far.move(16 * kNearBytes);
  CHECK(near.far == 0 && near.moved == kNearBytes && far.far == 16 * kNearBytes && far.moved == 0);
  Work between;
  between.move(2 * kNearBytes);
  CHECK(between.moved == 0 && between.retained + between.far == 2 * kNearBytes);
  CHECK(rates.for_weights(0, 2 * kNearBytes).us(between) > rates.for_weights(0, 0).us(between));
  CHECK(rates.us(far) > 16 * rates.us(near));
}

void weights_that_a_cache_keeps_stream_faster() {
  const Rates rates = formula_rates("avx512");
  Work work;
  work.panel = work.streamed = 1e6;
  const double near = rates.for_weights(kNearBytes, 0).us(work), shared = rates.for_weights(kSharedBytes, 0).us(work),
               memory = rates.for_weights(kSharedBytes + 1, 0).us(work);
  CHECK(near < shared && shared < memory);
  CHECK(rates.for_weights(0, 0).us({}) < rates.for_weights(kSharedBytes, 0).us({}));
}

void rates_are_shipped_then_set() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    const Table& table = kernels(set.name);
    const ShippedRates* shipped = shipped_rates(this_cpu(), set.name);
    CHECK(equal(rates(table), shipped == nullptr ? formula_rates(set.name) : shipped->rates));
    CHECK(rates_source(table) == (shipped == nullptr ? "formula" : "shipped: " + std::string(shipped->family)));
    CHECK(equal(rates(table), rates(table)));
    set_rates(table, {1, 2, 3, 4, 5});
    CHECK(equal(rates(table), {1, 2, 3, 4, 5}));
    CHECK(rates_source(table) == "calibrated");
    CHECK_ERROR(set_rates(table, {1, 2, 3, 4, 0}), backend);
    CHECK(rates(table).moved == 5);
  }
}

}  // namespace

int main() {
  families_are_those_of_their_vendor_and_models();
  rates_are_positive_and_have_three_digits();
  wider_sets_are_no_slower_by_the_formula();
  work_far_from_the_core_takes_longer();
  weights_that_a_cache_keeps_stream_faster();
  rates_are_shipped_then_set();
  return check::failures == 0 ? 0 : 1;
}
