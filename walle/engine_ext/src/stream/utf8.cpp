#include "stream/utf8.h"

#include <cstdint>
#include <cstring>

namespace walle::stream {

std::size_t find_invalid_utf8(std::string_view text) noexcept {
  constexpr std::uint64_t kHighs = 0x8080808080808080;
  const auto* begin = reinterpret_cast<const unsigned char*>(text.data());
  const auto* at = begin;
  const auto* end = begin + text.size();
  while (at != end) {
    for (std::uint64_t word = 0; end - at >= 8; at += 8) {
      std::memcpy(&word, at, 8);
      if ((word & kHighs) != 0) break;
    }
    if (at == end) break;
    const unsigned char first = *at;
    if (first < 0x80) {
      ++at;
      continue;
    }
    const int more = first >= 0xc2 && first < 0xe0   ? 1
                     : first >= 0xe0 && first < 0xf0 ? 2
                     : first >= 0xf0 && first < 0xf5 ? 3
                                                     : 0;
    bool is_valid = more != 0 && end - at > more;
    std::uint32_t code = is_valid ? first & (0x3fu >> more) : 0;
    for (int i = 1; is_valid && i <= more; ++i) {
      is_valid = (at[i] & 0xc0) == 0x80;
      code = code << 6 | (at[i] & 0x3f);
    }
    is_valid = is_valid && !(more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) &&
               !(more == 3 && (code < 0x10000 || code > 0x10ffff));
    if (!is_valid) break;
    at += 1 + more;
  }
  return static_cast<std::size_t>(at - begin);
}

}  // namespace walle::stream
