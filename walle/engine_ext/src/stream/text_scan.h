// Scan of JSON text for the bytes that end or interrupt it: quotes, backslashes and control characters.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace walle::stream {

// A block of text: how many bytes precede the first special one (kBytes without one), and whether those are all ASCII.
struct TextBlock {
  std::size_t plain;
  bool is_ascii;
};

// Eight bytes at once in a register: for processors without the instructions below.
struct WordScan {
  static constexpr std::size_t kBytes = 8;
  static TextBlock look(const char* from) noexcept {
    constexpr std::uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;
    std::uint64_t word = 0;
    if constexpr (std::endian::native == std::endian::little) {
      std::memcpy(&word, from, 8);
    } else {
      for (int i = 0; i < 8; ++i) word |= std::uint64_t{static_cast<unsigned char>(from[i])} << 8 * i;
    }
    // The high bit of each byte that is 0, or below 0x20. A borrow sets wrong bits only above a right one.
    const auto zeros = [](std::uint64_t bytes) { return (bytes - kOnes) & ~bytes & kHighs; };
    const std::uint64_t special =
        zeros(word ^ kOnes * '"') | zeros(word ^ kOnes * '\\') | ((word - kOnes * 0x20) & ~word & kHighs);
    const std::size_t plain = special == 0 ? 8 : static_cast<std::size_t>(std::countr_zero(special)) / 8;
    const std::uint64_t before = plain == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * plain) - 1;
    return {plain, (word & kHighs & before) == 0};
  }
};

#if defined(__SSE2__)
struct VectorScan {
  static constexpr std::size_t kBytes = 16;
  static TextBlock look(const char* from) noexcept {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
    const __m128i quotes = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
    const auto special = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_or_si128(control, quotes))) | 0x10000;
    const auto high = static_cast<std::uint32_t>(_mm_movemask_epi8(bytes));
    const auto plain = static_cast<std::size_t>(std::countr_zero(special));
    return {plain, (high & (special - 1) & ~special) == 0};  // the bits below the first special byte
  }
};
using TextScan = VectorScan;
#else
using TextScan = WordScan;
#endif

// Returns how many bytes from `from` on, up to `end`, precede the first special one, and whether those are all ASCII.
template <typename Scan = TextScan>
TextBlock scan_text(const char* from, const char* end) noexcept {
  const char* at = from;
  bool is_ascii = true;
  while (static_cast<std::size_t>(end - at) >= Scan::kBytes) {
    const TextBlock block = Scan::look(at);
    is_ascii = is_ascii && block.is_ascii;
    at += block.plain;
    if (block.plain != Scan::kBytes) return {static_cast<std::size_t>(at - from), is_ascii};
  }
  for (; at != end; ++at) {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte == '"' || byte == '\\' || byte < 0x20) break;
    is_ascii = is_ascii && byte < 0x80;
  }
  return {static_cast<std::size_t>(at - from), is_ascii};
}

// Returns how many bytes two texts have in common at their beginnings, of at most `size`.
inline std::size_t common_bytes(const char* left, const char* right, std::size_t size) noexcept {
  std::size_t at = 0;
#if defined(__SSE2__)
  for (; size - at >= 16; at += 16) {
    const __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(left + at)),
                                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(right + at)));
    const auto different = ~static_cast<std::uint32_t>(_mm_movemask_epi8(equal)) & 0xffff;
    if (different != 0) return at + static_cast<std::size_t>(std::countr_zero(different));
  }
#else
  for (; size - at >= 8 && std::memcmp(left + at, right + at, 8) == 0;) at += 8;
#endif
  while (at != size && left[at] == right[at]) ++at;
  return at;
}

}  // namespace walle::stream
