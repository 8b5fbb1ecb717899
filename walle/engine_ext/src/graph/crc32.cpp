// CRC-32, polynomial 0xEDB88320, eight bytes a step ("slicing by 8").
#include <array>
#include <cstring>

#include "graph/load.h"

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

}  // namespace

std::uint32_t crc32(const std::byte* data, std::size_t size, std::uint32_t crc) noexcept {
  crc = ~crc;
  for (; size >= 8; size -= 8, data += 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][word >> 8 * i & 255];
  }
  for (; size > 0; --size, ++data) crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<std::uint32_t>(*data)) & 255];
  return ~crc;
}

}  // namespace walle
