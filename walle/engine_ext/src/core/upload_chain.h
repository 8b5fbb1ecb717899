// Chain over the uploads of a stream: walle/pipeline/features/checksums.py says what the values mean.
#pragma once
#include <cstdint>

namespace walle {

// (chain * factor + checksum) % modulus, in 64 bits: 2^61 is 1 modulo the modulus.
constexpr std::uint64_t next_link(std::uint64_t chain, std::uint32_t checksum) noexcept {
  constexpr std::uint64_t kFactor = 0x9E3779B1u;
  constexpr std::uint64_t kModulus = (std::uint64_t{1} << 61) - 1;
  const std::uint64_t low = (chain & 0xFFFFFFFFu) * kFactor, high = (chain >> 32) * kFactor;  // high counts 2^32
  const std::uint64_t high_part = (high >> 29) + ((high & ((1u << 29) - 1)) << 32);
  return (high_part + (low & kModulus) + (low >> 61) + checksum) % kModulus;
}

}  // namespace walle
