// Measurement of the instruction set's peak multiply-add rate (see PeakFn): independent chains that stay in registers.

float peak(std::int64_t rounds) noexcept {
  const Vec factor = set(0.999999f), term = set(1e-6f);
  Vec chains[kPeakChains];
#pragma GCC unroll 12
  for (int i = 0; i < kPeakChains; ++i) chains[i] = set(1e-6f * static_cast<float>(i));
  for (; rounds > 0; --rounds) {
#pragma GCC unroll 12
    for (int i = 0; i < kPeakChains; ++i) chains[i] = fma(chains[i], factor, term);
  }
  Vec total = chains[0];
#pragma GCC unroll 11
  for (int i = 1; i < kPeakChains; ++i) total = add(total, chains[i]);
  return static_cast<float>(sum(total));
}
