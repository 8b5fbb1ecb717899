// BLAKE2b: four messages of one block at a time where the CPU has AVX2, else one after another.
#include "core/blake2b.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace walle {

namespace {

static_assert(std::endian::native == std::endian::little, "the words of a block are little-endian");

constexpr std::size_t kBlockBytes = 128;
constexpr std::uint64_t kDigestBytes = 8;

constexpr std::array<std::uint64_t, 8> kStart = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                                 0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

constexpr std::uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

// Words of one message each, which are computed side by side.
#if defined(__x86_64__)
typedef std::uint64_t Four __attribute__((vector_size(32)));
#endif

template <typename Word>
[[gnu::always_inline]] inline void mix(Word* v, int a, int b, int c, int d, const Word& x, const Word& y) noexcept {
  v[a] += v[b] + x;
  v[d] ^= v[a];
  v[d] = v[d] >> 32 | v[d] << 32;
  v[c] += v[d];
  v[b] ^= v[c];
  v[b] = v[b] >> 24 | v[b] << 40;
  v[a] += v[b] + y;
  v[d] ^= v[a];
  v[d] = v[d] >> 16 | v[d] << 48;
  v[c] += v[d];
  v[b] ^= v[c];
  v[b] = v[b] >> 63 | v[b] << 1;
}

// The rounds on a block m. v comes with the state, the constants, the count of bytes and the mark of the last block.
template <typename Word>
[[gnu::always_inline]] inline void rounds(Word* v, const Word* m) noexcept {
#pragma GCC unroll 12
  for (int round = 0; round < 12; ++round) {
    const std::uint8_t* s = kOrder[round % 10];
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
}

constexpr std::uint64_t start_word(std::size_t i) noexcept {
  return i == 0 ? kStart[0] ^ 0x01010000 ^ kDigestBytes : kStart[i];  // no key, one thread
}

std::size_t size_of(const MessageParts& message) noexcept { return message.first_size + message.second_size; }

// Copies the bytes [begin, begin + 128) of a message, with zeros behind its end.
void copy_block(const MessageParts& message, std::size_t begin, unsigned char* block) noexcept {
  std::memset(block, 0, kBlockBytes);
  std::size_t filled = 0;
  if (begin < message.first_size) {
    filled = std::min(kBlockBytes, message.first_size - begin);
    std::memcpy(block, message.first + begin, filled);
  }
  const std::size_t skipped = begin + filled - message.first_size;
  if (skipped < message.second_size)
    std::memcpy(block + filled, message.second + skipped, std::min(kBlockBytes - filled, message.second_size - skipped));
}

std::uint64_t digest(const MessageParts& message) noexcept {
  const std::size_t size = size_of(message);
  std::uint64_t h[8], m[16], v[16];
  unsigned char block[kBlockBytes];
  for (std::size_t i = 0; i < 8; ++i) h[i] = start_word(i);
  for (std::size_t begin = 0; begin == 0 || begin < size; begin += kBlockBytes) {
    copy_block(message, begin, block);
    std::memcpy(m, block, kBlockBytes);
    const std::size_t end = std::min(size, begin + kBlockBytes);
    for (std::size_t i = 0; i < 8; ++i) v[i] = h[i], v[i + 8] = kStart[i];
    v[12] ^= end;
    if (end == size) v[14] = ~v[14];
    rounds(v, m);
    for (std::size_t i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
  }
  return __builtin_bswap64(h[0]);
}

#if defined(__x86_64__)
// The digests of four messages of one block each.
__attribute__((target("avx2"))) void digest_four(const MessageParts* messages, std::uint64_t* out) noexcept {
  std::uint64_t blocks[4][16];
  unsigned char block[kBlockBytes];
  for (std::size_t lane = 0; lane < 4; ++lane) {
    copy_block(messages[lane], 0, block);
    std::memcpy(blocks[lane], block, kBlockBytes);
  }
  Four m[16], v[16];
  for (std::size_t i = 0; i < 16; ++i) m[i] = Four{blocks[0][i], blocks[1][i], blocks[2][i], blocks[3][i]};
  for (std::size_t i = 0; i < 8; ++i) {
    v[i] = Four{} + start_word(i);
    v[i + 8] = Four{} + kStart[i];
  }
  v[12] ^= Four{size_of(messages[0]), size_of(messages[1]), size_of(messages[2]), size_of(messages[3])};
  v[14] = ~v[14];
  rounds(v, m);
  const Four h = v[0] ^ v[8] ^ start_word(0);
  for (std::size_t lane = 0; lane < 4; ++lane) out[lane] = __builtin_bswap64(h[lane]);
}
#endif

}  // namespace

void blake2b_64(const MessageParts* messages, std::size_t count, std::uint64_t* out) noexcept {
  std::size_t i = 0;
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  const auto is_short = [](const MessageParts& message) { return size_of(message) <= kBlockBytes; };
  for (; has_avx2 && count - i > 1; i += std::min<std::size_t>(4, count - i)) {
    const std::size_t some = std::min<std::size_t>(4, count - i);
    if (!std::all_of(messages + i, messages + i + some, is_short)) {
      for (std::size_t k = i; k < i + some; ++k) out[k] = digest(messages[k]);
      continue;
    }
    MessageParts four[4];
    std::uint64_t digests[4];
    for (std::size_t k = 0; k < 4; ++k) four[k] = messages[i + std::min(k, some - 1)];
    digest_four(four, digests);
    std::copy_n(digests, some, out + i);
  }
#endif
  for (; i < count; ++i) out[i] = digest(messages[i]);
}

}  // namespace walle
