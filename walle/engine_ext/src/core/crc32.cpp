// CRC-32, polynomial 0xEDB88320: by carry-less multiplication where the CPU has it (a model's weights are read through once at
// every load), else eight bytes a step ("slicing by 8").
#include "core/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace walle {

namespace {

constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0u);
    tables[0][i] = value;
  }
  for (std::size_t table = 1; table < 8; ++table)
    for (std::size_t i = 0; i < 256; ++i) tables[table][i] = tables[table - 1][i] >> 8 ^ tables[0][tables[table - 1][i] & 255];
  return tables;
}();

// The register is the CRC's complement, in these two.
std::uint32_t by_tables(const std::byte* data, std::size_t size, std::uint32_t state) noexcept {
  for (; size >= 8; size -= 8, data += 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][word >> 8 * i & 255];
  }
  for (; size > 0; --size, ++data) state = state >> 8 ^ kTables[0][(state ^ static_cast<std::uint32_t>(*data)) & 255];
  return state;
}

#if defined(__x86_64__)
// x^n modulo the polynomial, bit-reflected: what n bits further on a bit counts.
constexpr std::uint32_t power_of_x(int n) {
  std::uint32_t value = 0x80000000u;
  for (int i = 0; i < n; ++i) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0u);
  return value;
}
// The pair of multipliers that move 128 bits on by `bits`; one more bit for the reflected product.
struct Fold {
  std::uint64_t low, high;
};
constexpr Fold fold_by(int bits) {
  return {static_cast<std::uint64_t>(power_of_x(bits + 32)) << 1, static_cast<std::uint64_t>(power_of_x(bits - 32)) << 1};
}

bool has_folding() noexcept {
  static const bool has = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return has;
}

// Whole blocks of 64 bytes, `size` a multiple of 64 and not 0: four registers, each moved on past the others, then into one whose
// 16 bytes the tables finish.
__attribute__((target("pclmul,sse4.1"))) std::uint32_t by_folding(const std::byte* data, std::size_t size,
                                                                  std::uint32_t state) noexcept {
  constexpr Fold kFour = fold_by(512), kOne = fold_by(128);
  const auto at = [&](std::size_t i) { return reinterpret_cast<const __m128i*>(data) + i; };
  const __m128i four = _mm_set_epi64x(static_cast<long long>(kFour.high), static_cast<long long>(kFour.low));
  const __m128i one = _mm_set_epi64x(static_cast<long long>(kOne.high), static_cast<long long>(kOne.low));
  __m128i sums[4];
  for (std::size_t i = 0; i < 4; ++i) sums[i] = _mm_loadu_si128(at(i));
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  for (data += 64, size -= 64; size > 0; data += 64, size -= 64)
    for (std::size_t i = 0; i < 4; ++i)
      sums[i] = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(sums[i], four, 0x00), _mm_clmulepi64_si128(sums[i], four, 0x11)),
                              _mm_loadu_si128(at(i)));
  __m128i total = sums[0];
  for (std::size_t i = 1; i < 4; ++i)
    total = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(total, one, 0x00), _mm_clmulepi64_si128(total, one, 0x11)), sums[i]);
  std::byte rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), total);
  return by_tables(rest, sizeof(rest), 0);
}
#endif

}  // namespace

std::uint32_t crc32(const std::byte* data, std::size_t size, std::uint32_t crc) noexcept {
  std::uint32_t state = ~crc;
#if defined(__x86_64__)
  if (const std::size_t whole = size / 64 * 64; whole > 0 && has_folding()) {
    state = by_folding(data, whole, state);
    data += whole;
    size -= whole;
  }
#endif
  return ~by_tables(data, size, state);
}

}  // namespace walle
